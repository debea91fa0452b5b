//! The launcher of a node of a Slurm step, or of a host.
//!
//! Agents find each other by variables of their environment. A process cannot safely change its own environment, so the
//! launcher executes this program again with a new one.

use super::{ONE_ZONE, failed};
use crate::node::Control;
use crate::{Error, Plan, StartError, Step, files_name, is_of_the_plugin, node};
use muster_client::SPANK_KEY;
use muster_config::{leave_key, read_key_file};
use muster_ipc::AgentDirectory;
use muster_ipc::locked_directory::{LockedDirectory, remove_abandoned};
use muster_terminal::{CliError, print_error};
use std::ffi::OsString;
use std::fs;
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::{Duration, Instant};

/// Set in the second execution: the file of the key if this process must remove it, else [`NO_KEY`].
pub(super) const VARIABLE: &str = "MUSTER_RUN_STEP";
/// Not an empty value, since an empty variable counts as not set.
const NO_KEY: &str = "-";
/// Name of the key's file in a launcher's directory.
const KEY: &str = "key";
/// Default time that agents stay after their launcher. It is short, since the step is over then.
const LINGER_MS: &str = "300";

/// How long the key of a job that has failed stays, for launchers that have not read it yet.
const KEY_READ_TIME: Duration = Duration::from_secs(5);
/// Interval between two checks whether one of them has removed the key.
const POLL_INTERVAL: Duration = Duration::from_millis(50);

/// Runs this node's part of the step and returns its exit status.
pub(super) fn run(plan: &Plan, step: &Step, arguments: &[OsString]) -> Result<u8, CliError> {
    if std::env::var_os(VARIABLE).is_some() {
        let control = Control::new().map_err(failed)?;
        let outcome = serve(plan, step, &control)?;
        return Ok(outcome.unwrap_or(node::OUTCAST));
    }
    let is_set = |name: &str| std::env::var_os(name).is_some_and(|value| !value.is_empty());
    if is_set("MUSTER_KEY_FILE") {
        return Err(execute(step, arguments, None, None));
    }
    let home = std::env::var_os("HOME").map_or_else(std::env::temp_dir, PathBuf::from);
    let refused = |why: String| CliError::new("run: key of the job", why);
    let shared = step.key(&home, plan.timeout).map_err(refused)?;
    let key = read_key_file(&shared).map_err(|why| refused(why.to_string()))?;
    let own = keep_key(step, &key).inspect_err(|_| {
        // The first launcher has created the file.
        if step.own == 0 {
            let _ = fs::remove_file(&shared);
        }
    })?;
    Err(execute(step, arguments, Some(&own), Some(&shared)))
}

/// Warns if the step has fewer processors than ranks. A site that binds tasks gives a step with one task per node one
/// core of the node, unless more are requested.
fn warn_of_few_processors(plan: &Plan, step: &Step) {
    let own = std::thread::available_parallelism().map_or(1, std::num::NonZero::get);
    let ranks = plan.layout.ranks_of(step.own).len();
    let list = fs::read_to_string("/proc/cpuinfo").unwrap_or_default();
    let all = list
        .lines()
        .filter(|line| line.starts_with("processor"))
        .count();
    if step.own == 0 && std::env::var_os("SLURM_STEP_ID").is_some() && own < ranks.min(all) {
        print_error(format_args!(
            "muster run: {}: {ranks} ranks have {own} of {all} processors, since the step gives its task \
             here no more; add -c {ranks} to srun's options",
            step.nodes[step.own]
        ));
    }
}

/// Writes the key into this launcher's directory, where its agent finds it.
pub(super) fn keep_key(step: &Step, key: &[u8; 32]) -> Result<LockedDirectory, CliError> {
    let files = take_files(step)?;
    let left = leave_key(&files.path().join(KEY), key);
    left.map_err(|why| CliError::new("run: key of the job", why))?;
    Ok(files)
}

/// Takes the directory of this launcher's files. Its name can be guessed: if another user has created it, or it is a
/// link, another name near it is taken.
fn take_files(step: &Step) -> Result<LockedDirectory, CliError> {
    let files = files(step);
    LockedDirectory::take_near(&files).map_err(|cause| match cause.kind() {
        std::io::ErrorKind::ResourceBusy => {
            let (job, node) = (&step.job, &step.nodes[step.own]);
            let why = format!(
                "another process launches job {job} on {node} already; set a different MUSTER_JOB for each muster run"
            );
            CliError::new("run", why).exit_code(2)
        }
        _ => CliError::new(format!("run: {}", files.display()), cause),
    })
}

/// The preferred directory of this launcher's files.
fn files(step: &Step) -> PathBuf {
    std::env::temp_dir().join(files_name(&step.job, step.own))
}

/// The second execution, with a complete environment. None if the node is lost but the job is not.
pub(super) fn serve(plan: &Plan, step: &Step, control: &Control) -> Result<Option<u8>, CliError> {
    let key = std::env::var_os(VARIABLE).unwrap_or_default();
    let files = match LockedDirectory::taken_over() {
        Some(files) => files,
        None => take_files(step)?,
    };
    // If there is no directory, attaching reports why.
    if let Ok(agent) = AgentDirectory::find(Some(&step.job), Some(&step.nodes[step.own]), None) {
        let _ = files.note_agent(&agent);
    }
    let remove_key = || {
        if key != NO_KEY {
            let _ = fs::remove_file(PathBuf::from(&key));
        }
    };
    warn_of_few_processors(plan, step);
    let mut all_joined = false;
    // Each launcher has read the key by then. The first one to get here removes it, since any of them may be killed.
    let mut on_joined = || {
        all_joined = true;
        remove_key();
    };
    let outcome = node::run(plan, step.own, files.path(), control, &mut on_joined);
    drop(files);
    remove_abandoned();
    if matches!(outcome, Err(Error::Taken { .. })) {
        return outcome.map_err(failed);
    }
    // Otherwise launchers may still have to read the key. They learn that the job has failed, and remove it then.
    if matches!(
        outcome,
        Err(Error::Start(
            StartError::Missing { .. } | StartError::LostEarly { .. }
        ))
    ) || step.own == 0 && (outcome.is_err() || !all_joined)
    {
        // A signal that ended this launcher was sent to all.
        let is_signalled = matches!(outcome, Ok(Some(status)) if status > 128);
        if !all_joined && !is_signalled {
            wait_for_key_readers(Path::new(&key));
        }
        remove_key();
    }
    outcome.map_err(failed)
}

/// Waits until the key is removed, for a limited time. Without the key, other launchers would wait for one instead of
/// learning why the job has failed.
fn wait_for_key_readers(key: &Path) {
    let until = Instant::now() + KEY_READ_TIME;
    while key.exists() && Instant::now() < until {
        std::thread::sleep(POLL_INTERVAL);
    }
}

/// Removes the variables of Slurm's plugin, which are for the agents of the plugin; the agents of this job, started
/// from a shell in such a step, form another group. Returns only if there is nothing to remove, or if the execution
/// fails.
pub(super) fn remove_plugin_variables(arguments: &[OsString]) -> Result<(), CliError> {
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

/// Executes this program again with the complete environment. Returns only on failure. `own` has the key that the agent
/// reads; `shared` is the key file to remove when all have read it.
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
    let is_set = |name: &str| std::env::var_os(name).is_some_and(|value| !value.is_empty());
    let shared = shared.unwrap_or(Path::new(NO_KEY));
    command
        .args(arguments)
        .env(VARIABLE, shared)
        .env_remove(SPANK_KEY);
    if let Some(files) = own {
        command.env("MUSTER_KEY_FILE", files.path().join(KEY));
        if let Err(cause) = files.hand_over(&mut command) {
            return CliError::new("run: lock of the directory", cause);
        }
    }
    remove_abandoned();
    for (name, value) in [
        ("MUSTER_JOB", step.job.clone()),
        ("MUSTER_NODE", step.nodes[step.own].clone()),
        ("MUSTER_HOSTS", step.list.clone()),
        ("MUSTER_PORT", step.port.to_string()),
        ("MUSTER_ZONES", ONE_ZONE.to_owned()),
    ] {
        if !is_set(name) {
            command.env(name, value);
        }
    }
    if !is_set("MUSTER_LINGER_MS") {
        command.env("MUSTER_LINGER_MS", LINGER_MS);
    }
    CliError::new("run: this program", command.exec())
}
