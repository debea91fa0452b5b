//! Reads the installed libfabric headers and compiles the shims of their header-only functions.
//!
//! Most of libfabric's calls are `static inline` functions over tables of function pointers, to which a program
//! cannot link. bindgen writes a C shim for each of those that are used. The few functions that the library
//! exports are not linked either, because the library is opened at run time. They get their types from here
//! (`src/bindings.rs`), and the symbol version of the headers (`ABI`), because libfabric keeps one `fi_getinfo`
//! for each layout of its structs.

use std::env;
use std::path::{Path, PathBuf};
use std::process::{Command, exit};

/// Header-only functions that the fabric uses. None of them may call an exported function.
const INLINE_FUNCTIONS: &str = "fi_domain|fi_endpoint|fi_av_open|fi_cq_open|fi_ep_bind|fi_enable|\
     fi_close|fi_control|fi_getname|fi_av_insert|fi_av_remove|fi_send|fi_inject|fi_recv|\
     fi_cq_read|fi_cq_readerr|fi_cq_strerror|fi_trywait|fi_mr_reg|fi_mr_desc|\
     fi_eq_open|fi_eq_read|fi_eq_readerr";

/// Structs that these functions, or the exported ones, use.
const TYPES: &str = "fi_info|fi_context2|fi_cq_msg_entry|fi_cq_err_entry|fi_cq_attr|fi_av_attr|\
     fi_eq_attr|fi_eq_entry|fi_eq_err_entry|fid_.*";

/// The oldest libfabric that the fabric is tested with.
const OLDEST: &str = "1.17";

fn main() {
    println!("cargo::rerun-if-changed=build.rs");
    println!("cargo::rerun-if-changed=wrapper.h");
    println!("cargo::rerun-if-env-changed=MUSTER_LIBFABRIC_ABI");
    let library = find_headers();
    let bindings = bind(&library.include_paths);
    compile_shims(&library.include_paths);
    let abi = abi_version(&library, &bindings);
    println!("cargo::rustc-env=MUSTER_LIBFABRIC_ABI={abi}");
    println!(
        "cargo::rustc-env=MUSTER_LIBFABRIC_HEADERS={}",
        library.version
    );
}

/// Finds the headers with pkg-config; if there are none, prints how to install them and exits.
fn find_headers() -> pkg_config::Library {
    let found = pkg_config::Config::new()
        .atleast_version(OLDEST)
        .cargo_metadata(false)
        .env_metadata(true)
        .probe("libfabric");
    found.unwrap_or_else(|reason| {
        fail(&format!(
            "libfabric's headers, version {OLDEST} or newer, are needed to build and were not \
             found.\n  remedy: run `make setup`, or install libfabric-dev (Debian, Ubuntu), \
             libfabric-devel (Red Hat, SUSE) or libfabric (Spack); if it is installed elsewhere, add \
             the directory of its libfabric.pc to PKG_CONFIG_PATH.\n  pkg-config's error: {reason}"
        ))
    })
}

fn out_dir() -> PathBuf {
    PathBuf::from(env::var_os("OUT_DIR").expect("cargo sets OUT_DIR"))
}

/// Writes `bindings.rs` and `shims.c`; returns the text of the bindings.
fn bind(include_paths: &[PathBuf]) -> String {
    let bindings = bindgen::Builder::default()
        .header("wrapper.h")
        .clang_args(
            include_paths
                .iter()
                .map(|path| format!("-I{}", path.display())),
        )
        .allowlist_function(INLINE_FUNCTIONS)
        .allowlist_type(TYPES)
        .allowlist_var("FI_.*")
        .blocklist_type("iovec|size_t|ssize_t")
        .raw_line("pub use libc::{iovec, size_t, ssize_t};")
        .default_enum_style(bindgen::EnumVariation::Consts)
        .prepend_enum_name(false)
        .derive_default(true)
        .generate_comments(false)
        .layout_tests(false)
        .wrap_static_fns(true)
        .wrap_static_fns_path(out_dir().join("shims"))
        .generate();
    let bindings = bindings.unwrap_or_else(|reason| {
        fail(&format!(
            "libfabric's headers were found but could not be read.\n  remedy: run `make setup`, \
             or install libclang (Debian: clang; Red Hat: clang-devel).\n  bindgen's error: {reason}"
        ))
    });
    let path = out_dir().join("bindings.rs");
    bindings
        .write_to_file(&path)
        .expect("cargo's OUT_DIR can be written");
    bindings.to_string()
}

fn compile_shims(include_paths: &[PathBuf]) {
    let root = env::var_os("CARGO_MANIFEST_DIR").expect("cargo sets CARGO_MANIFEST_DIR");
    cc::Build::new()
        .file(out_dir().join("shims.c"))
        .include(root)
        .includes(include_paths)
        .flag_if_supported("-Wno-unused-parameter")
        .compile("muster_libfabric_shim");
}

/// The symbol version of `fi_getinfo` that belongs to the headers: from `MUSTER_LIBFABRIC_ABI`, else read from
/// the library next to the headers, else derived from the version number.
fn abi_version(library: &pkg_config::Library, bindings: &str) -> String {
    if let Ok(given) = env::var("MUSTER_LIBFABRIC_ABI") {
        return given;
    }
    let read = library_directories(library)
        .iter()
        .filter_map(|directory| default_symbol_version(&directory.join("libfabric.so")))
        .next();
    if let Some(version) = read {
        return version;
    }
    let major = constant(bindings, "FI_MAJOR_VERSION");
    let minor = constant(bindings, "FI_MINOR_VERSION");
    match (major, minor) {
        (Some(1), Some(17..=19)) => "FABRIC_1.3".to_owned(),
        (Some(1), Some(20..)) => "FABRIC_1.7".to_owned(),
        _ => fail(&format!(
            "cannot determine which ABI the headers of libfabric {} describe: no libfabric.so with \
             version information is next to them, or readelf is missing.\n  remedy: install \
             binutils and libfabric's development package, or set MUSTER_LIBFABRIC_ABI to the \
             version that `readelf -W --dyn-syms libfabric.so` shows after fi_getinfo@@.",
            library.version
        )),
    }
}

/// The directories to search for the library. pkg-config omits the linker's default directories from `-L`, so
/// this adds its `libdir`.
fn library_directories(library: &pkg_config::Library) -> Vec<PathBuf> {
    let mut directories = library.link_paths.clone();
    directories.extend(
        pkg_config::get_variable("libfabric", "libdir")
            .ok()
            .map(PathBuf::from),
    );
    directories
}

/// The version after `fi_getinfo@@`: the one that a linker would choose.
fn default_symbol_version(library: &Path) -> Option<String> {
    let output = Command::new("readelf")
        .args(["-W", "--dyn-syms"])
        .arg(library)
        .output()
        .ok()?;
    let text = String::from_utf8_lossy(&output.stdout).into_owned();
    text.split_whitespace()
        .find_map(|word| word.strip_prefix("fi_getinfo@@"))
        .map(str::to_owned)
}

/// The value of `pub const NAME: u32 = VALUE;`.
fn constant(bindings: &str, name: &str) -> Option<u32> {
    let rest = bindings
        .split(&format!("pub const {name}: u32 = "))
        .nth(1)?;
    rest.split(';').next()?.trim().parse().ok()
}

fn fail(text: &str) -> ! {
    eprintln!("error: {text}");
    exit(1)
}
