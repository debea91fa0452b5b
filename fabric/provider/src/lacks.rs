//! What a provider lacks that offers nothing, by what the kernel shows of its devices.

use crate::libfabric::RESCAN_SINCE;

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
    if !std::path::Path::new(place).exists() || names.is_empty() && !place.starts_with("/dev") {
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
