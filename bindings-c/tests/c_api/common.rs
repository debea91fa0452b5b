//! Shared by the tests of the C API: the installed tree that link.sh makes, and the compiler.

use std::path::{Path, PathBuf};
use std::process::{Command, Output};

/// The folder of this crate.
pub(crate) fn here() -> &'static Path {
    Path::new(env!("CARGO_MANIFEST_DIR"))
}

/// Runs a command to its end and returns its output; fails the test if the command fails.
pub(crate) fn run(command: &mut Command) -> String {
    let output = attempt(command);
    let errors = String::from_utf8_lossy(&output.stderr);
    assert!(
        output.status.success(),
        "{command:?}: {}\n{errors}",
        output.status
    );
    String::from_utf8_lossy(&output.stdout).into_owned()
}

/// Runs a command to its end.
pub(crate) fn attempt(command: &mut Command) -> Output {
    command
        .output()
        .unwrap_or_else(|error| panic!("{command:?}: {error}"))
}

/// A C or C++ compiler; the environment variable may name another one.
pub(crate) fn compiler(variable: &str, otherwise: &str) -> Command {
    Command::new(std::env::var_os(variable).unwrap_or_else(|| otherwise.into()))
}

/// An installed tree (lib, include) of this crate alone, without anything of the agent.
/// `scripts/test-programs` makes it.
pub(crate) fn installed() -> PathBuf {
    let tree = target().join("debug/c");
    assert!(
        tree.exists(),
        "no {}; run: sh scripts/test-programs",
        tree.display()
    );
    tree
}

/// The build directory.
fn target() -> &'static Path {
    let folder = Path::new(env!("CARGO_TARGET_TMPDIR")).parent();
    folder.expect("target/tmp is in target")
}

/// A C program in the directory of this file.
pub(crate) fn beside(program: &str) -> PathBuf {
    here().join(format!("tests/c_api/{program}.c"))
}

/// Compiles a C program against libmuster, into this folder.
pub(crate) fn compile(source: &Path, folder: &Path, link: &[&str], more: &[&str]) -> PathBuf {
    let binary = folder.join(source.file_stem().expect("a name"));
    run(compiler("CC", "cc")
        .args(["-std=c11", "-D_GNU_SOURCE", "-g", "-Wall", "-Wextra"])
        .args(more)
        .arg("-I")
        .arg(installed().join("include"))
        .arg(source)
        .arg("-o")
        .arg(&binary)
        .arg(format!("-L{}", installed().join("lib").display()))
        .args(link));
    binary
}

/// A command that finds the library, and no agent other than its own.
pub(crate) fn alone<'a>(
    command: &'a mut Command,
    folder: &Path,
    agent: Option<&Path>,
) -> &'a mut Command {
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
    command
        .env("LD_LIBRARY_PATH", installed().join("lib"))
        .env("MUSTER_DIR", folder)
        .env("MUSTER_RAILS", "127.0.0.1:0@udp0")
        .env("MUSTER_LINGER_MS", "0")
}

/// The environment of gossip.c and its agent. Each concurrent run requires its own net, of three numbers.
pub(crate) fn gossip_on(net: &str) -> Vec<(&'static str, String)> {
    vec![
        ("MUSTER_PROTOCOL", "age".to_owned()),
        ("MUSTER_RAILS", format!("{net}.1@udp0")),
        ("MUSTER_PARTICIPANTS", format!("{net}.[1-2]@udp0")),
        ("MUSTER_INTERVAL_MS", "250".to_owned()),
        ("MUSTER_ROUND_TRIP_MS", "2".to_owned()),
    ]
}

/// The musterd of this source tree. `scripts/test-programs` builds it.
pub(crate) fn musterd() -> PathBuf {
    let program = target().join("debug/musterd");
    assert!(
        program.exists(),
        "no {}; run: sh scripts/test-programs",
        program.display()
    );
    program
}

/// The text of the public header.
pub(crate) fn header() -> String {
    std::fs::read_to_string(here().join("include/muster.h")).expect("the header is checked in")
}

/// A text without comments and preprocessor lines, with single spaces.
pub(crate) fn bare(text: &str) -> String {
    let mut rest = text;
    let mut kept = String::new();
    while let Some((before, after)) = rest.split_once("/*") {
        kept.push_str(before);
        rest = after.split_once("*/").map_or("", |(_, after)| after);
    }
    kept.push_str(rest);
    let mut in_directive = false;
    let lines = kept.lines().filter(|line| {
        let directive = in_directive || line.trim_start().starts_with('#');
        in_directive = directive && line.trim_end().ends_with('\\');
        !directive
    });
    let lines: Vec<&str> = lines.collect();
    lines
        .join(" ")
        .split_whitespace()
        .collect::<Vec<_>>()
        .join(" ")
}

/// The function declarations of a header: name and normalised text, sorted by name.
pub(crate) fn functions(header: &str) -> Vec<(String, String)> {
    let text = bare(header);
    let mut found: Vec<(String, String)> = text
        .split(';')
        .filter_map(|statement| {
            let statement = statement.trim().trim_start_matches("extern \"C\" {").trim();
            if statement.contains("typedef") || statement.contains('{') {
                return None;
            }
            let (before, _) = statement.split_once('(')?;
            let name = before.rsplit([' ', '*']).next()?;
            name.starts_with("muster_")
                .then(|| (name.to_owned(), statement.to_owned()))
        })
        .collect();
    found.sort();
    found
}
