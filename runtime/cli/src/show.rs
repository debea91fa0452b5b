//! `muster members` and `muster why`, and what all commands that ask an agent share: the request and its errors.

use super::agents::{self, AgentArgs};
use super::answer::{Shape, align, array, print_answer, text};
use super::names;
use super::sockets::no_agent;
use clap::Args;
use muster_control::explanation::{self, ranges};
use muster_control::unreachable::obstacles;
use muster_control::{AskError, Question, Request, request};
use muster_hostlist::{by_number, fold};
use muster_terminal::CliError;
use muster_terminal::paint;
use serde_json::Value;
use std::collections::BTreeMap;
use std::io::ErrorKind;
use std::path::Path;

/// Longest time-out that is accepted, in seconds: one year.
pub(super) const TIMEOUT_MAX_S: u64 = 31_536_000;

/// Options of every command that prints an agent's answer.
#[derive(Args)]
pub(crate) struct ShowArgs {
    #[command(flatten)]
    pub(super) agent: AgentArgs,
    /// Output format.
    #[arg(short, long, value_name = "FORMAT", default_value = "table")]
    pub(super) output: Shape,
}

/// Options of `muster members`.
#[derive(Args)]
pub(crate) struct MembersArgs {
    /// Only these members, such as n[1-4].
    #[arg(value_name = "NAMES")]
    only: Vec<String>,
    /// Only members in one of these states, separated by commas.
    #[arg(short, long, value_name = "STATES", value_delimiter = ',',
        value_parser = ["alive", "degraded", "suspect", "failed", "left", "unknown"])]
    state: Vec<String>,
    /// One row for each state, with the names folded: n[01-04,07].
    #[arg(short, long)]
    fold: bool,
    /// The nodes of this zone of the job, in place of the members of the agent's own zone.
    #[arg(long, value_name = "ZONE")]
    zone: Option<String>,
    #[command(flatten)]
    show: ShowArgs,
}

/// Options of `muster why`.
#[derive(Args)]
pub(crate) struct WhyArgs {
    /// The member's name, or a rank's number.
    #[arg(value_name = "NAME|RANK")]
    name: String,
    #[command(flatten)]
    show: ShowArgs,
}

/// Runs `muster members`.
pub(crate) fn members(args: &MembersArgs) -> Result<(), CliError> {
    let names = names::members("members", &args.only)?;
    let key = if args.zone.is_some() {
        "nodes"
    } else {
        "members"
    };
    let question = args.zone.clone().map_or(Question::Members, Question::Zone);
    let mut answer = ask(&args.show, &Request::Ask(question))?;
    args.choose(key, &names, &mut answer)?;
    if args.zone.is_some() && !args.fold {
        print_answer(args.show.output, &answer, |answer| {
            paint::table(&zone_table(answer), &paint::STATES, paint::is_coloured())
        });
        return Ok(());
    }
    let table = if args.fold {
        folded_table
    } else {
        members_table
    };
    print_answer(args.show.output, &answer, |answer| {
        paint::table(&table(answer), &paint::STATES, paint::is_coloured()) + &notes(answer)
    });
    Ok(())
}

impl MembersArgs {
    /// Keeps the wanted members, sorted by name with numbers in numeric order.
    fn choose(&self, key: &str, names: &[String], answer: &mut Value) -> Result<(), CliError> {
        let Some(members) = answer[key].as_array_mut() else {
            return Ok(());
        };
        let is_known = |name: &&String| members.iter().any(|one| text(one, "name") == *name);
        let unknown = names.iter().filter(|name| !is_known(name));
        let unknown: Vec<&str> = unknown.map(String::as_str).collect();
        if !unknown.is_empty() {
            let why = format!("no member named {} is known", fold(unknown));
            return Err(CliError::new("members", why).hint("muster members shows all"));
        }
        members.retain(|member| {
            let (name, state) = (text(member, "name"), text(member, "state"));
            let is_named = names.is_empty() || names.iter().any(|one| one == name);
            is_named && (self.state.is_empty() || self.state.iter().any(|one| one == state))
        });
        members.sort_by(|one, other| by_number(text(one, "name"), text(other, "name")));
        Ok(())
    }
}

fn folded_table(answer: &Value) -> String {
    let mut states: BTreeMap<(&str, String), Vec<&Value>> = BTreeMap::new();
    let members = array(answer, "members").iter();
    for member in members.chain(array(answer, "nodes")) {
        let (state, cause) = (text(member, "state"), text(member, "cause"));
        let cause = match state == "left" && !explanation::failed_ranks(member).is_empty() {
            true => format!("{cause}, after a rank failed"),
            false => cause.to_owned(),
        };
        let key = (state, cause);
        states.entry(key).or_default().push(member);
    }
    let mut rows = vec![["NAMES", "STATE", "COUNT", "RANKS", "CAUSE"].map(String::from)];
    for ((state, cause), members) in states {
        let ranks = members.iter().flat_map(|member| array(member, "ranks"));
        let mut ranks: Vec<u64> = ranks.filter_map(|fact| fact["rank"].as_u64()).collect();
        ranks.sort_unstable();
        rows.push([
            fold(members.iter().map(|member| text(member, "name"))),
            state.to_owned(),
            members.len().to_string(),
            ranges(&ranks),
            cause,
        ]);
    }
    align(&rows)
}

/// The nodes of a zone.
fn zone_table(answer: &Value) -> String {
    let mut rows = vec![["NAME", "STATE", "CAUSE", "RANKS REPORTED"].map(String::from)];
    for node in array(answer, "nodes") {
        let ranks = array(node, "ranks").iter().map(|rank| {
            let (state, cause) = (text(rank, "state"), text(rank, "cause"));
            format!("{} {state} ({cause})", rank["rank"])
        });
        let cause = node["cause"].as_str().unwrap_or("-");
        rows.push([
            text(node, "name").to_owned(),
            text(node, "state").to_owned(),
            cause.to_owned(),
            ranks.collect::<Vec<_>>().join(", "),
        ]);
    }
    align(&rows)
}

/// Runs `muster why NAME` or `muster why RANK`.
pub(crate) fn why(args: &WhyArgs) -> Result<(), CliError> {
    let question = Question::Why(names::one("why", &args.name)?);
    show(&args.show, &question, |member| {
        text(member, "explanation").to_owned()
    })
}

/// Sends the request and prints the answer.
pub(super) fn show(
    args: &ShowArgs,
    question: &Question,
    table: fn(&Value) -> String,
) -> Result<(), CliError> {
    let answer = ask(args, &Request::Ask(question.clone()))?;
    print_answer(args.output, &answer, table);
    Ok(())
}

/// Requests a change from the agent and prints what was done.
pub(super) fn change(args: &ShowArgs, request: &Request) -> Result<(), CliError> {
    let answer = ask(args, request)?;
    print_answer(args.output, &answer, |answer| {
        format!("{}\n", text(answer, "done"))
    });
    Ok(())
}

/// Requests an answer from the chosen agent.
pub(super) fn ask(args: &ShowArgs, what: &Request) -> Result<Value, CliError> {
    let path = agents::find(&args.agent)?;
    request(&path, what).map_err(request_error)
}

/// Converts the error of a request, with its exit code.
pub(super) fn request_error(error: AskError) -> CliError {
    match error {
        AskError::NoAgent { ref cause, .. } if cause.kind() == ErrorKind::PermissionDenied => {
            CliError::new("not allowed", error).denied()
        }
        AskError::NoAgent { .. } => no_agent(error.to_string()),
        AskError::NoAnswer { .. } => CliError::timed_out("no answer", error),
        AskError::Denied { .. } => CliError::new("not allowed", error).denied(),
        AskError::Skewed { .. } => CliError::new("another release", error),
        AskError::Busy { .. } | AskError::Refused { .. } => CliError::new("refused", error),
    }
}

/// Converts the error of a request to an agent that answered before: an agent that is gone has ended.
pub(super) fn repeated_request_error(path: &Path, error: AskError) -> CliError {
    match error {
        AskError::NoAnswer { ref cause, .. } if cause.kind() != ErrorKind::UnexpectedEof => {
            request_error(error)
        }
        AskError::NoAgent { .. } | AskError::NoAnswer { .. } => agents::ended(path),
        error => request_error(error),
    }
}

/// Explains why HEARD of alive members may be older than their deadline; empty if it is not.
pub(super) fn note_unwatched(members: &[Value]) -> String {
    let is_old = |member: &&Value| {
        let ms = |key: &str| member[key].as_f64().unwrap_or(0.0);
        text(member, "state") == "alive" && ms("heard_ms_ago") > ms("deadline_ms")
    };
    let names: Vec<&str> = members
        .iter()
        .filter(is_old)
        .map(|one| text(one, "name"))
        .collect();
    match names.is_empty() {
        true => String::new(),
        false => format!(
            "\n{}: HEARD is older than the deadline, since this node does not watch them all the time; other \
             members do, and report a failure\n",
            fold(names)
        ),
    }
}

/// The nodes of other zones, in numbers: they are not in the table. Empty in a job of one zone.
fn note_outside(outside: &Value) -> String {
    let counts = outside["counts"].as_object().into_iter().flatten();
    let counts = counts.map(|(state, number)| format!("{number} {state}"));
    let counts: Vec<String> = counts.collect();
    match counts.is_empty() {
        true => String::new(),
        false => format!("\nother zones: {} (muster zones)\n", counts.join(", ")),
    }
}

/// The notes below the table: the nodes of other zones, why HEARD is old, and which members are unreachable.
fn notes(answer: &Value) -> String {
    let unwatched = note_unwatched(array(answer, "members"));
    let notes = obstacles(answer).into_iter();
    let notes = notes.map(|one| format!("\n{}\n  remedy: {}\n", one.found, one.remedy));
    note_outside(&answer["outside"]) + &unwatched + &notes.collect::<String>()
}

fn members_table(answer: &Value) -> String {
    let mut rows =
        vec![["NAME", "STATE", "RANKS", "HEARD", "HOW KNOWN", "RAILS"].map(String::from)];
    for member in array(answer, "members") {
        let heard = member["heard_ms_ago"]
            .as_f64()
            .map_or("-".into(), |ms| format!("{ms:.0} ms"));
        let marker = if member["self"] == true { " *" } else { "" };
        rows.push([
            format!("{}{marker}", text(member, "name")),
            text(member, "state").to_owned(),
            explanation::ranks(member),
            heard,
            explanation::known(member),
            text(member, "address").to_owned(),
        ]);
    }
    align(&rows)
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    #[test]
    fn an_old_heard_of_an_alive_member_is_explained() {
        let member = |name: &str, state: &str, heard_ms: f64| {
            json!({
                "name": name, "state": state, "heard_ms_ago": heard_ms, "deadline_ms": 62.0
            })
        };
        let well = [member("n1", "alive", 20.0), member("n2", "failed", 900.0)];
        assert_eq!(note_unwatched(&well), "");
        let old = [
            member("n3", "alive", 2411.0),
            member("n4", "alive", 2000.0),
            member("n5", "alive", 9.0),
        ];
        assert!(note_unwatched(&old).starts_with("\nn[3-4]: HEARD is older"));
    }

    #[test]
    fn the_nodes_of_other_zones_are_counted_below_the_table() {
        assert_eq!(note_outside(&Value::Null), "");
        let outside = json!({ "counts": { "alive": 1, "failed": 2 }, "nodes": [] });
        let expected = "\nother zones: 1 alive, 2 failed (muster zones)\n";
        assert_eq!(note_outside(&outside), expected);
    }

    #[test]
    fn the_table_has_each_member_and_how_its_state_is_known() {
        let answer = json!({ "members": [
            { "name": "n1", "self": true, "state": "alive", "cause": "joined", "address": "a@udp0",
              "ranks": [{"rank": 0}, {"rank": 1}], "reporters": [] },
            { "name": "n22", "self": false, "state": "failed", "cause": "silence on every rail",
              "heard_ms_ago": 61.2, "address": "b@udp0", "ranks": [], "reporters": ["n1", "n2", "n3"] },
        ]});
        let expected = "\
NAME  STATE   RANKS  HEARD  HOW KNOWN                         RAILS
n1 *  alive   0-1    -      joined                            a@udp0
n22   failed  -      61 ms  silence on every rail, by n[1-3]  b@udp0
";
        let folded = |text: &str| {
            text.lines()
                .map(|l| l.split_whitespace().collect::<Vec<_>>().join(" "))
                .collect::<Vec<_>>()
        };
        assert_eq!(folded(&members_table(&answer)), folded(expected));
    }
}
