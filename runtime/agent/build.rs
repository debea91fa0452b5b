//! Exports the `fopen` that libfabric is to use, see `kernel_symbols` of muster-provider.

use std::path::PathBuf;

fn main() {
    println!("cargo:rerun-if-changed=build.rs");
    let folder = std::env::var_os("OUT_DIR").expect("cargo sets it");
    // Linkers before binutils 2.35 know no `--export-dynamic-symbol`.
    let list = PathBuf::from(folder).join("exported");
    std::fs::write(&list, "{ fopen; };\n").expect("OUT_DIR is writable");
    println!("cargo:rustc-link-arg-bins=-Wl,--undefined=fopen");
    println!(
        "cargo:rustc-link-arg-bins=-Wl,--dynamic-list={}",
        list.display()
    );
}
