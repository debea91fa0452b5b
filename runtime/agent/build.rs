//! Exports the functions that libfabric is to use instead of those of libc, see `kernel_symbols` and `skipped_sleep` of
//! muster-provider.

use std::path::PathBuf;

fn main() {
    println!("cargo:rerun-if-changed=build.rs");
    let folder = std::env::var_os("OUT_DIR").expect("cargo sets it");
    // Linkers before binutils 2.35 know no `--export-dynamic-symbol`.
    let list = PathBuf::from(folder).join("exported");
    let names = ["fopen", "gettimeofday", "usleep"];
    let text = format!("{{ {}; }};\n", names.join("; "));
    std::fs::write(&list, text).expect("OUT_DIR is writable");
    for name in names {
        println!("cargo:rustc-link-arg-bins=-Wl,--undefined={name}");
    }
    println!(
        "cargo:rustc-link-arg-bins=-Wl,--dynamic-list={}",
        list.display()
    );
}
