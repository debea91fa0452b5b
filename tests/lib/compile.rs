//! C programs of tests, compiled with each MPI's own compiler and the libmuster of `scripts/test-programs`.

use crate::{program, workspace};
use std::path::{Path, PathBuf};
use std::process::Command;

/// The installed tree of libmuster.
///
/// # Panics
/// If there is none.
pub fn libmuster() -> PathBuf {
    let library = program("c/lib/libmuster.so");
    let tree = library.ancestors().nth(2).expect("c/lib/libmuster.so");
    tree.to_owned()
}

/// Compiles a program of `tests/programs` with this compiler and these further arguments.
///
/// # Panics
/// If that fails, or `scripts/test-programs` was not run.
pub fn compile(compiler: &Path, name: &str, further: &[&str], folder: &Path) -> PathBuf {
    let source = workspace().join(format!("tests/programs/{name}.c"));
    compile_file(compiler, &source, further, folder)
}

/// As [`compile`], for any source file.
///
/// # Panics
/// As there.
pub fn compile_file(compiler: &Path, source: &Path, further: &[&str], folder: &Path) -> PathBuf {
    let tree = libmuster();
    let binary = folder.join(source.file_stem().expect("a name"));
    let output = Command::new(compiler)
        .args(["-std=gnu11", "-O1", "-Wall", "-Wextra", "-Werror", "-I"])
        .arg(tree.join("include"))
        .args(further)
        .arg(source)
        .arg("-o")
        .arg(&binary)
        .arg(format!("-L{}", tree.join("lib").display()))
        .arg(format!("-Wl,-rpath,{}", tree.join("lib").display()))
        .args(["-lmuster", "-lpthread", "-ldl"])
        .output()
        .unwrap_or_else(|error| panic!("{}: {error}", compiler.display()));
    let words = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success(), "{}: {words}", compiler.display());
    binary
}

/// The library between a program and MPI, for the MPI of this compiler.
///
/// # Panics
/// If it cannot be compiled.
pub fn interposer(compiler: &Path, folder: &Path) -> PathBuf {
    let source = workspace().join("bindings-c/pmpi/muster_pmpi.c");
    interposer_of(&source, compiler, folder)
}

/// The same for any source file.
///
/// # Panics
/// As there.
pub fn interposer_of(source: &Path, compiler: &Path, folder: &Path) -> PathBuf {
    let tree = libmuster();
    let library = folder.join("libmuster-pmpi.so");
    let output = Command::new(compiler)
        .args([
            "-std=gnu11",
            "-O2",
            "-g",
            "-Wall",
            "-Wextra",
            "-Werror",
            "-shared",
            "-fPIC",
            "-I",
        ])
        .arg(tree.join("include"))
        .arg(source)
        .arg("-o")
        .arg(&library)
        .arg(format!("-L{}", tree.join("lib").display()))
        .arg(format!("-Wl,-rpath,{}", tree.join("lib").display()))
        .args(["-lmuster", "-lpthread"])
        .output()
        .expect("a compiler");
    let words = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success(), "{words}");
    library
}

/// Compiles a PMIx program without MPI, with the system's library, or with further arguments.
///
/// # Panics
/// If it cannot be compiled.
pub fn build_pmix(name: &str, further: &[&str], folder: &Path) -> PathBuf {
    let flags = Command::new("pkg-config")
        .args(["--cflags", "--libs", "pmix"])
        .output();
    let flags = String::from_utf8(flags.expect("pkg-config").stdout).expect("flags");
    let binary = folder.join(name);
    let compiled = Command::new("cc")
        .arg(workspace().join(format!("tests/programs/{name}.c")))
        .arg("-o")
        .arg(&binary)
        .args(further)
        .args(flags.split_whitespace())
        .status();
    assert!(compiled.is_ok_and(|status| status.success()), "cc {name}.c");
    binary
}
