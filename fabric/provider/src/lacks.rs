//! What a provider lacks that offers nothing, or a rail whose device was removed, by what the kernel shows of devices.

use crate::libfabric::RESCAN_SINCE;
use std::path::Path;

/// Where the kernel shows the RDMA devices that processes may open, each with its name in `ibdev`.
const OPENABLE: &str = "/sys/class/infiniband_verbs";

/// Whether an RDMA device was removed. The kernel waits for the processes that have it open, and shows the device in
/// `/sys/class/infiniband` until they have closed it.
#[must_use]
pub fn is_device_removed(device: &str) -> bool {
    is_removed(Path::new(OPENABLE), device)
}

fn is_removed(openable: &Path, device: &str) -> bool {
    // Where the kernel shows no devices nothing is known of this one.
    let Ok(entries) = std::fs::read_dir(openable) else {
        return false;
    };
    let names = entries.flatten().map(|entry| entry.path().join("ibdev"));
    let mut names = names.filter_map(|name| std::fs::read_to_string(name).ok());
    !names.any(|name| name.trim_end() == device)
}

/// What the provider of a device lacks, as far as this machine shows it: a device, which may come later. An error means
/// that libfabric lacks the provider.
///
/// libfabric may show a provider only if it has a device (verbs of 1.17), so without one nothing is known of it.
///
/// # Errors
/// libfabric was built without the provider; the text has the remedy.
pub fn lacks(provider: &str, is_shown: bool, version: (u32, u32)) -> Result<String, String> {
    let (place, what) = match provider {
        "psm2" | "opx" => ("/dev/hfi1_0", "no Omni-Path driver (hfi1) has a device"),
        "cxi" => ("/sys/class/cxi", "no Slingshot driver (cxi) has a device"),
        _ => ("/sys/class/infiniband", "no RDMA driver has a device"),
    };
    let names: Vec<String> = std::fs::read_dir(place)
        .into_iter()
        .flatten()
        .flatten()
        .map(|entry| entry.file_name().to_string_lossy().into_owned())
        .collect();
    if !Path::new(place).exists() || names.is_empty() && !place.starts_with("/dev") {
        return Ok(format!("{what}: {place} does not exist, or is empty"));
    }
    if !is_shown {
        return Err(format!(
            "this libfabric was built without {provider}: install one that has it, or name its \
             directory in FI_PROVIDER_PATH"
        ));
    }
    let restart = match provider {
        "verbs" if version < RESCAN_SINCE => {
            "; if one came, or its link came up, after the start of this program, start the program \
             again: libfabric finds it without that only from version 2.2 on"
        }
        _ => "",
    };
    Ok(format!(
        "{place} has {}, but {provider} offers none of them at this address: check that its link is \
         up and the address is on it{restart}",
        names.join(", ")
    ))
}

#[cfg(test)]
mod tests {
    use super::*;

    /// hlt-005.
    #[test]
    fn a_device_that_cannot_be_opened_was_removed() {
        let class = tempfile::tempdir().unwrap();
        std::fs::create_dir(class.path().join("uverbs0")).unwrap();
        std::fs::write(class.path().join("uverbs0/ibdev"), "mlx5_0\n").unwrap();
        // A file beside the devices.
        std::fs::write(class.path().join("abi_version"), "6\n").unwrap();
        let removed = |device| is_removed(class.path(), device);
        assert_eq!(
            ["mlx5_0", "mlx5_1", "mlx5"].map(removed),
            [false, true, true]
        );
        assert!(!is_removed(&class.path().join("nothing"), "mlx5_0"));
    }
}
