//! Shared by the end-to-end tests: the programs under test, and how a test starts them.
//!
//! - [`Member`], [`Members`]: agents without ranks, on loopback.
//! - [`nodes::Nodes`]: a job on emulated nodes whose ranks the test starts itself.
//! - [`job::Job`]: a program under a launcher: `muster run`, or that of another MPI.
//! - [`cluster::Cluster`]: a real Slurm.
//! - [`hosts::Hosts`]: network namespaces, for agents whose rails are broken.
//!
//! Below them all is [`process::Process`]: a child, its lines and its end.
//!
//! Every wait here is for an event and has a generous deadline; a test that reaches it prints what it had
//! seen until then.

pub mod admin;
pub mod clean;
pub mod cluster;
pub mod compile;
pub mod death;
pub mod hosts;
pub mod job;
pub mod launchers;
pub mod local_load;
mod member;
pub mod nodes;
pub mod outsider;
pub mod process;
pub mod rank;
mod skipped;
pub mod steps;
pub mod survive;
pub mod table;

pub use member::{Member, Members};
pub use skipped::skipped;

use rustix::event::poll;
use std::fs::Permissions;
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

/// No event takes this long: a longer wait is for an event that does not occur.
pub const DEADLINE: Duration = Duration::from_secs(60);

/// The path of a program or library of this workspace. `scripts/test-programs` builds them all; a test builds none.
///
/// # Panics
/// If it is missing, or older than its sources.
pub fn program(name: &str) -> PathBuf {
    let test = std::env::current_exe().expect("a test knows its own path");
    let folder = test.ancestors().nth(2).expect("target/debug/deps/test");
    let path = folder.join(name);
    if let Err(why) = is_current(&path) {
        panic!("{}: {why}; run: sh scripts/test-programs", path.display());
    }
    path
}

/// Whether a program is as new as all its sources, which cargo lists in a file beside it. `scripts/test-programs`
/// renews the time of that file, since cargo leaves a program alone that a changed source does not concern.
fn is_current(program: &Path) -> Result<(), String> {
    let time = |path: &Path| path.metadata().and_then(|facts| facts.modified());
    let built = time(program).map_err(|cause| cause.to_string())?;
    let list = program.with_extension("d");
    let Ok(listed) = std::fs::read_to_string(&list) else {
        return Ok(());
    };
    let built = time(&list).map_or(built, |listed| listed.max(built));
    let (_, sources) = listed.split_once(": ").unwrap_or_default();
    // An unpacked archive has other paths.
    let newer = |source: &&str| time(Path::new(source)).is_ok_and(|changed| changed > built);
    match sources.split_whitespace().find(newer) {
        None => Ok(()),
        Some(source) => Err(format!("it is older than {source}")),
    }
}

/// Makes an executable of this text. Another process writes it: children of other threads would hold it open
/// for a moment, and it could not be executed then ("Text file busy").
///
/// # Panics
/// If it cannot be made.
pub fn make_program(path: &Path, text: &str) {
    let draft = path.with_extension("draft");
    std::fs::write(&draft, text).expect("a file");
    std::fs::set_permissions(&draft, Permissions::from_mode(0o755)).expect("its mode");
    let copied = Command::new("cp").arg("-p").args([&draft, path]).status();
    assert!(copied.expect("cp").success(), "{}", path.display());
    std::fs::remove_file(&draft).expect("a draft");
}

/// Polls until `look` returns a value, where no event exists. Between two polls other processes can run.
///
/// # Panics
/// If there is none before the deadline; `what` describes the expected or the present state.
pub fn until<T>(what: impl Fn() -> String, mut look: impl FnMut() -> Option<T>) -> T {
    let end = Instant::now() + DEADLINE;
    let moment = Duration::from_millis(10).try_into().expect("a moment");
    loop {
        if let Some(seen) = look() {
            return seen;
        }
        assert!(Instant::now() < end, "time-out: {}", what());
        // Polls no descriptor: a signal only shortens the pause.
        let _ = poll(&mut [], Some(&moment));
    }
}

/// Whether a program can be run with these words in front of it; if not, the reason is printed.
pub fn can(part: &str, words: &[&str]) -> bool {
    let mut command = Command::new(words[0]);
    command.args(&words[1..]).arg("true").stdin(Stdio::null());
    let why = match command.output() {
        Ok(output) if output.status.success() => return true,
        Ok(output) => String::from_utf8_lossy(&output.stderr).trim().to_owned(),
        Err(error) => error.to_string(),
    };
    skipped(part, &format!("no {}: {why}", words.join(" ")));
    false
}

/// The Python of `make setup`, if it has this module; if not, that is printed.
pub fn python_with(module: &str) -> Option<PathBuf> {
    let python = workspace().join("target/venv/bin/python");
    let import = format!("import {module}");
    let words = [python.to_str().expect("a path in UTF-8"), "-c", &import];
    can(module, &words).then_some(python)
}

/// The root of the workspace.
pub fn workspace() -> &'static Path {
    Path::new(env!("CARGO_MANIFEST_DIR"))
        .parent()
        .expect("tests/ is in the workspace")
}
