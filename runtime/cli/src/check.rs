//! `muster check`: one verdict about a job, for operators, schedulers and monitoring.

use super::agents::{self, AgentArgs};
use super::answer::{Shape, array, print_answer, text};
use super::show::request_error;
use clap::Args;
use muster_control::explanation::{failed_ranks, ranges};
use muster_control::{Question, ask};
use muster_hostlist::fold;
use muster_terminal::paint;
use muster_terminal::{CliError, Refusal};
use serde_json::{Value, json};
use std::collections::BTreeMap;
use std::process::ExitCode;

/// Options of `muster check`.
#[derive(Args)]
pub(crate) struct CheckArgs {
    /// One line with performance data, and the exit codes of monitoring plugins: 0 OK, 1 WARNING,
    /// 2 CRITICAL, 3 UNKNOWN.
    #[arg(long)]
    nagios: bool,
    /// WARNING if fewer members than this are alive.
    #[arg(long, value_name = "N")]
    members: Option<u64>,
    #[command(flatten)]
    agent: AgentArgs,
    /// Output format.
    #[arg(
        short,
        long,
        value_name = "FORMAT",
        default_value = "table",
        conflicts_with = "nagios"
    )]
    output: Shape,
}

/// The verdicts; the index is the exit code of a monitoring plugin.
const VERDICTS: [&str; 4] = ["OK", "WARNING", "CRITICAL", "UNKNOWN"];

/// Runs `muster check`. The exit code is 0, or 4 if anything is not well.
pub(crate) fn run(args: &CheckArgs) -> Result<(), CliError> {
    let found = look(args);
    if args.nagios {
        let (code, line) = match &found {
            Ok(found) => (found["code"].as_u64().unwrap_or(3), plugin_line(found)),
            Err(error) => (3, format!("MUSTER UNKNOWN - {}", one_line(error))),
        };
        println!("{line}");
        return match code {
            0 => Ok(()),
            code => Err(CliError::silent(code as u8)),
        };
    }
    let found = found?;
    let coloured = paint::is_coloured();
    print_answer(args.output, &found, |found| {
        let verdict = text(found, "verdict");
        let painted = paint::state(verdict, &verdict.to_lowercase(), coloured);
        let mut lines = format!("{painted}: {}\n", text(found, "summary"));
        for (state, ranks) in found["ranks"].as_object().into_iter().flatten() {
            let ranks = ranks.as_array().into_iter().flatten();
            let ranks: Vec<u64> = ranks.filter_map(Value::as_u64).collect();
            if !ranks.is_empty() {
                lines += &format!("ranks {state}: {}\n", ranges(&ranks));
            }
        }
        for (state, names) in found["others"].as_object().into_iter().flatten() {
            let names = names
                .as_array()
                .into_iter()
                .flatten()
                .filter_map(Value::as_str);
            lines += &format!("{state}: {}\n", fold(names));
        }
        let names = array(found, "left_after_failure");
        if !names.is_empty() {
            let names = names.iter().filter_map(Value::as_str);
            lines += &format!("left after a rank failed: {}\n", fold(names));
        }
        lines
    });
    match found["code"] == 0 {
        true => Ok(()),
        false => Err(CliError::silent(4)),
    }
}

/// An error on the one line of a plugin: its first line and its remedy, without a list of jobs between them. A bar
/// would start performance data.
fn one_line(error: &CliError) -> String {
    let text = error.to_string().replace('|', " ");
    let (what, hint) = text.split_once("\nhint: ").unwrap_or((&text, ""));
    let what = what.lines().next().unwrap_or_default();
    let what = what.trim_end_matches(':');
    match hint.is_empty() {
        true => what.to_owned(),
        false => format!("{what}; {}", hint.replace('\n', " ")),
    }
}

/// Whether this process was started as a monitoring plugin, even if other options are wrong.
pub(super) fn is_plugin() -> bool {
    let mut words = std::env::args_os().skip(1);
    words.next().is_some_and(|word| word == "check") && words.any(|word| word == "--nagios")
}

/// Reports wrong usage as a plugin must: with UNKNOWN. The usual exit code of wrong usage, 2, means CRITICAL for a
/// plugin.
pub(super) fn refuse_as_plugin(refusal: &Refusal) -> ExitCode {
    let why = format!("{}: {}; {}", refusal.what, refusal.why, refusal.remedy);
    let why = why.replace(['\n', '|'], " ");
    println!("MUSTER UNKNOWN - wrong usage: {why}");
    ExitCode::from(3)
}

fn look(args: &CheckArgs) -> Result<Value, CliError> {
    let path = agents::find(&args.agent)?;
    let answer = ask(&path, &Question::Members).map_err(request_error)?;
    Ok(judge(&answer, args.members))
}

/// Judges the members. Failed members or ranks are critical, and so is an outcast agent, since its view may be wrong.
/// Hung ranks, and members that are neither alive nor gone, are a warning.
fn judge(answer: &Value, least: Option<u64>) -> Value {
    let states = ["alive", "degraded", "suspect", "failed", "left", "unknown"];
    let mut counts: BTreeMap<&str, u64> = states.map(|state| (state, 0)).into();
    let mut others: BTreeMap<String, Vec<String>> = BTreeMap::new();
    let (mut failed, mut hung): (Vec<u64>, Vec<u64>) = (Vec::new(), Vec::new());
    let mut left_after_failure = Vec::new();
    // Of the nodes of other zones only those are listed that are not alive; all are counted.
    let outside = &answer["outside"];
    for (state, number) in outside["counts"].as_object().into_iter().flatten() {
        if let Some(count) = counts
            .get_mut(state.as_str())
            .filter(|_| state != "unknown")
        {
            *count += number.as_u64().unwrap_or_default();
        }
    }
    let own = array(answer, "members").iter().map(|member| (member, true));
    let others_zones = array(outside, "nodes").iter().map(|node| (node, false));
    for (member, is_counted) in own.chain(others_zones) {
        let (name, state) = (text(member, "name"), text(member, "state"));
        if let Some(count) = counts.get_mut(state).filter(|_| is_counted) {
            *count += 1;
        }
        if !["alive", "left"].contains(&state) {
            others
                .entry(state.to_owned())
                .or_default()
                .push(name.to_owned());
        }
        if state == "left" && !failed_ranks(member).is_empty() {
            left_after_failure.push(name.to_owned());
        }
        for rank in array(member, "ranks") {
            let number = rank["rank"].as_u64();
            match text(rank, "state") {
                "failed" => failed.extend(number),
                "alive" | "hung" if state == "failed" => failed.extend(number),
                "hung" => hung.extend(number),
                _ => {}
            }
        }
    }
    failed.sort_unstable();
    hung.sort_unstable();
    let (ranks_failed, hung_ranks) = (failed.len() as u64, hung.len() as u64);
    let there = counts["alive"] + counts["degraded"];
    let too_few = least.is_some_and(|least| there < least);
    let is_outcast = answer["outcast"] == true;
    let code = if is_outcast || counts["failed"] + ranks_failed > 0 {
        2
    } else if hung_ranks + counts["degraded"] + counts["suspect"] + counts["unknown"] > 0 || too_few
    {
        1
    } else {
        0
    };
    // A node that left after its ranks failed counts as missing, like a failed node.
    let left_failed = left_after_failure.len() as u64;
    let of = there + counts["suspect"] + counts["failed"] + left_failed;
    let mut summary = format!("{} of {of} members alive", counts["alive"]);
    for (count, what) in [
        (counts["degraded"], "degraded"),
        (counts["suspect"], "suspect"),
        (counts["failed"], "failed"),
        (left_failed, "left after a rank failed"),
        (ranks_failed, "rank failed"),
        (hung_ranks, "rank hung"),
    ] {
        if count > 0 {
            let what = if count > 1 && what.starts_with("rank ") {
                what.replace("rank ", "ranks ")
            } else {
                what.to_owned()
            };
            summary += &format!(", {count} {what}");
        }
    }
    if is_outcast {
        let node = text(answer, "self");
        summary += &format!(
            " in the view of {node}, which the other members have declared failed (outcast)"
        );
    }
    if let Some(least) = least.filter(|_| too_few) {
        summary += &format!(", {least} expected");
    }
    json!({
        "schema": "muster/check/v1",
        "verdict": VERDICTS[code],
        "code": code,
        "summary": summary,
        "members": counts,
        "failed_ranks": ranks_failed,
        "hung_ranks": hung_ranks,
        "outcast": is_outcast,
        "ranks": { "failed": failed, "hung": hung },
        "others": others,
        "left_after_failure": left_after_failure,
        "least": least,
    })
}

/// `MUSTER OK - 4 of 4 members alive | alive=4 degraded=0 ...`
fn plugin_line(found: &Value) -> String {
    let mut line = format!(
        "MUSTER {} - {} |",
        text(found, "verdict"),
        text(found, "summary")
    );
    for state in ["alive", "degraded", "suspect", "failed", "left"] {
        line += &format!(" {state}={}", found["members"][state]);
        // A range as in the plugin guidelines: warn below the number.
        if let ("alive", Some(least)) = (state, found["least"].as_u64()) {
            line += &format!(";{least}:");
        }
    }
    line + &format!(
        " failed_ranks={} hung_ranks={}",
        found["failed_ranks"], found["hung_ranks"]
    )
}

#[cfg(test)]
mod tests {
    use super::*;

    fn judged(members: &Value, least: Option<u64>) -> (u64, String) {
        let found = judge(&json!({ "members": members }), least);
        (found["code"].as_u64().unwrap(), plugin_line(&found))
    }

    #[test]
    fn an_error_of_a_plugin_is_one_line_without_the_list_of_jobs() {
        let several = CliError::new(
            "several agents run here",
            "choose one:\n  run-7: a|b\n  run-8",
        );
        assert_eq!(one_line(&several), "several agents run here: choose one");
        let with_hint = several.hint("name one");
        assert_eq!(
            one_line(&with_hint),
            "several agents run here: choose one; name one"
        );
    }

    /// An outcast may see only itself. That is not OK.
    #[test]
    fn the_view_of_an_outcast_is_critical() {
        let alone = json!([{ "name": "n2", "state": "alive", "ranks": [] }]);
        let judged = |outcast: bool| {
            judge(
                &json!({ "self": "n2", "outcast": outcast, "members": alone }),
                None,
            )
        };
        assert_eq!(judged(false)["verdict"], "OK");
        let found = judged(true);
        assert_eq!(found["verdict"], "CRITICAL");
        assert_eq!(
            found["summary"],
            "1 of 1 members alive in the view of n2, which the other members have declared failed (outcast)"
        );
    }

    #[test]
    fn a_verdict_is_the_worst_state_found() {
        let member = |name: &str, state: &str, rank: &str| {
            let rank = json!({ "rank": 1, "state": rank });
            json!({ "name": name, "state": state, "ranks": [rank] })
        };
        let well = json!([member("n1", "alive", "alive"), member("n2", "left", "left")]);
        assert_eq!(
            judged(&well, None),
            (
                0,
                "MUSTER OK - 1 of 1 members alive | alive=1 degraded=0 suspect=0 failed=0 left=1 \
                 failed_ranks=0 hung_ranks=0"
                    .into()
            )
        );
        let died = json!([
            member("n1", "alive", "alive"),
            member("n2", "left", "failed")
        ]);
        let found = judge(&json!({ "members": died }), None);
        assert_eq!(
            (&found["summary"], &found["left_after_failure"]),
            (
                &json!("1 of 2 members alive, 1 left after a rank failed, 1 rank failed"),
                &json!(["n2"])
            )
        );
        let (code, line) = judged(&well, Some(2));
        assert!(
            code == 1 && line.contains("2 expected") && line.contains("alive=1;2: "),
            "{line}"
        );
        for (member, code, expected) in [
            (member("n1", "degraded", "alive"), 1, "1 degraded"),
            (member("n1", "suspect", "alive"), 1, "1 suspect"),
            (member("n1", "alive", "hung"), 1, "1 rank hung"),
            (member("n1", "alive", "failed"), 2, "1 rank failed"),
            (
                member("n1", "failed", "alive"),
                2,
                "1 failed, 1 rank failed",
            ),
        ] {
            let (found, line) = judged(&json!([member]), None);
            assert!(found == code && line.contains(expected), "{line}");
        }
    }
}
