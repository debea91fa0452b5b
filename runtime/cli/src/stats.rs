//! `muster stats`: shows the counters of the agent, or of nets, rails, peers or NIDs, as totals or as rates.

use super::answer::{align, array, print_answer, text};
use super::memory;
use super::peers;
use super::rails::{self, dropped};
use super::show::{ShowArgs, ask, change, show};
use clap::{Args, ValueEnum};
use muster_control::{Question, Request};
use muster_terminal::CliError;
use serde_json::{Value, json};
use std::time::{Duration, Instant};

/// Options of `muster stats`.
#[derive(Args)]
pub(crate) struct StatsArgs {
    /// Show counters of the agent as a whole, or of each of these.
    #[arg(long, value_name = "WHAT", default_value = "agent")]
    per: Per,
    /// Show rates per second, measured over this time in milliseconds; for rails and nets.
    #[arg(long, value_name = "MS", value_parser = clap::value_parser!(u64).range(1..=60_000))]
    rate: Option<u64>,
    /// Set all counters of rails and peers to zero.
    #[arg(long, conflicts_with_all = ["per", "rate"])]
    zero: bool,
    #[command(flatten)]
    show: ShowArgs,
}

/// The objects whose counters are shown.
#[derive(Clone, Copy, PartialEq, Eq, ValueEnum)]
enum Per {
    /// The agent.
    Agent,
    /// Each local rail.
    Rail,
    /// Each net: the sum of its rails.
    Net,
    /// Each NID of each peer.
    Nid,
    /// Each peer: the sum of its NIDs.
    Peer,
    /// Each pair of members between which a third relayed; this node is one of the three.
    Relay,
    /// Each kind of memory of the agent's processes.
    Memory,
}

/// Runs `muster stats`.
pub(crate) fn run(args: &StatsArgs) -> Result<(), CliError> {
    if args.zero {
        return change(&args.show, &Request::Zero);
    }
    if let Some(ms) = args.rate {
        return rates(args, Duration::from_millis(ms));
    }
    match args.per {
        Per::Agent => show(&args.show, &Question::Stats, agent_table),
        Per::Rail => show(&args.show, &Question::Rails, rails::table),
        Per::Net => show(&args.show, &Question::Nets, nets_table),
        Per::Nid => show(&args.show, &Question::peers(), peers::table),
        Per::Peer => show(&args.show, &Question::peers(), peers_table),
        Per::Relay => show(&args.show, &Question::Relays, relays_table),
        Per::Memory => memory::run(&args.show),
    }
}

fn agent_table(answer: &Value) -> String {
    let mut rows = vec![["lateness_ms".to_owned(), answer["lateness_ms"].to_string()]];
    let groups = ["counters", "agent", "fabric"].map(|group| answer[group].as_object());
    for (name, value) in groups.into_iter().flatten().flatten() {
        rows.push([name.clone(), value.to_string()]);
    }
    align(&rows)
}

fn nets_table(answer: &Value) -> String {
    sums(array(answer, "nets"), "NET", |net| {
        text(net, "net").to_owned()
    })
}

fn peers_table(answer: &Value) -> String {
    sums(array(answer, "peers"), "PEER", |peer| {
        let nids: Vec<&str> = array(peer, "nids")
            .iter()
            .map(|nid| text(nid, "nid"))
            .collect();
        let name = peer["name"].as_str();
        name.map_or_else(|| nids.join(","), str::to_owned)
    })
}

fn relays_table(answer: &Value) -> String {
    let titles = ["FROM", "THROUGH", "TO", "MESSAGES", "BYTES"];
    let mut rows = vec![titles.map(String::from)];
    for pair in array(answer, "pairs") {
        let [from, through, to] = ["from", "through", "to"].map(|end| text(pair, end).to_owned());
        let (messages, bytes) = (pair["messages"].to_string(), pair["bytes"].to_string());
        rows.push([from, through, to, messages, bytes]);
    }
    align(&rows) + &format!("relay {}\n", text(answer, "relay"))
}

fn sums(of: &[Value], title: &str, name: impl Fn(&Value) -> String) -> String {
    let titles = [
        title, "SENT", "BYTES", "RECEIVED", "BYTES", "TIMEOUTS", "DROPPED",
    ];
    let mut rows = vec![titles.map(String::from)];
    for one in of {
        // A counter that is not kept, such as the bytes received from one peer, is shown as -, not as 0.
        let figure = |key: &str| one[key].as_u64().map_or("-".into(), |n| n.to_string());
        rows.push([
            name(one),
            figure("sends"),
            figure("send_bytes"),
            figure("receives"),
            figure("receive_bytes"),
            figure("timeouts"),
            dropped(one).to_string(),
        ]);
    }
    align(&rows)
}

/// Counters whose increase is shown as a rate.
const RATED: [&str; 4] = ["sends", "send_bytes", "receives", "receive_bytes"];

/// Requests the counters twice, and prints the differences per second.
fn rates(args: &StatsArgs, wait: Duration) -> Result<(), CliError> {
    let (question, list, name) = match args.per {
        Per::Rail | Per::Agent => (Question::Rails, "rails", "nid"),
        Per::Net => (Question::Nets, "nets", "net"),
        Per::Nid | Per::Peer | Per::Relay | Per::Memory => {
            let why =
                "rates are measured for rails and nets; the load of a peer's NID is its USAGE";
            return Err(
                CliError::usage("stats --rate", why).hint("muster stats --per nid shows it")
            );
        }
    };
    let request = Request::Ask(question);
    let (began, first) = (Instant::now(), ask(&args.show, &request)?);
    std::thread::sleep(wait);
    let second = ask(&args.show, &request)?;
    let seconds = began.elapsed().as_secs_f64();
    let rates: Vec<Value> = array(&second, list)
        .iter()
        .filter_map(|now| {
            let before = array(&first, list)
                .iter()
                .find(|one| one[name] == now[name])?;
            let mut rate = json!({ "name": now[name] });
            for key in RATED {
                let grown = now[key].as_u64()?.saturating_sub(before[key].as_u64()?);
                rate[key] = (grown as f64 / seconds).into();
            }
            Some(rate)
        })
        .collect();
    let answer = json!({ "schema": "muster/rates/v1", "seconds": seconds, "rates": rates });
    print_answer(args.show.output, &answer, rates_table);
    Ok(())
}

fn rates_table(answer: &Value) -> String {
    let titles = ["NAME", "SENT/S", "BYTES/S", "RECEIVED/S", "BYTES/S"];
    let mut rows = vec![titles.map(String::from)];
    for rate in array(answer, "rates") {
        let figure = |key: &str| format!("{:.1}", rate[key].as_f64().unwrap_or(0.0));
        let [sends, send_bytes, receives, receive_bytes] = RATED.map(figure);
        let name = text(rate, "name").to_owned();
        rows.push([name, sends, send_bytes, receives, receive_bytes]);
    }
    align(&rows)
}
