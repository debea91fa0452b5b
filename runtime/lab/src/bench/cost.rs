//! Measures the costs of idle group members: CPU, wake-ups, bytes, memory.
//!
//! CPU time and wake-ups come from the scheduler, bytes on the wire from the members' interfaces, memory from the
//! kernel. Only the bytes "by own counters" are reported by a member itself; they are printed for comparison.

use super::figures::Metric;
use super::group::Group;
use super::launch;
use super::member::{GroupOptions, Member, Network};
use super::requests;
use clap::Args;
use muster_fabric::{Fabric, FabricConfig};
use muster_terminal::CliError;
use muster_terminal::process::{Process, wait_until};
use std::path::Path;
use std::process::Stdio;
use std::time::{Duration, Instant};

/// Time after which the activity that follows a boot has ended.
const SETTLE: Duration = Duration::from_secs(2);
const READY_DEADLINE: Duration = Duration::from_secs(30);
/// Maximum lifetime of a process that only opens rails, if it is not ended.
const OPEN_RAILS_TIME: Duration = Duration::from_secs(600);

/// A sample of a member's counters.
struct Sample {
    at: Instant,
    cpu_ns: u64,
    slices: u64,
    /// Bytes sent by its own counters, including IP and UDP.
    sent_counted: Option<u64>,
    /// Bytes sent by the counters of its interfaces.
    sent_on_wire: Option<u64>,
}

/// Leaves the group idle for this time, and adds the cost of each member to the figures.
pub(super) fn measure(group: &mut Group<'_>, quiet: Duration) {
    wait_until(SETTLE, || false);
    let directory = group.directory().to_owned();
    let in_namespaces = group.network() == Network::Namespace;
    let sample = |member: &Member| sample(member, &directory, in_namespaces);
    let before: Vec<Option<Sample>> = group.members.iter().map(sample).collect();
    wait_until(quiet, || false);
    let after: Vec<Option<Sample>> = group.members.iter().map(sample).collect();
    for (before, after) in before.iter().zip(&after) {
        let (Some(before), Some(after)) = (before, after) else {
            continue;
        };
        let seconds = (after.at - before.at).as_secs_f64();
        let mut rate = |metric, from: Option<u64>, to: Option<u64>, unit: f64| {
            if let (Some(from), Some(to)) = (from, to) {
                let grown = to.saturating_sub(from) as f64;
                group.figures.add(metric, grown / unit / seconds);
            }
        };
        if in_namespaces {
            let (from, to) = (before.sent_on_wire, after.sent_on_wire);
            rate(Metric::SentOnWire, from, to, 1.0);
            continue;
        }
        rate(Metric::Cpu, Some(before.cpu_ns), Some(after.cpu_ns), 1e6);
        rate(
            Metric::Wakeups,
            Some(before.slices),
            Some(after.slices),
            1.0,
        );
        rate(
            Metric::SentCounted,
            before.sent_counted,
            after.sent_counted,
            1.0,
        );
    }
    let memory: Vec<u64> = group
        .members
        .iter()
        .filter_map(|member| member.process()?.private_kb())
        .collect();
    for kb in memory.into_iter().filter(|_| !in_namespaces) {
        group.figures.add(Metric::Memory, kb as f64);
    }
}

fn sample(member: &Member, directory: &Path, in_namespaces: bool) -> Option<Sample> {
    let process = member.process()?;
    let (cpu_ns, slices) = process.schedule()?;
    Some(Sample {
        at: Instant::now(),
        cpu_ns,
        slices,
        sent_counted: if in_namespaces {
            None
        } else {
            requests::sent_counted(directory, &member.name)
        },
        sent_on_wire: process.sent_on("rail"),
    })
}

/// Private memory, in kB, of a process that has loaded libfabric and opened a member's rails, and does nothing else.
/// This part of a member's memory is not used by Muster itself.
pub(super) fn rails_alone_kb(options: &GroupOptions) -> Option<u64> {
    let mut command = launch::command(false, false);
    command.args([
        "--",
        std::env::current_exe().ok()?.to_str()?,
        "bench",
        "open-rails",
    ]);
    for rail in 0..options.rails {
        command.args(["--rail", &format!("{}@udp{rail}", options.address(1, rail))]);
    }
    let mut child = command
        .stdin(Stdio::null())
        .stdout(Stdio::null())
        .stderr(Stdio::null())
        .spawn()
        .ok()?;
    let process = Process::find(child.id())?;
    // The process is ready when its memory does not grow any more.
    let mut last = None;
    let settled = wait_until(READY_DEADLINE, || {
        std::thread::sleep(Duration::from_millis(300));
        let now = process.private_kb();
        let is_open = process.open_files() > 8 && now == last;
        last = now;
        is_open
    });
    let _ = child.kill();
    let _ = child.wait();
    last.filter(|_| settled)
}

/// Options of `muster bench open-rails`.
#[derive(Args)]
pub(crate) struct OpenRailsArgs {
    #[arg(long = "rail")]
    rails: Vec<String>,
}

/// Opens rails and waits until it is ended.
pub(super) fn open_rails(args: &OpenRailsArgs) -> Result<(), CliError> {
    let failed = |why: String| CliError::new("bench: cannot open the rails", why);
    let libfabric = muster_fabric::load().map_err(|error| failed(error.to_string()))?;
    let rails =
        muster_config::parse_rails(&args.rails).map_err(|error| failed(error.to_string()))?;
    let config = FabricConfig::new(libfabric, rails);
    let fabric = Fabric::open(&config).map_err(|error| failed(error.to_string()))?;
    std::thread::sleep(OPEN_RAILS_TIME);
    drop(fabric);
    Ok(())
}
