//! Two ends of rails in one process, for measurements.

use muster_fabric::{Class, Fabric, FabricConfig, Nid, PeerHandle, Route, Transport};
use muster_sys::clock::monotonic_ns;
use muster_terminal::CliError;

/// How long the first message may take: providers of devices connect before they send.
const MEET_US: u64 = 20_000_000;
/// The pause between two first messages.
const MEET_PAUSE_US: u64 = 100_000;

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
    let nids = |end: u8| {
        let nids = (0..rails).filter_map(|rail| {
            format!("127.92.{end}.{}:0@udp{rail}", rail + 1)
                .parse()
                .ok()
        });
        nids.collect()
    };
    open_on([nids(1), nids(2)])
}

/// Opens two fabrics with one rail each, and waits until messages pass both ways.
pub(super) fn open_between(near: &Nid, far: &Nid) -> Result<Ends, CliError> {
    let mut ends = open_on([vec![near.clone()], vec![far.clone()]])?;
    let start_us = now_us();
    let (mut next_us, mut forth, mut back) = (0, false, false);
    while !(forth && back) {
        let now_us = now_us();
        if now_us >= start_us + MEET_US {
            let text = format!("no message passed between {near} and {far}");
            return Err(CliError::new("bench rails", text));
        }
        if now_us >= next_us {
            next_us = now_us + MEET_PAUSE_US;
            let to = (ends.to_far, ends.to_near);
            ends.near
                .send(now_us, to.0, Class::News, Route::Next, b"forth");
            ends.far
                .send(now_us, to.1, Class::News, Route::Next, b"back");
        }
        ends.near.poll(now_us, &mut |_| back = true);
        ends.far.poll(now_us, &mut |_| forth = true);
    }
    Ok(ends)
}

fn open_on(nids: [Vec<Nid>; 2]) -> Result<Ends, CliError> {
    let library = muster_fabric::load().map_err(|e| CliError::new("bench rails", e))?;
    let opened = nids.map(|nids| Fabric::open(&FabricConfig::new(library, nids)));
    let [near, far] = opened;
    let failed = |e| CliError::new("bench rails: opening the rails", e);
    let (mut near, mut far) = (near.map_err(failed)?, far.map_err(failed)?);
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
