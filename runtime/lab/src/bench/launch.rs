//! `muster bench launch`: starts a program that ends when the bench does, whatever ends it.
//!
//! A bench that is killed cannot clean up. So each of its processes goes through here first: it
//! asks the kernel for SIGKILL at its parent's end, waits for its network if it has one of its
//! own, and becomes the program. A namespace has no name and lives as long as its process.

use clap::Args;
use muster_terminal::CliError;
use muster_terminal::process::monotonic_ns;
use rustix::process::{Signal, getppid, set_parent_process_death_signal};
use std::io::BufRead;
use std::os::unix::process::CommandExt;
use std::path::PathBuf;
use std::process::Command;

/// What a program says that waits for its network.
pub(super) const WAITS: &str = "WAITS";

/// Options of `muster bench launch`.
#[derive(Args)]
pub(crate) struct LaunchArgs {
    /// The process whose end ends this one.
    #[arg(long)]
    parent: i32,
    /// Wait for a line on standard input, then let `ip -batch` read this file.
    #[arg(long)]
    network: Option<PathBuf>,
    /// The program and its arguments.
    #[arg(last = true, required = true)]
    program: Vec<String>,
}

/// The beginning of a command line; `--network FILE`, then `--` and the program follow. To be
/// spawned from the main thread: the kernel watches the thread that forks.
pub(super) fn command(own_network: bool, unprivileged: bool) -> Command {
    let own = std::env::current_exe().unwrap_or_else(|_| PathBuf::from("muster"));
    let mut words: Vec<&str> = Vec::new();
    if own_network {
        words.extend(["unshare", "--net", "--"]);
    }
    if unprivileged {
        words.extend([
            "setpriv",
            "--bounding-set=-sys_nice",
            "--inh-caps=-sys_nice",
            "--",
        ]);
    }
    let mut command = match words.split_first() {
        Some((first, rest)) => {
            let mut command = Command::new(first);
            command.args(rest).arg(own);
            command
        }
        None => Command::new(own),
    };
    let parent = std::process::id().to_string();
    command.args(["bench", "launch", "--parent", &parent]);
    command
}

/// Becomes the program; returns only if that fails.
pub(super) fn run(args: &LaunchArgs) -> Result<(), CliError> {
    let failed = |why: &dyn std::fmt::Display| CliError::new("bench: cannot launch", why);
    set_parent_process_death_signal(Some(Signal::KILL)).map_err(|e| failed(&e))?;
    // A parent that ended before the request would never be noticed.
    if getppid().map(|pid| pid.as_raw_nonzero().get()) != Some(args.parent) {
        return Err(failed(&"the bench has ended"));
    }
    if let Some(file) = &args.network {
        println!("{WAITS} network {}", monotonic_ns());
        let mut line = String::new();
        let length = std::io::stdin().lock().read_line(&mut line);
        if length.map_err(|e| failed(&e))? == 0 {
            return Err(failed(&"the bench gave up"));
        }
        let status = Command::new("ip").arg("-batch").arg(file).status();
        if !status.map_err(|e| failed(&e))?.success() {
            return Err(failed(&format!("ip -batch {} failed", file.display())));
        }
    }
    let Some((program, arguments)) = args.program.split_first() else {
        return Err(failed(&"no program was named"));
    };
    Err(failed(&Command::new(program).args(arguments).exec()))
}
