//! `muster stats --per memory`: what the processes of an agent hold in memory, by kind.
//!
//! The kernel knows it: `/proc/PID/smaps` lists each mapping with its resident and its private pages. This process
//! reads it, not the agent, whose loop has better things to do. Only the agent's own user and root may.

use super::answer::{align, array, print_answer, text};
use super::show::{ShowArgs, ask};
use muster_control::{Question, Request};
use muster_terminal::CliError;
use muster_terminal::process::Process;
use serde_json::{Value, json};
use std::collections::BTreeMap;
use std::fs;

/// A guard page below the stack of a thread, in bytes.
const GUARD: u64 = 4096;

/// Memory in kB.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
struct Held {
    /// In memory, shared pages included.
    resident: u64,
    /// Written to, and shared with no other process.
    private: u64,
}

/// Runs `muster stats --per memory`.
pub(super) fn run(args: &ShowArgs) -> Result<(), CliError> {
    let about = ask(args, &Request::Ask(Question::About))?;
    let pid = about["pid"]
        .as_u64()
        .and_then(|pid| u32::try_from(pid).ok());
    let worker = pid.and_then(Process::find);
    let worker = worker.ok_or_else(|| {
        let why = format!(
            "the agent has process {}, which does not run here",
            about["pid"]
        );
        CliError::new("stats --per memory", why)
            .hint("ask it on its own node, outside of containers")
    })?;
    let mut processes =
        vec![json!({ "process": "worker", "pid": worker.pid, "kinds": kinds(worker.pid)? })];
    // An agent without ranks runs without a supervisor.
    let parent = worker
        .parent()
        .filter(|parent| program(*parent) == program(worker.pid));
    if let Some(pid) = parent {
        processes.push(json!({ "process": "supervisor", "pid": pid, "kinds": kinds(pid)? }));
    }
    let answer =
        json!({ "schema": "muster/memory/v1", "node": about["node"], "processes": processes });
    print_answer(args.output, &answer, table);
    Ok(())
}

/// The program that a process runs.
fn program(pid: u32) -> Option<String> {
    let path = fs::read_link(format!("/proc/{pid}/exe")).ok()?;
    Some(path.to_string_lossy().into_owned())
}

/// What a process holds, by kind; the kind with the most private memory first.
fn kinds(pid: u32) -> Result<Vec<Value>, CliError> {
    let path = format!("/proc/{pid}/smaps");
    let maps = fs::read_to_string(&path).map_err(|cause| {
        CliError::new(&path, cause).hint("run it as the agent's user, or as root")
    })?;
    let program = program(pid).unwrap_or_default();
    let mut kinds: Vec<_> = by_kind(&maps, &program).into_iter().collect();
    kinds.sort_by_key(|(kind, held)| (std::cmp::Reverse(held.private), *kind));
    let value = |(kind, held): (&str, Held)| {
        let Held { resident, private } = held;
        json!({ "kind": kind, "resident_kb": resident, "private_kb": private })
    };
    Ok(kinds.into_iter().map(value).collect())
}

/// Sums the mappings in the text of `smaps`.
fn by_kind(maps: &str, program: &str) -> BTreeMap<&'static str, Held> {
    let mut kinds: BTreeMap<&'static str, Held> = BTreeMap::new();
    let (mut kind, mut guard_end) = ("other", None);
    for line in maps.lines() {
        let mut words = line.split_whitespace();
        let (Some(first), Some(second)) = (words.next(), words.next()) else {
            continue;
        };
        let figure = || second.parse::<u64>().unwrap_or(0);
        match first {
            "Rss:" => kinds.entry(kind).or_default().resident += figure(),
            "Private_Dirty:" => kinds.entry(kind).or_default().private += figure(),
            _ => {
                if let Some((from, to)) = range(first) {
                    let path = words.nth(3).unwrap_or("");
                    let is_stack = guard_end == Some(from) && path.is_empty();
                    kind = if is_stack {
                        "stacks"
                    } else {
                        kind_of(path, program)
                    };
                    guard_end = (second.starts_with("---p") && to - from == GUARD).then_some(to);
                }
            }
        }
    }
    kinds.retain(|_, held| *held != Held::default());
    kinds
}

/// The addresses of a mapping: `7f00-7f10`.
fn range(word: &str) -> Option<(u64, u64)> {
    let (from, to) = word.split_once('-')?;
    let number = |text| u64::from_str_radix(text, 16).ok();
    Some((number(from)?, number(to)?))
}

fn kind_of(path: &str, program: &str) -> &'static str {
    match path {
        "" | "[heap]" => "heap and buffers",
        "[stack]" => "stacks",
        _ if path == program => "program",
        _ if path.contains(".so") => "libraries",
        _ if path.starts_with("/dev/shm/") || path.starts_with("/memfd:") => "state table",
        _ => "other",
    }
}

fn table(answer: &Value) -> String {
    let mut rows = vec![["PROCESS", "PID", "KIND", "RESIDENT KB", "PRIVATE KB"].map(String::from)];
    for process in array(answer, "processes") {
        let name = text(process, "process").to_owned();
        let mut sum = Held::default();
        for kind in array(process, "kinds") {
            let figure = |key: &str| kind[key].as_u64().unwrap_or(0);
            let (resident, private) = (figure("resident_kb"), figure("private_kb"));
            sum.resident += resident;
            sum.private += private;
            let kind = text(kind, "kind").to_owned();
            rows.push([
                name.clone(),
                process["pid"].to_string(),
                kind,
                resident.to_string(),
                private.to_string(),
            ]);
        }
        let (resident, private) = (sum.resident.to_string(), sum.private.to_string());
        rows.push([
            name,
            process["pid"].to_string(),
            "all".to_owned(),
            resident,
            private,
        ]);
    }
    align(&rows)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn mappings_are_summed_by_kind() {
        let maps = "\
55d0-55e0 r-xp 00000000 08:01 12 /usr/bin/musterd
Rss:                 100 kB
Private_Dirty:         0 kB
55e0-55f0 rw-p 00010000 08:01 12 /usr/bin/musterd
Rss:                   8 kB
Private_Dirty:         8 kB
6000-7000 rw-p 00000000 00:00 0 [heap]
Rss:                  40 kB
Private_Dirty:        40 kB
7000-8000 ---p 00000000 00:00 0
Rss:                   0 kB
Private_Dirty:         0 kB
8000-9000 rw-p 00000000 00:00 0
Rss:                  12 kB
Private_Dirty:        12 kB
9000-a000 rw-p 00000000 00:00 0
Rss:                  16 kB
Private_Dirty:        16 kB
a000-b000 r--p 00000000 08:01 14 /usr/lib/libfabric.so.1
Rss:                  24 kB
Private_Dirty:         4 kB
b000-c000 rw-s 00000000 00:01 15 /dev/shm/muster-1
Rss:                   4 kB
Private_Dirty:         0 kB
";
        let held = |resident, private| Held { resident, private };
        let expected = [
            ("heap and buffers", held(56, 56)),
            ("libraries", held(24, 4)),
            ("program", held(108, 8)),
            ("stacks", held(12, 12)),
            ("state table", held(4, 0)),
        ];
        assert_eq!(by_kind(maps, "/usr/bin/musterd"), BTreeMap::from(expected));
    }
}
