//! C programs against libmuster, shared and static: wrong use gets a code, not a crash; right use
//! sees a killed rank.

use std::path::{Path, PathBuf};
use std::process::Command;

use crate::common::{attempt, compiler, here, installed, run};

const SHARED: &[&str] = &["-lmuster", "-lpthread"];
const STATIC: &[&str] = &["-l:libmuster.a", "-lpthread", "-ldl", "-lgcc_eh", "-lgcc"];

/// Compiles and runs one of the programs beside this file, away from every other agent.
fn check(program: &str, link: &[&str], agent: Option<&Path>) {
    let folder = tempfile::tempdir().expect("a temporary folder");
    let lib = installed().join("lib");
    let binary = folder.path().join(program);
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
        .arg(here().join(format!("tests/c_api/{program}.c")))
        .arg("-o")
        .arg(&binary)
        .arg(format!("-L{}", lib.display()))
        .args(link));
    let mut command = Command::new(&binary);
    command
        .env("LD_LIBRARY_PATH", &lib)
        .env("MUSTER_DIR", folder.path());
    command
        .env("MUSTER_RAILS", "127.0.0.1:0@udp0")
        .env("MUSTER_LINGER_MS", "0");
    for inherited in [
        "MUSTER_JOB",
        "MUSTER_NODE",
        "MUSTER_ULFM",
        "PMIX_NAMESPACE",
        "PMIX_RANK",
    ] {
        command.env_remove(inherited);
    }
    if let Some(agent) = agent {
        command.env("MUSTER_AGENT", agent);
    }
    let output = attempt(&mut command);
    let words = String::from_utf8_lossy(&output.stdout);
    assert!(
        output.status.success(),
        "{program}: {}\n{words}",
        output.status
    );
}

#[test]
fn wrong_use_of_the_shared_library() {
    check("wrong_use", SHARED, None);
}

#[test]
fn wrong_use_of_the_static_library() {
    check("wrong_use", STATIC, None);
}

/// A musterd of this source, as `make` builds it.
fn musterd() -> PathBuf {
    run(Command::new(env!("CARGO"))
        .args(["build", "--package", "muster", "--bin", "musterd"])
        .current_dir(here()));
    let target = Path::new(env!("CARGO_TARGET_TMPDIR"))
        .parent()
        .expect("target/tmp is in target");
    target.join("debug/musterd")
}

#[test]
fn attributes_written_read_watched_and_refused() {
    check("attributes", SHARED, Some(&musterd()));
}

/// cfg-005, dbg-080: rails, peers, policy and figures, asked for and changed by a program.
#[test]
fn rails_and_policy_asked_for_changed_and_refused() {
    check("control", SHARED, Some(&musterd()));
}

#[test]
fn many_threads_connect_ask_and_disconnect() {
    check("many_threads", SHARED, Some(&musterd()));
}

#[test]
fn states_waited_for_copied_promised_and_left() {
    check("states", SHARED, Some(&musterd()));
}

#[test]
fn two_ranks_one_killed() {
    check("right_use", SHARED, Some(&musterd()));
}
