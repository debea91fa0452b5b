//! Two ends of rails in one process, for measurements.

use muster_fabric::{Fabric, FabricConfig, Nid, PeerHandle, Transport};
use muster_sys::clock::monotonic_ns;
use muster_terminal::CliError;

/// CLOCK_MONOTONIC in microseconds.
pub(super) fn now_us() -> u64 {
    monotonic_ns() / 1000
}

/// Two fabrics that know each other as peers.
pub(super) struct Ends {
    pub(super) near: Fabric,
    pub(super) far: Fabric,
    pub(super) to_far: PeerHandle,
    pub(super) to_near: PeerHandle,
}

/// Opens two fabrics with this number of rails on loopback.
pub(super) fn open(rails: usize) -> Result<Ends, CliError> {
    let library = muster_fabric::load().map_err(|e| CliError::new("bench rails", e))?;
    let fabric = |end: u8| {
        let nids: Vec<Nid> = (0..rails)
            .filter_map(|rail| {
                format!("127.92.{end}.{}:0@udp{rail}", rail + 1)
                    .parse()
                    .ok()
            })
            .collect();
        Fabric::open(&FabricConfig::new(library, nids))
            .map_err(|e| CliError::new("bench rails: opening rails on loopback", e))
    };
    let (mut near, mut far) = (fabric(1)?, fabric(2)?);
    let known = |e| CliError::new("bench rails", e);
    let to_far = near.peer(&far.local_nids()).map_err(known)?;
    let to_near = far.peer(&near.local_nids()).map_err(known)?;
    Ok(Ends {
        near,
        far,
        to_far,
        to_near,
    })
}
