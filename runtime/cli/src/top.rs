//! `muster top`: shows the members and rails of a job repeatedly.
//!
//! On a terminal it is a screen with keys ([`top_screen`]); elsewhere refreshes follow each other, and without a number
//! there is one.

use super::agents::{self, AgentArgs};
use super::answer::{Shape, align, array, print_answer, text};
use super::show::{note_unwatched, repeated_request_error, request_error};
use super::top_screen;
use super::top_zones as zones;
use clap::Args;
use muster_control::{AskError, Question, ask, explanation};
use muster_hostlist::by_number;
use muster_terminal::CliError;
use muster_terminal::paint;
use serde_json::{Value, json};
use std::io::{IsTerminal, stdout};
use std::path::Path;
use std::time::{Duration, Instant};

/// Options of `muster top`.
#[derive(Args)]
pub(crate) struct TopArgs {
    /// Seconds between two refreshes, and the interval of rates.
    #[arg(short, long, value_name = "SECONDS", default_value_t = 1.0, value_parser = delay)]
    delay: f64,
    /// Number of refreshes [default: unlimited on a terminal, else 1].
    #[arg(short, long, value_name = "N", value_parser = clap::value_parser!(u64).range(1..))]
    number: Option<u64>,
    /// Maximum rows of members, and of zones in the table; those that are not alive come first.
    #[arg(long, value_name = "N", default_value_t = 20)]
    most: u64,
    #[command(flatten)]
    agent: AgentArgs,
    /// Output format.
    #[arg(short, long, value_name = "FORMAT", default_value = "table")]
    output: Shape,
}

/// Runs `muster top`.
pub(crate) fn run(args: &TopArgs) -> Result<(), CliError> {
    let path = agents::find(&args.agent)?;
    let is_screen = stdout().is_terminal() && matches!(args.output, Shape::Table);
    let mut before = Snapshot::take(&path, None).map_err(request_error)?;
    if is_screen {
        let delay = Duration::from_secs_f64(args.delay);
        let mut look = |zone: Option<&str>| {
            let now = Snapshot::take(&path, zone);
            let now = now.map_err(|error| repeated_request_error(&path, error))?;
            let picture = now.since(&before, usize::MAX);
            before = now;
            Ok(picture)
        };
        return top_screen::run(&path, delay, args.number.unwrap_or(u64::MAX), &mut look);
    }
    for _ in 0..args.number.unwrap_or(1) {
        std::thread::sleep(Duration::from_secs_f64(args.delay));
        let now = Snapshot::take(&path, None);
        let now = now.map_err(|error| repeated_request_error(&path, error))?;
        let most = usize::try_from(args.most).unwrap_or(usize::MAX);
        let answer = now.since(&before, most);
        let coloured = paint::is_coloured();
        print_answer(args.output, &answer, |answer| draw(answer, most, coloured));
        if muster_terminal::is_output_over() {
            return Ok(());
        }
        before = now;
    }
    Ok(())
}

fn delay(text: &str) -> Result<f64, String> {
    let seconds = text
        .parse()
        .ok()
        .filter(|seconds| (0.1..=3600.0).contains(seconds));
    seconds.ok_or_else(|| "it is not a number from 0.1 to 3600".into())
}

/// The agent's answers at one moment.
struct Snapshot {
    at: Instant,
    about: Value,
    members: Value,
    rails: Value,
    stats: Value,
    /// The zones of the job; null if it is not divided.
    zones: Value,
    /// The nodes of another zone that are shown in place of the members; else null.
    nodes: Value,
}

impl Snapshot {
    /// Asks the agent. In a job with zones the shown nodes are those of `zone`; without one, those of the agent's zone.
    fn take(path: &Path, zone: Option<&str>) -> Result<Self, AskError> {
        let get = |question| ask(path, &question);
        // A job that is not divided refuses the question.
        let if_any = |question| match get(question) {
            Err(AskError::Refused { .. }) => Ok(Value::Null),
            answer => answer,
        };
        let zones = if_any(Question::Zones)?;
        let other = zone.filter(|zone| zones["zone"] != **zone);
        Ok(Self {
            at: Instant::now(),
            nodes: match other {
                Some(zone) => if_any(Question::Zone(zone.to_owned()))?,
                None => Value::Null,
            },
            zones,
            about: get(Question::About)?,
            members: get(Question::Members)?,
            rails: get(Question::Rails)?,
            stats: get(Question::Stats)?,
        })
    }

    /// The JSON answer, with rates since an earlier look.
    fn since(&self, before: &Self, most: usize) -> Value {
        let seconds = (self.at - before.at).as_secs_f64();
        let rails: Vec<Value> = array(&self.rails, "rails")
            .iter()
            .map(|rail| {
                let then = array(&before.rails, "rails")
                    .iter()
                    .find(|one| one["nid"] == rail["nid"]);
                let rate = |key: &str| {
                    let earlier = then.and_then(|then| then[key].as_u64()).unwrap_or(0);
                    rail[key].as_u64().unwrap_or(0).saturating_sub(earlier) as f64 / seconds
                };
                json!({ "nid": rail["nid"], "state": rail["state"], "health": rail["health"],
                "sends_s": rate("sends"), "send_bytes_s": rate("send_bytes"),
                "receives_s": rate("receives"), "receive_bytes_s": rate("receive_bytes"),
                "timeouts": rail["timeouts"] })
            })
            .collect();
        let of_zone = self.nodes["nodes"].as_array();
        let mut members = match of_zone {
            Some(nodes) => nodes.clone(),
            None => array(&self.members, "members").to_vec(),
        };
        let place = |member: &Value| match text(member, "state") {
            "failed" => 0,
            "suspect" => 1,
            "degraded" => 2,
            "alive" => 3,
            _ => 4,
        };
        members.sort_by(|a, b| {
            let by_name = by_number(text(a, "name"), text(b, "name"));
            place(a).cmp(&place(b)).then(by_name)
        });
        let counted = |state: &str| {
            members
                .iter()
                .filter(|one| text(one, "state") == state)
                .count()
        };
        let counts = json!({ "alive": counted("alive"), "degraded": counted("degraded"),
            "suspect": counted("suspect"), "failed": counted("failed"), "left": counted("left") });
        let is_base = |zone: &&Value| zone["level"] == 0;
        let zones: Vec<&Value> = array(&self.zones, "zones").iter().filter(is_base).collect();
        let all = members.len();
        members.truncate(most);
        json!({
            "schema": "muster/top/v1",
            "node": self.about["node"],
            "job": self.about["job"],
            "real_time": self.about["real_time"],
            "lateness_ms": self.stats["lateness_ms"],
            "seconds": seconds,
            "counts": counts,
            "zones": zones,
            "zone": if of_zone.is_some() { &self.nodes["zone"] } else { &self.zones["zone"] },
            "known": all,
            "members": members,
            "rails": rails,
        })
    }
}

fn draw(answer: &Value, most: usize, coloured: bool) -> String {
    let priority = match answer["real_time"] == true {
        true => "real-time",
        false => "no real-time priority",
    };
    let lateness = answer["lateness_ms"].as_f64().unwrap_or(0.0);
    let mut text_out = format!(
        "{} of job {}: {priority}, timers {lateness:.1} ms late\n",
        text(answer, "node"),
        text(answer, "job")
    );
    let counts = ["alive", "degraded", "suspect", "failed", "left"].map(|state| {
        let count = answer["counts"][state].as_u64().unwrap_or(0);
        let state_now = if count > 0 { state } else { "-" };
        paint::state(&format!("{count} {state}"), state_now, coloured)
    });
    let mut of = String::new();
    if !array(answer, "zones").is_empty() {
        text_out += &(zones::table(answer, most, coloured) + "\n");
        of = format!(" of zone {}", text(answer, "zone"));
    }
    text_out += &format!("members{of}: {}\n\n", counts.join(", "));
    let mut rows =
        vec![["NAME", "STATE", "RANKS", "HEARD", "DEADLINE", "HOW KNOWN"].map(String::from)];
    for member in array(answer, "members") {
        let ms = |key: &str| {
            member[key]
                .as_f64()
                .map_or("-".into(), |ms| format!("{ms:.0} ms"))
        };
        let marker = if member["self"] == true { " *" } else { "" };
        rows.push([
            format!("{}{marker}", text(member, "name")),
            text(member, "state").to_owned(),
            explanation::ranks(member),
            ms("heard_ms_ago"),
            ms("deadline_ms"),
            explanation::known(member),
        ]);
    }
    text_out += &paint::table(&align(&rows), &paint::STATES, coloured);
    let (shown, known) = (
        array(answer, "members").len() as u64,
        answer["known"].as_u64(),
    );
    if let Some(more) = known
        .and_then(|known| known.checked_sub(shown))
        .filter(|more| *more > 0)
    {
        text_out += &format!("and {more} more\n");
    }
    text_out += &note_unwatched(array(answer, "members"));
    text_out + "\n" + &draw_rails(answer, coloured)
}

fn draw_rails(answer: &Value, coloured: bool) -> String {
    let titles = [
        "RAIL",
        "STATE",
        "HEALTH",
        "SENT/S",
        "BYTES/S",
        "RECEIVED/S",
        "BYTES/S",
        "TIMEOUTS",
    ];
    let mut rows = vec![titles.map(String::from)];
    for rail in array(answer, "rails") {
        // A rail that is not open has no counters.
        let count = |key: &str| {
            rail[key]
                .as_u64()
                .map_or("-".into(), |count| count.to_string())
        };
        let rate = |key: &str| format!("{:.0}", rail[key].as_f64().unwrap_or(0.0));
        rows.push([
            text(rail, "nid").to_owned(),
            text(rail, "state").to_owned(),
            count("health"),
            rate("sends_s"),
            rate("send_bytes_s"),
            rate("receives_s"),
            rate("receive_bytes_s"),
            count("timeouts"),
        ]);
    }
    paint::table(&align(&rows), &["active", "degraded", "failed"], coloured)
}
