//! The launcher of a node of a Slurm step, or of a host.
//!
//! What the agents need to find each other stands in their environment. A process cannot safely change its own, so
//! the launcher executes itself once more with it.

use super::failed;
use crate::cli::{CliError, print_error};
use crate::client::SPANK_KEY;
use crate::config::{leave_key, read_key_file};
use crate::ipc::AgentDirectory;
use crate::ipc::locked_directory::{LockedDirectory, remove_abandoned};
use crate::launch::{Error, Plan, Step, files_name, is_of_the_plugin, node};
use std::ffi::OsString;
use std::fs;
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::{Duration, Instant};

/// Set for the second time: the key's file, if it is ours to remove, else [`NO_KEY`].
pub(super) const VARIABLE: &str = "MUSTER_RUN_STEP";
/// An empty variable would count as not set.
const NO_KEY: &str = "-";
/// The key among a launcher's files.
const KEY: &str = "key";
/// How long agents stay after their launcher, unless the user says so: the step is over then.
const LINGER_MS: &str = "300";

/// How long the key of a job that has failed stays for those who have still to read it.
const LATECOMERS: Duration = Duration::from_secs(5);
/// Between two looks whether one of them has removed it.
const LOOK: Duration = Duration::from_millis(50);

/// Runs this node's part of the step and answers its exit status.
pub(super) fn run(plan: &Plan, step: &Step, arguments: &[OsString]) -> Result<u8, CliError> {
    if std::env::var_os(VARIABLE).is_some() {
        let outcome = serve(plan, step)?;
        return Ok(outcome.unwrap_or(node::OUTCAST));
    }
    let given = |name: &str| std::env::var_os(name).is_some_and(|value| !value.is_empty());
    if given("MUSTER_KEY_FILE") {
        return Err(execute(step, arguments, None, None));
    }
    let home = std::env::var_os("HOME").map_or_else(std::env::temp_dir, PathBuf::from);
    let refused = |why: String| CliError::new("run: the job's key", why);
    let shared = step.key(&home, plan.timeout).map_err(refused)?;
    let key = read_key_file(&shared).map_err(|why| refused(why.to_string()))?;
    let own = keep_key(step, &key).inspect_err(|_| {
        // The first has made it.
        if step.own == 0 {
            let _ = fs::remove_file(&shared);
        }
    })?;
    Err(execute(step, arguments, Some(&own), Some(&shared)))
}

/// A site that binds tasks gives a step with one task a node one core of it, unless it is asked for more.
fn say_what_is_bound(plan: &Plan, step: &Step) {
    let own = std::thread::available_parallelism().map_or(1, std::num::NonZero::get);
    let ranks = plan.layout.ranks_of(step.own).len();
    let list = fs::read_to_string("/proc/cpuinfo").unwrap_or_default();
    let all = list
        .lines()
        .filter(|line| line.starts_with("processor"))
        .count();
    if step.own == 0 && std::env::var_os("SLURM_STEP_ID").is_some() && own < ranks.min(all) {
        print_error(format_args!(
            "muster run: {}: {ranks} ranks have {own} of {all} processors: that is what the step gives to its task \
             here; add -c {ranks} to srun's options",
            step.nodes[step.own]
        ));
    }
}

/// Puts the key among this launcher's files, where its agent finds it.
pub(super) fn keep_key(step: &Step, key: &[u8; 32]) -> Result<LockedDirectory, CliError> {
    let files = take_files(step)?;
    let left = leave_key(&files.path().join(KEY), key);
    left.map_err(|why| CliError::new("run: the job's key", why))?;
    Ok(files)
}

/// Its name can be guessed: where somebody else has made it, or has it lead elsewhere, it is another one.
fn take_files(step: &Step) -> Result<LockedDirectory, CliError> {
    let files = files(step);
    LockedDirectory::take_near(&files).map_err(|cause| match cause.kind() {
        std::io::ErrorKind::ResourceBusy => {
            let (job, node) = (&step.job, &step.nodes[step.own]);
            let why = format!(
                "another process launches job {job} on {node} already; give each muster run a MUSTER_JOB of its own"
            );
            CliError::new("run", why).exit_code(2)
        }
        _ => CliError::new(format!("run: {}", files.display()), cause),
    })
}

/// The directory of this launcher's files.
fn files(step: &Step) -> PathBuf {
    std::env::temp_dir().join(files_name(&step.job, step.own))
}

/// The second time, with everything in the environment. None if the node is lost, and not the job.
pub(super) fn serve(plan: &Plan, step: &Step) -> Result<Option<u8>, CliError> {
    let key = std::env::var_os(VARIABLE).unwrap_or_default();
    let files = match LockedDirectory::taken_over() {
        Some(files) => files,
        None => take_files(step)?,
    };
    // Where it cannot be, attaching says why.
    if let Ok(agent) = AgentDirectory::find(Some(&step.job), Some(&step.nodes[step.own]), None) {
        let _ = files.note_agent(&agent);
    }
    let remove_key = || {
        if key != NO_KEY {
            let _ = fs::remove_file(PathBuf::from(&key));
        }
    };
    say_what_is_bound(plan, step);
    let mut met = false;
    // Each has a copy by then. Whoever is first removes it: all of them may be killed at any time.
    let mut on_met = || {
        met = true;
        remove_key();
    };
    let outcome = node::run(plan, step.own, files.path(), &mut on_met);
    drop(files);
    remove_abandoned();
    if matches!(outcome, Err(Error::Taken { .. })) {
        return outcome.map_err(failed);
    }
    // Not while others have still to read it: these hear that the job has failed, and remove it then.
    if matches!(
        outcome,
        Err(Error::Missing { .. } | Error::LostEarly { .. })
    ) || step.own == 0 && (outcome.is_err() || !met)
    {
        // Who was asked to end by a signal was not asked alone.
        let is_ended = matches!(outcome, Ok(Some(status)) if status > 128);
        if !met && !is_ended {
            wait_for_latecomers(Path::new(&key));
        }
        remove_key();
    }
    outcome.map_err(failed)
}

/// Others may still have to read the key: without it they would wait for one, and not hear why the job has failed.
fn wait_for_latecomers(key: &Path) {
    let until = Instant::now() + LATECOMERS;
    while key.exists() && Instant::now() < until {
        std::thread::sleep(LOOK);
    }
}

/// What Slurm's plugin says is of its own agents; those of this job, behind a shell in such a step, meet elsewhere.
/// Only returns if there is nothing to forget, or if it fails.
pub(super) fn forget_the_plugin(arguments: &[OsString]) -> Result<(), CliError> {
    if !std::env::var("MUSTER_JOB").is_ok_and(|job| is_of_the_plugin(&job)) {
        return Ok(());
    }
    let failed = |cause| CliError::new("run: this program", cause);
    let mut command = Command::new(std::env::current_exe().map_err(failed)?);
    for name in ["MUSTER_JOB", "MUSTER_NODE", "MUSTER_HOSTS", "MUSTER_PORT"] {
        command.env_remove(name);
    }
    Err(failed(command.args(arguments).exec()))
}

/// Only returns if it fails. `own` has the key that the agent reads, `shared` is what is to be removed when all have
/// read it.
pub(super) fn execute(
    step: &Step,
    arguments: &[OsString],
    own: Option<&LockedDirectory>,
    shared: Option<&Path>,
) -> CliError {
    let mut command = match std::env::current_exe() {
        Ok(program) => Command::new(program),
        Err(cause) => return CliError::new("run: this program", cause),
    };
    let given = |name: &str| std::env::var_os(name).is_some_and(|value| !value.is_empty());
    let shared = shared.unwrap_or(Path::new(NO_KEY));
    command
        .args(arguments)
        .env(VARIABLE, shared)
        .env_remove(SPANK_KEY);
    if let Some(files) = own {
        command.env("MUSTER_KEY_FILE", files.path().join(KEY));
        if let Err(cause) = files.hand_over(&mut command) {
            return CliError::new("run: the lock of its files", cause);
        }
    }
    remove_abandoned();
    for (name, value) in [
        ("MUSTER_JOB", step.job.clone()),
        ("MUSTER_NODE", step.nodes[step.own].clone()),
        ("MUSTER_HOSTS", step.list.clone()),
        ("MUSTER_PORT", step.port.to_string()),
    ] {
        if !given(name) {
            command.env(name, value);
        }
    }
    if !given("MUSTER_LINGER_MS") {
        command.env("MUSTER_LINGER_MS", LINGER_MS);
    }
    CliError::new("run: this program", command.exec())
}
