//! Devices that come, or whose links come up, after libfabric has listed them.
//!
//! The provider verbs lists the devices whose links are up at its first `fi_getinfo`. From libfabric 2.2 on it lists
//! them again if a call has the flag `FI_RESCAN` (`fi_getinfo(3)`). That takes long, and replaces a list that other
//! threads may be reading. So the flag is set only if devices or addresses have changed since the last list.

use super::library::Libfabric;
use super::table::{Row, Version};
use crate::net_kind::NetKind;
use std::fmt::Write;
use std::fs;
use std::path::Path;
use std::sync::{Mutex, PoisonError};

/// The flag, as libfabric 2.5.1 has it. Headers before 2.2, such as Debian's, do not have it.
const FI_RESCAN: u64 = 1 << 35;
/// The first version that has it.
pub const RESCAN_SINCE: Version = (2, 2);
/// The kernel's directory of RDMA devices.
const DEVICES: &str = "/sys/class/infiniband";

/// Devices and addresses when they were listed last.
static LISTED: Mutex<Option<String>> = Mutex::new(None);

/// `FI_RESCAN` if a query for this row needs it, otherwise no flag. The caller has to query then.
pub(super) fn flag(library: &Libfabric, row: &Row) -> u64 {
    let is_verbs = matches!(row.net, NetKind::O2ib | NetKind::O2ud);
    if !is_verbs || library.version() < RESCAN_SINCE {
        return 0;
    }
    let now = devices(Path::new(DEVICES)) + &library.known_interfaces();
    let mut listed = LISTED.lock().unwrap_or_else(PoisonError::into_inner);
    let has_changed = listed.as_ref().is_some_and(|before| *before != now);
    *listed = Some(now);
    if has_changed { FI_RESCAN } else { 0 }
}

/// The devices of a directory with the states of their ports, as text.
fn devices(directory: &Path) -> String {
    let mut text = String::new();
    for device in names(directory) {
        let ports = directory.join(&device).join("ports");
        for port in names(&ports) {
            let state = fs::read_to_string(ports.join(&port).join("state"));
            let state = state.unwrap_or_default();
            // Writing to a string does not fail.
            let _ = writeln!(text, "{device} {port} {}", state.trim());
        }
    }
    text
}

/// The names in a directory, in order; none if it does not exist.
fn names(directory: &Path) -> Vec<String> {
    let entries = fs::read_dir(directory).into_iter().flatten().flatten();
    let mut names: Vec<String> = entries
        .map(|entry| entry.file_name().to_string_lossy().into_owned())
        .collect();
    names.sort_unstable();
    names
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_device_and_its_link_are_changes() {
        let directory = tempfile::tempdir().unwrap();
        let list = || devices(directory.path());
        let set = |device: &str, state: &str| {
            let port = directory.path().join(device).join("ports/1");
            fs::create_dir_all(&port).unwrap();
            fs::write(port.join("state"), state).unwrap();
        };
        assert_eq!(devices(&directory.path().join("none")), "");
        assert_eq!(list(), "");
        set("mlx5_1", "1: DOWN\n");
        assert_eq!(list(), "mlx5_1 1 1: DOWN\n");
        set("mlx5_0", "4: ACTIVE\n");
        set("mlx5_1", "4: ACTIVE\n");
        assert_eq!(list(), "mlx5_0 1 4: ACTIVE\nmlx5_1 1 4: ACTIVE\n");
    }
}
