//! A C program against libmuster, shared and static: wrong use gets a code, not a crash.

use crate::common::{attempt, compiler, here, installed, run};
use std::process::Command;

fn check(how: &str, link: &[&str]) {
    let folder = tempfile::tempdir().expect("a temporary folder");
    let program = folder.path().join("wrong_use");
    let lib = installed().join("lib");
    run(compiler("CC", "cc")
        .args([
            "-std=c11",
            "-D_GNU_SOURCE",
            "-Wall",
            "-Wextra",
            "-Werror",
            "-I",
        ])
        .arg(installed().join("include"))
        .arg(here().join("tests/c_api/wrong_use.c"))
        .arg("-o")
        .arg(&program)
        .arg(format!("-L{}", lib.display()))
        .args(link));
    // Its own folder for sockets, so that it meets nobody's agent.
    let output = attempt(
        Command::new(&program)
            .env("LD_LIBRARY_PATH", &lib)
            .env("MUSTER_DIR", folder.path()),
    );
    let words = String::from_utf8_lossy(&output.stdout);
    assert!(output.status.success(), "{how}: {}\n{words}", output.status);
}

#[test]
fn wrong_use_of_the_shared_library() {
    check("shared", &["-lmuster"]);
}

#[test]
fn wrong_use_of_the_static_library() {
    check(
        "static",
        &["-l:libmuster.a", "-lpthread", "-ldl", "-lgcc_eh", "-lgcc"],
    );
}
