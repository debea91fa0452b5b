//! `muster events`: prints the agent's past conclusions and, with --follow, its new ones.

use super::agents;
use super::answer::{Shape, counted, text};
use super::names;
use super::show::{ShowArgs, TIMEOUT_MAX_S, request_error};
use super::yaml::Yaml;
use clap::Args;
use muster_control::explanation::after_failure;
use muster_control::{Followed, Follower};
use muster_hostlist::fold;
use muster_terminal::paint;
use muster_terminal::{CliError, print_error};
use serde_json::Value;
use std::collections::BTreeSet;
use std::time::{Duration, Instant};

/// Options of `muster events`.
#[derive(Args)]
pub(crate) struct EventsArgs {
    /// Print new events too, until the agent ends or the command is interrupted.
    #[arg(short, long)]
    follow: bool,
    /// Only events after this sequence number.
    #[arg(long, value_name = "SEQ", default_value_t = 0)]
    since: u64,
    /// Only events about these members, such as n[1-4].
    #[arg(long, value_name = "NAMES")]
    member: Vec<String>,
    /// Only events about these ranks, such as 0-3,7; the end of a node is about its ranks too.
    #[arg(long, value_name = "RANKS")]
    rank: Vec<String>,
    /// End after this number of events.
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u64).range(1..))]
    count: Option<u64>,
    /// End after this time; exit code 5 if there were fewer than --count events.
    #[arg(long, value_name = "SECONDS", value_parser = clap::value_parser!(u64).range(..=TIMEOUT_MAX_S))]
    timeout: Option<u64>,
    #[command(flatten)]
    show: ShowArgs,
}

/// Runs `muster events`.
pub(crate) fn run(args: &EventsArgs) -> Result<(), CliError> {
    let wanted = Wanted::read(args)?;
    let path = agents::find(&args.show.agent)?;
    let end = args
        .timeout
        .map(|seconds| Instant::now() + Duration::from_secs(seconds));
    let mut follower = Follower::open(&path, args.since, args.follow).map_err(request_error)?;
    let lost = follower.head["lost"].as_u64().unwrap_or(0);
    if lost > 0 {
        let lost = counted(usize::try_from(lost).unwrap_or(usize::MAX), "earlier event");
        print_error(format_args!(
            "muster events: the agent no longer has {lost}; its journal may have more"
        ));
    }
    let coloured = paint::is_coloured();
    let mut seen = 0;
    while args.count.is_none_or(|count| seen < count) {
        match follower.next(end).map_err(request_error)? {
            Followed::Event(event) if !wanted.has(&event) => {}
            Followed::Event(event) => {
                print(&event, args.show.output, coloured);
                seen += 1;
            }
            // The reader of standard output has gone.
            _ if muster_terminal::is_output_over() => return Ok(()),
            Followed::Late if args.count.is_some() => {
                let why = format!("{seen} events within {} s", args.timeout.unwrap_or(0));
                return Err(CliError::timed_out("events", why));
            }
            Followed::Late => return Ok(()),
            Followed::Ended if args.follow => {
                return Err(agents::ended(&path));
            }
            Followed::Ended => return Ok(()),
        }
        if muster_terminal::is_output_over() {
            return Ok(());
        }
    }
    Ok(())
}

/// The members and ranks that events must be about; empty selects all.
#[derive(Default)]
struct Wanted {
    members: BTreeSet<String>,
    ranks: BTreeSet<u64>,
}

impl Wanted {
    fn read(args: &EventsArgs) -> Result<Self, CliError> {
        let mut wanted = Self {
            members: names::members("events --member", &args.member)?
                .into_iter()
                .collect(),
            ranks: BTreeSet::new(),
        };
        for text in &args.rank {
            wanted.ranks.extend(names::ranks("events --rank", text)?);
        }
        Ok(wanted)
    }

    fn has(&self, event: &Value) -> bool {
        let all = |one: &str, list: &str| -> Vec<Value> {
            let list = event[list].as_array().into_iter().flatten();
            list.chain([&event[one]]).cloned().collect()
        };
        let of_members = || all("member", "members");
        let is_member = |one: &Value| one.as_str().is_some_and(|name| self.members.contains(name));
        let is_rank = |one: &Value| one.as_u64().is_some_and(|rank| self.ranks.contains(&rank));
        (self.members.is_empty() || of_members().iter().any(is_member))
            && (self.ranks.is_empty() || all("rank", "ranks").iter().any(is_rank))
    }
}

fn print(event: &Value, output: Shape, coloured: bool) {
    match output {
        Shape::Table => println!("{}", line(event, coloured)),
        Shape::Json => println!("{event}"),
        Shape::Yaml => print!("---\n{}", Yaml(event)),
    }
}

/// An event as a line: time, event, member or rank, and how it is known.
pub(crate) fn line(event: &Value, coloured: bool) -> String {
    let what = text(event, "event");
    let padded = format!("{what:<15}");
    let about = match event["rank"].as_u64() {
        Some(rank) => format!("rank {rank} on {}", text(event, "member")),
        None => text(event, "member").to_owned(),
    };
    let time = text(event, "time");
    let painted = paint::state(&padded, state_of(what), coloured);
    let line = format!("{time}  {painted}  {about:<16}  {}", known(event));
    line.trim_end().to_owned()
}

/// The name of a member that the agent does not know.
const UNNAMED: &str = "?";

/// How an event is known, as text.
pub(crate) fn known(event: &Value) -> String {
    let mut parts = Vec::new();
    let names = |key: &str| -> Vec<&str> {
        let names = event[key].as_array().into_iter().flatten();
        names.filter_map(Value::as_str).collect()
    };
    if let Some(cause) = event["cause"].as_str() {
        parts.push(cause.to_owned());
    }
    let failed = event["failed_ranks"].as_array().into_iter().flatten();
    let failed: Vec<u64> = failed.filter_map(Value::as_u64).collect();
    for (key, label) in [
        ("signal", "signal"),
        ("exit_code", "exit code"),
        ("setting", "setting"),
        ("own", "here"),
        ("other", "there"),
    ] {
        // The agent's exit code 0 would read as an orderly end of ranks that failed.
        let is_misleading = key == "exit_code" && !failed.is_empty() && event[key] == 0;
        if !event[key].is_null() && !is_misleading {
            parts.push(format!(
                "{label} {}",
                event[key].to_string().trim_matches('"')
            ));
        }
    }
    parts.extend(after_failure(&failed));
    if let Some(ms) = event["silent_ms"].as_f64() {
        parts.push(format!("silent for {ms:.1} ms"));
    }
    parts.extend(reported_by(&names("reporters")));
    let members = names("members");
    if !members.is_empty() {
        parts.push(format!("all of {}", fold(members)));
    }
    if let (Some(reached), Some(of)) = (event["reached"].as_u64(), event["of"].as_u64()) {
        parts.push(format!("{reached} of {of} members"));
    }
    if let Some(job) = event["job"].as_str() {
        parts.push(format!("job {job}"));
    }
    parts.join(", ")
}

/// `by n[1-2] and 1 unknown`: the agent may not know the names of some reporters any more.
fn reported_by(reporters: &[&str]) -> Option<String> {
    let is_known = |name: &&&str| **name != UNNAMED;
    let known: Vec<&str> = reporters.iter().filter(is_known).copied().collect();
    match (known.len(), reporters.len() - known.len()) {
        (0, 0) => None,
        (0, unknown) => Some(format!("by {unknown} unknown")),
        (_, 0) => Some(format!("by {}", fold(known))),
        (_, unknown) => Some(format!("by {} and {unknown} unknown", fold(known))),
    }
}

fn state_of(what: &str) -> &str {
    match what {
        "node-up" | "node-recovered" | "rank-up" | "majority" => "alive",
        "node-degraded" | "node-suspect" | "rank-hung" => "degraded",
        "node-failed" | "rank-failed" | "group-failed" | "outcast" | "minority"
        | "node-refused" => "failed",
        other => other,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    #[test]
    fn events_are_selected_by_member_and_rank() {
        let wanted = |members: &[&str], ranks: &[u64]| Wanted {
            members: members.iter().map(|name| (*name).to_owned()).collect(),
            ranks: ranks.iter().copied().collect(),
        };
        let died = json!({ "member": "n1", "rank": 3 });
        let lost = json!({ "member": "n2", "ranks": [4, 5] });
        let group = json!({ "member": "n2", "members": ["n2", "n3"] });
        for (wanted, has) in [
            (wanted(&[], &[]), [true, true, true]),
            (wanted(&["n1"], &[]), [true, false, false]),
            (wanted(&["n3"], &[]), [false, false, true]),
            (wanted(&[], &[3, 5]), [true, true, false]),
            (wanted(&["n2"], &[3, 5]), [false, true, false]),
        ] {
            assert_eq!([&died, &lost, &group].map(|event| wanted.has(event)), has);
        }
    }

    #[test]
    fn an_event_is_a_line_with_all_its_facts() {
        let event = json!({ "time": "T", "event": "node-failed", "member": "n4", "cause": "silence on every rail",
            "silent_ms": 60.12, "reporters": ["n1", "n2", "n3"] });
        assert_eq!(
            line(&event, false),
            "T  node-failed      n4                silence on every rail, silent for 60.1 ms, by n[1-3]"
        );
        let event = json!({ "time": "T", "event": "rank-failed", "member": "n3", "rank": 5,
            "cause": "kernel futex", "signal": 9, "reporters": [] });
        assert!(line(&event, false).ends_with("rank 5 on n3      kernel futex, signal 9"));
        assert!(line(&event, true).contains("\x1b[31mrank-failed"));
        let left = |failed: &[u32]| {
            json!({ "time": "T", "event": "node-left", "member": "n2", "cause": "announced", "exit_code": 0,
                "failed_ranks": failed, "reporters": [] })
        };
        assert!(line(&left(&[]), false).ends_with("announced, exit code 0"));
        assert!(line(&left(&[1]), false).ends_with("announced, after rank 1 failed"));
    }

    #[test]
    fn reporters_without_a_name_are_counted() {
        for (reporters, expected) in [
            (&[][..], None),
            (&["n2", "n1"], Some("by n[1-2]")),
            (&["?", "?", "n3"], Some("by n3 and 2 unknown")),
            (&["?"], Some("by 1 unknown")),
        ] {
            assert_eq!(reported_by(reporters).as_deref(), expected);
        }
    }
}
