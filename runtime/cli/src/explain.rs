//! `muster explain`: shows the path that the next message takes, and the reason against each other path.

use super::answer::{align, array, text};
use super::names;
use super::rails::{class, credits};
use super::show::{ShowArgs, show};
use clap::Args;
use muster_control::Question;
use muster_terminal::CliError;
use serde_json::Value;
use std::fmt::Write as _;

/// Options of `muster explain`.
#[derive(Args)]
#[command(override_usage = "muster explain [OPTIONS] [FROM] TO")]
pub(crate) struct ExplainArgs {
    /// TO is a member's name or one of its NIDs, FROM the agent's own name or one of its rails.
    #[arg(value_name = "FROM TO", num_args = 1..=2, required = true)]
    ends: Vec<String>,
    #[command(flatten)]
    show: ShowArgs,
}

/// Runs `muster explain [FROM] TO`.
pub(crate) fn run(args: &ExplainArgs) -> Result<(), CliError> {
    let ends: Vec<String> = args
        .ends
        .iter()
        .map(|end| names::one("explain", end))
        .collect::<Result<_, _>>()?;
    let mut ends = ends.into_iter().rev();
    let question = Question::Explain {
        to: ends.next().unwrap_or_default(),
        from: ends.next(),
    };
    show(&args.show, &question, table)
}

fn table(answer: &Value) -> String {
    let nids: Vec<&str> = array(answer, "nids")
        .iter()
        .filter_map(Value::as_str)
        .collect();
    let to = answer["to"]
        .as_str()
        .map_or_else(|| nids.join(","), str::to_owned);
    let taken = &answer["taken"];
    let mut lines_out = match taken.is_object() {
        true => format!(
            "{} -> {to}: {} -> {}{}\n",
            text(answer, "from"),
            text(taken, "local"),
            text(taken, "remote"),
            array(answer, "rails")
                .iter()
                .find(|rail| rail["taken"] == true)
                .map_or(String::new(), class)
        ),
        false => format!("{} -> {to}: no path\n", text(answer, "from")),
    };
    let pair = &answer["pair"];
    if pair.is_object() {
        let end = |side: &str| pair[side].as_str().unwrap_or("any").to_owned();
        let verdict = verdict(pair);
        let _ = writeln!(
            lines_out,
            "{} -> {}: {verdict}",
            end("local"),
            end("remote")
        );
    }
    lines_out += &relay_lines(&answer["relay"]);
    let titles = [
        "SIDE", "NID", "STATE", "HEALTH", "CREDITS", "QUEUED", "VERDICT",
    ];
    let mut rows = vec![titles.map(String::from)];
    for (side, key) in [("local", "rails"), ("remote", "remotes")] {
        for one in array(answer, key) {
            let figure = |key: &str| {
                one[key]
                    .as_u64()
                    .map_or("-".into(), |figure| figure.to_string())
            };
            rows.push([
                side.to_owned(),
                text(one, "nid").to_owned(),
                text(one, "state").to_owned(),
                figure("health"),
                credits(one),
                figure("queued_bytes"),
                verdict(one),
            ]);
        }
    }
    lines_out + &align(&rows)
}

/// The relays that the message takes too, and the reasons against the other relays.
fn relay_lines(relay: &Value) -> String {
    if !relay.is_object() {
        return String::new();
    }
    let because = text(relay, "because");
    if relay["off"] == true {
        return format!("no relay, though {because}: relaying is off (muster policy relay on)\n");
    }
    let name = |one: &Value| {
        let name = one["name"].as_str();
        name.unwrap_or_else(|| text(one, "nid")).to_owned()
    };
    let members = array(relay, "members");
    let taken: Vec<String> = members
        .iter()
        .filter(|one| one["taken"] == true)
        .map(name)
        .collect();
    let mut lines_out = match taken.is_empty() {
        true => format!("no relay, since no member can relay, though {because}\n"),
        false => format!("through {}, since {because}\n", taken.join(" and ")),
    };
    for one in members.iter().filter(|one| one["taken"] != true) {
        let _ = writeln!(lines_out, "  {}: {}", name(one), verdict(one));
    }
    lines_out
}

fn verdict(one: &Value) -> String {
    match (one["taken"] == true, one["why"].as_str()) {
        (true, _) => "taken".to_owned(),
        (false, Some(why)) => format!("not taken, since {why}"),
        (false, None) => "not taken".to_owned(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    #[test]
    fn the_pair_and_the_reasons_are_printed() {
        let answer = json!({
            "from": "n1", "to": "n2", "taken": { "local": "a@udp0", "remote": "c@udp0" },
            "pair": { "local": "b@udp1", "remote": null, "taken": false, "why": "it is silent" },
            "rails": [
                { "nid": "a@udp0", "taken": true, "state": "active", "health": 1000,
                  "traffic_class": "low-latency", "credits": { "now": 1, "least": 0, "most": 2 }, "queued_bytes": 7 },
                { "nid": "b@udp1", "taken": false, "why": "it is silent" },
            ],
            "remotes": [{ "nid": "c@udp0", "taken": true }],
        });
        let lines_out = table(&answer);
        let lines: Vec<&str> = lines_out.lines().collect();
        assert_eq!(lines[0], "n1 -> n2: a@udp0 -> c@udp0 (low-latency)");
        assert_eq!(lines[1], "b@udp1 -> any: not taken, since it is silent");
        let words: Vec<&str> = lines[3].split_whitespace().collect();
        assert_eq!(
            words,
            ["local", "a@udp0", "active", "1000", "1/0/2", "7", "taken"]
        );
        assert_eq!(lines.len(), 6, "{lines_out}");
    }

    #[test]
    fn the_relays_and_the_reasons_are_printed() {
        let mut answer = json!({
            "from": "n1", "to": "n2", "taken": null,
            "relay": {
                "because": "no direct pair works", "off": false,
                "members": [
                    { "name": "n3", "nid": "c@udp0", "taken": true },
                    { "name": null, "nid": "d@udp0", "taken": false, "why": "it is slow" },
                ],
            },
        });
        let lines_out = table(&answer);
        let expected = "n1 -> n2: no path\nthrough n3, since no direct pair works\n  \
                        d@udp0: not taken, since it is slow\n";
        assert!(lines_out.starts_with(expected), "{lines_out}");
        answer["relay"]["off"] = true.into();
        assert!(table(&answer).contains("no relay, though no direct pair works: relaying is off"));
        answer["relay"]["off"] = false.into();
        answer["relay"]["members"] = json!([]);
        assert!(table(&answer).contains("no member can relay"));
    }
}
