//! `muster bench launch`: executes a program that ends when the bench ends, for any reason.
//!
//! A bench that is killed cannot clean up. So each of its processes starts here: it requests SIGKILL from the kernel
//! for the end of its parent, waits for its network if it has its own, and executes the program. A network namespace
//! without a name exists as long as its process.

use clap::Args;
use muster_terminal::CliError;
use muster_terminal::process::monotonic_ns;
use rustix::process::{Signal, getppid, set_parent_process_death_signal};
use std::io::BufRead;
use std::os::unix::process::CommandExt;
use std::path::PathBuf;
use std::process::Command;

/// First word of the line that a process prints while it waits for its network.
pub(super) const WAITS: &str = "WAITS";

/// Options of `muster bench launch`.
#[derive(Args)]
pub(crate) struct LaunchArgs {
    /// The process whose end ends this one.
    #[arg(long)]
    parent: i32,
    /// Wait for a line on standard input, then execute this file with `ip -batch`.
    #[arg(long)]
    network: Option<PathBuf>,
    /// The program and its arguments.
    #[arg(last = true, required = true)]
    program: Vec<String>,
}

/// The first part of a command line; `--network FILE`, then `--` and the program follow. The process must be spawned
/// from the main thread, since the kernel watches the thread that forks.
pub(super) fn command(own_network: bool, unprivileged: bool) -> Command {
    let own = std::env::current_exe().unwrap_or_else(|_| PathBuf::from("muster"));
    let mut prefix: Vec<&str> = Vec::new();
    if own_network {
        prefix.extend(["unshare", "--net", "--"]);
    }
    if unprivileged {
        prefix.extend([
            "setpriv",
            "--bounding-set=-sys_nice",
            "--inh-caps=-sys_nice",
            "--",
        ]);
    }
    let mut command = match prefix.split_first() {
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

/// Executes the program. Returns only if that fails.
pub(super) fn run(args: &LaunchArgs) -> Result<(), CliError> {
    let failed = |why: &dyn std::fmt::Display| CliError::new("bench: cannot launch", why);
    set_parent_process_death_signal(Some(Signal::KILL)).map_err(|e| failed(&e))?;
    // If the parent ended before the request, the kernel would not report its end.
    if getppid().map(|pid| pid.as_raw_nonzero().get()) != Some(args.parent) {
        return Err(failed(&"the bench has ended"));
    }
    if let Some(file) = &args.network {
        println!("{WAITS} network {}", monotonic_ns());
        let mut line = String::new();
        let length = std::io::stdin().lock().read_line(&mut line);
        if length.map_err(|e| failed(&e))? == 0 {
            return Err(failed(&"the bench closed the standard input"));
        }
        let status = Command::new("ip").arg("-batch").arg(file).status();
        if !status.map_err(|e| failed(&e))?.success() {
            return Err(failed(&format!("ip -batch {} failed", file.display())));
        }
    }
    let Some((program, arguments)) = args.program.split_first() else {
        return Err(failed(&"no program was given; name it after --"));
    };
    Err(failed(&Command::new(program).args(arguments).exec()))
}
