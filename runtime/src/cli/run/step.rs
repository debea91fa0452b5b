//! The launcher of a node of a Slurm step, or of a host.
//!
//! What the agents need to find each other stands in their environment. A process cannot safely change its own, so
//! the launcher executes itself once more with it.

use super::failed;
use crate::cli::CliError;
use crate::client::SPANK_KEY;
use crate::config::{leave_key, read_key_file};
use crate::launch::{Error, FILES, Plan, Step, files_name, is_of_the_plugin, node};
use crate::sys::process::user_id;
use std::ffi::OsString;
use std::fs;
use std::os::unix::fs::{DirBuilderExt, MetadataExt};
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::{Duration, Instant};

/// Set for the second time: the key's file, if it is ours to remove, else [`NO_KEY`].
pub(super) const VARIABLE: &str = "MUSTER_RUN_STEP";
/// An empty variable would count as not set.
const NO_KEY: &str = "-";
/// How long agents stay after their launcher, unless the user says so: the step is over then.
const LINGER_MS: &str = "300";

/// How long the key of a job that has failed stays for those who have still to read it.
const LATECOMERS: Duration = Duration::from_secs(5);
/// Between two looks whether one of them has removed it.
const LOOK: Duration = Duration::from_millis(50);

/// Runs this node's part of the step and answers its exit status.
pub(super) fn run(plan: &Plan, step: &Step, words: &[OsString]) -> Result<u8, CliError> {
    if std::env::var_os(VARIABLE).is_some() {
        let outcome = serve(plan, step, false)?;
        return Ok(outcome.unwrap_or(node::OUTCAST));
    }
    let given = |name: &str| std::env::var_os(name).is_some_and(|value| !value.is_empty());
    if given("MUSTER_KEY_FILE") {
        return Err(execute(step, words, None, None));
    }
    let home = std::env::var_os("HOME").map_or_else(std::env::temp_dir, PathBuf::from);
    let refused = |why: String| CliError::new("run: the job's key", why);
    let shared = step.key(&home, plan.patience).map_err(refused)?;
    let key = read_key_file(&shared).map_err(|why| refused(why.to_string()))?;
    let own = keep_key(step, &key)?;
    Err(execute(step, words, Some(&own), Some(&shared)))
}

/// Puts the key among this launcher's files, where its agent finds it.
pub(super) fn keep_key(step: &Step, key: &[u8; 32]) -> Result<PathBuf, CliError> {
    let path = make_files(step)?.join("key");
    leave_key(&path, key).map_err(|why| CliError::new("run: the job's key", why))?;
    Ok(path)
}

fn make_files(step: &Step) -> Result<PathBuf, CliError> {
    let files = files(step);
    let mut builder = fs::DirBuilder::new();
    let made = builder.mode(0o700).recursive(true).create(&files);
    let refused = |cause: std::io::Error| CliError::new(format!("run: {}", files.display()), cause);
    made.map_err(refused)?;
    // Its name can be guessed: somebody else may have made it, or have it lead elsewhere.
    let found = fs::symlink_metadata(&files).map_err(refused)?;
    if !found.is_dir() || found.uid() != user_id() {
        let why = "it is not a directory of yours; remove it, or name another place by TMPDIR";
        return Err(CliError::new(format!("run: {}", files.display()), why));
    }
    Ok(files)
}

/// The directory of this launcher's files.
fn files(step: &Step) -> PathBuf {
    std::env::temp_dir().join(files_name(&step.job, step.own))
}

/// The second time, with everything in the environment. `is_watched`: the process that started this one tells the
/// end of a node from that of the job by its exit status.
pub(super) fn serve(plan: &Plan, step: &Step, is_watched: bool) -> Result<Option<u8>, CliError> {
    let key = std::env::var_os(VARIABLE).unwrap_or_default();
    let files = make_files(step)?;
    let remove_key = || {
        if key != NO_KEY {
            let _ = fs::remove_file(PathBuf::from(&key));
        }
    };
    let mut met = false;
    // Each has a copy by then. Whoever is first removes it: all of them may be killed at any time.
    let mut on_met = || {
        met = true;
        remove_key();
    };
    let outcome = node::run(plan, step.own, &files, &mut on_met);
    if matches!(outcome, Err(Error::Taken { .. })) {
        return outcome.map_err(failed);
    }
    let _ = fs::remove_dir_all(&files);
    // Not while others have still to read it: these hear that the job has failed, and remove it then.
    if matches!(outcome, Err(Error::Missing { .. })) || step.own == 0 && outcome.is_err() {
        if !met {
            wait_for_latecomers(Path::new(&key));
        }
        remove_key();
    }
    let lost = is_watched && met && matches!(outcome, Err(Error::Agent(_)));
    outcome.map_err(|error| match failed(error) {
        error if lost => error.exit_code(node::GIVEN_UP),
        error => error,
    })
}

/// Others may still have to read the key: without it they would wait for one, and not hear why the job has failed.
fn wait_for_latecomers(key: &Path) {
    let until = Instant::now() + LATECOMERS;
    while key.exists() && Instant::now() < until {
        std::thread::sleep(LOOK);
    }
}

/// Only returns if it fails. `key` is what the agent reads, `shared` what is to be removed when all have read it.
pub(super) fn execute(
    step: &Step,
    words: &[OsString],
    key: Option<&Path>,
    shared: Option<&Path>,
) -> CliError {
    let mut command = match std::env::current_exe() {
        Ok(program) => Command::new(program),
        Err(cause) => return CliError::new("run: this program", cause),
    };
    let given = |name: &str| std::env::var_os(name).is_some_and(|value| !value.is_empty());
    // What the plugin says is of its own agents: those of this job meet elsewhere.
    let of_plugin = std::env::var("MUSTER_JOB").is_ok_and(|job| is_of_the_plugin(&job));
    let shared = shared.unwrap_or(Path::new(NO_KEY));
    command
        .args(words)
        .env(VARIABLE, shared)
        .env(FILES, files(step))
        .env_remove(SPANK_KEY);
    if let Some(path) = key {
        command.env("MUSTER_KEY_FILE", path);
    }
    for (name, value) in [
        ("MUSTER_JOB", step.job.clone()),
        ("MUSTER_NODE", step.nodes[step.own].clone()),
        ("MUSTER_HOSTS", step.list.clone()),
        ("MUSTER_PORT", step.port.to_string()),
    ] {
        if of_plugin || !given(name) {
            command.env(name, value);
        }
    }
    if !given("MUSTER_LINGER_MS") {
        command.env("MUSTER_LINGER_MS", LINGER_MS);
    }
    CliError::new("run: this program", command.exec())
}
