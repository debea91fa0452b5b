//! Exports the `fopen` that libfabric is to use, see `kernel_symbols` of muster-provider.

fn main() {
    println!("cargo:rerun-if-changed=build.rs");
    for option in ["--undefined=fopen", "--export-dynamic-symbol=fopen"] {
        println!("cargo:rustc-link-arg-bins=-Wl,{option}");
    }
}
