//! Reads Slurm's version from its installed headers: Slurm loads only plugins that were built for its version.

use std::path::{Path, PathBuf};

fn main() {
    println!("cargo::rerun-if-env-changed=SLURM_INCLUDE_DIR");
    let given = std::env::var_os("SLURM_INCLUDE_DIR").map(PathBuf::from);
    let folder = given.unwrap_or_else(|| "/usr/include".into());
    let header = folder.join("slurm/slurm_version.h");
    println!("cargo::rerun-if-changed={}", header.display());
    match version(&header) {
        Ok(version) => println!("cargo::rustc-env=MUSTER_SLURM_VERSION={version}"),
        Err(why) => {
            eprintln!(
                "{}: {why}; install Slurm's headers (libslurm-dev, slurm-devel), or set SLURM_INCLUDE_DIR to the \
                 directory that contains slurm/",
                header.display()
            );
            std::process::exit(1);
        }
    }
}

fn version(header: &Path) -> Result<u32, String> {
    let text = std::fs::read_to_string(header).map_err(|cause| cause.to_string())?;
    let fields = text
        .lines()
        .map(|line| line.split_whitespace().collect::<Vec<_>>());
    let number = fields.into_iter().find_map(|fields| match fields[..] {
        ["#define", "SLURM_VERSION_NUMBER", number] => Some(number.to_owned()),
        _ => None,
    });
    let number = number.ok_or("it does not define SLURM_VERSION_NUMBER")?;
    let digits = number
        .strip_prefix("0x")
        .ok_or("its version is not in hexadecimal")?;
    u32::from_str_radix(digits, 16).map_err(|cause| format!("{number}: {cause}"))
}
