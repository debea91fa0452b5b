//! `muster bench rails`: measures what the fabric adds to the network below it.
//!
//! Latency: two ends of one process, each with a polling thread, exchange a datagram: over plain UDP and TCP sockets,
//! with plain calls of libfabric, and over rails. They run in turns, so that variations of the machine affect all
//! alike. Throughput: streams at full speed, over plain sockets and over a rail: datagrams compared with UDP, bulk
//! messages compared with TCP. Also datagrams and bulk messages over one rail and over two rails to one peer, where
//! each rail has a limit of bytes per second (a token bucket in the fault wrapper).
//! Failover: two rails, heartbeats as in profile `standard`, and a stream of messages in turn over both. One rail
//! stops carrying data, and neither end is notified. The bench measures the time until the stream has left that rail,
//! and until it is shown as degraded.

use super::ends::{Ends, now_us, open, open_between};
use super::figures::quantile;
use super::flows::{Flow, bulk_flow, rail_flow, tcp_flow, udp_flow};
use super::machine;
use super::trips::{rail_trips, raw_trips, tcp_trips, udp_trips};
use clap::Args;
use muster_fabric::{
    Class, Cut, Direction, FabricEvent, FaultPlan, Faulty, NidList, Pace, Route, Transport,
};
use muster_terminal::{CliError, Format, Progress};
use serde_json::{Value, json};
use std::io;

/// Names of ratios with a limit, and the systems in the order of each turn.
const LATENCY_RATIO: &str = "one rail to libfabric, p50";
const RAILS_RATIO: &str = "two rails to one, stream";
const BULK_RAILS_RATIO: &str = "two rails to one, bulk stream";
const SYSTEMS: [&str; 5] = [
    "udp sockets",
    "tcp sockets",
    "libfabric",
    "one rail",
    "two rails",
];
/// Heartbeat and deadline of profile `standard`, in microseconds.
const BEAT_US: u64 = 20_000;
const DEADLINE_US: u64 = 60_000;
/// Interval of messages of the failover stream, in microseconds.
const STREAM_GAP_US: u64 = 100;
/// Length of the failover stream before and after the cut, in microseconds.
const WARM_US: u64 = 200_000;
const CUT_US: u64 = 500_000;

/// Options of `muster bench rails`.
#[derive(Args)]
pub(crate) struct RailsArgs {
    /// Number of turns.
    #[arg(long, default_value_t = 5, value_parser = clap::value_parser!(u32).range(1..=100))]
    turns: u32,
    /// Round trips of each system in each turn.
    #[arg(long, default_value_t = 4000, value_parser = clap::value_parser!(u32).range(10..=1_000_000))]
    rounds: u32,
    /// Only the latency, over one rail between these two NIDs of this machine, as in
    /// 10.0.0.1:7700@o2ib0,10.0.0.2:7700@o2ib0: to be compared with fi_pingpong on the same devices.
    #[arg(long, value_name = "NID,NID", conflicts_with = "rail_mb")]
    between: Option<NidList>,
    /// Limit of each rail in the limited streams, in MB/s.
    #[arg(long, default_value_t = 20, value_parser = clap::value_parser!(u64).range(1..=10_000))]
    rail_mb: u64,
    /// Output format.
    #[arg(short, long, value_name = "FORMAT", default_value = "table")]
    output: Format,
}

/// Runs the measurement.
pub(super) fn run(args: &RailsArgs) -> Result<(), CliError> {
    if let Some(between) = &args.between {
        return run_between(between, args);
    }
    let machine = machine::describe();
    let rounds = args.rounds;
    let sockets = |e: io::Error| CliError::new("bench rails: plain sockets", e);
    let mut trips: [Vec<f64>; SYSTEMS.len()] = Default::default();
    let progress = Progress::default();
    for turn in 1..=args.turns {
        progress.show(format_args!("round trips: turn {turn} of {}", args.turns));
        let turn = [
            udp_trips(rounds).map_err(sockets)?,
            tcp_trips(rounds).map_err(sockets)?,
            raw_trips(rounds)?,
            rail_trips(open(1)?, rounds)?,
            rail_trips(open(2)?, rounds)?,
        ];
        trips
            .iter_mut()
            .zip(turn)
            .for_each(|(all, some)| all.extend(some));
    }
    progress.show(format_args!("streams"));
    let flows = [
        ("udp sockets", udp_flow().map_err(sockets)?),
        ("tcp sockets", tcp_flow().map_err(sockets)?),
        ("one rail, datagrams", rail_flow(1, None)?),
        ("one rail, bulk messages", bulk_flow(1, None)?),
    ];
    let limit = Some(args.rail_mb);
    let streams = [
        ("one rail", rail_flow(1, limit)?),
        ("two rails", rail_flow(2, limit)?),
        ("one rail, bulk messages", bulk_flow(1, limit)?),
        ("two rails, bulk messages", bulk_flow(2, limit)?),
    ];
    let failovers = (1..=args.turns).map(|turn| {
        progress.show(format_args!("failover: turn {turn} of {}", args.turns));
        failover()
    });
    let failovers: Vec<Failover> = failovers.collect::<Result<_, _>>()?;
    drop(progress);
    let result = report(args, &machine, &trips, &flows, &streams, &failovers);
    match args.output {
        Format::Json => println!("{result:#}"),
        Format::Table => print!("{}", table(&result)),
    }
    Ok(())
}

/// Measures the latency between two NIDs.
fn run_between(between: &NidList, args: &RailsArgs) -> Result<(), CliError> {
    let [near, far] = between.as_slice() else {
        let text = format!(
            "{between} has {} NIDs; give two, separated by a comma",
            between.as_slice().len()
        );
        return Err(CliError::new("bench rails: --between", text));
    };
    let mut all = Vec::new();
    for _ in 0..args.turns {
        all.extend(rail_trips(open_between(near, far)?, args.rounds)?);
    }
    let half = |share| quantile(&all, share) / 2.0;
    let (p50, p99) = (half(0.5), half(0.99));
    match args.output {
        Format::Json => {
            let row = json!({ "p50": p50, "p99": p99, "trips": all.len() });
            let machine = machine::describe();
            let result = json!({
                "schema": "muster/bench-rails-between/v1", "machine": machine, "between": between.to_string(),
                "one_way_us": row,
            });
            println!("{result:#}");
        }
        Format::Table => {
            println!("{between}: one way, 128 bytes: p50 {p50:.2} us, p99 {p99:.2} us");
        }
    }
    Ok(())
}

fn report(
    args: &RailsArgs,
    machine: &Value,
    trips: &[Vec<f64>; SYSTEMS.len()],
    flows: &[(&str, Flow); 4],
    streams: &[(&str, Flow); 4],
    failovers: &[Failover],
) -> Value {
    let lost: Vec<f64> = failovers.iter().map(|one| one.lost_ms).collect();
    let shown: Vec<f64> = failovers.iter().map(|one| one.shown_ms).collect();
    let half = |trips: &[f64], share| quantile(trips, share) / 2.0;
    let p50: Vec<f64> = trips.iter().map(|trips| half(trips, 0.5)).collect();
    let latency = |trips: &Vec<f64>| json!({ "p50": half(trips, 0.5), "p99": half(trips, 0.99), "trips": trips.len() });
    let latencies = SYSTEMS
        .iter()
        .zip(trips)
        .map(|(name, trips)| ((*name).to_owned(), latency(trips)));
    let each = |flows: &[(&str, Flow)]| -> Value {
        let named = flows
            .iter()
            .map(|(name, flow)| ((*name).to_owned(), flow.json()));
        Value::Object(named.collect())
    };
    let speed = |at: usize| flows[at].1.mb_per_s;
    json!({
        "schema": "muster/bench-rails/v2",
        "machine": machine,
        "one_way_us": Value::Object(latencies.collect()),
        "flow": each(flows),
        "limit_mb_per_s": args.rail_mb,
        "stream": each(streams),
        "failover_ms": {
            "median": quantile(&lost, 0.5),
            "longest": quantile(&lost, 1.0),
            "turns": args.turns,
            "heartbeat_ms": BEAT_US / 1000,
            "deadline_ms": DEADLINE_US / 1000,
        },
        // Null if it was never shown.
        "degraded_ms": {
            "median": quantile(&shown, 0.5),
            "longest": quantile(&shown, 1.0),
        },
        "ratios": {
            LATENCY_RATIO: p50[3] / p50[2],
            "one rail to udp sockets, p50": p50[3] / p50[0],
            "one rail to tcp sockets, p50": p50[3] / p50[1],
            "datagrams to udp sockets, flow": speed(2) / speed(0),
            "bulk messages to tcp sockets, flow": speed(3) / speed(1),
            RAILS_RATIO: streams[1].1.mb_per_s / streams[0].1.mb_per_s,
            BULK_RAILS_RATIO: streams[3].1.mb_per_s / streams[2].1.mb_per_s,
        },
    })
}

fn table(result: &Value) -> String {
    let number = |value: &Value| value.as_f64().map_or("-".into(), |v| format!("{v:.2}"));
    let mut lines = vec![
        format!("rails: {}", machine::text(&result["machine"])),
        String::new(),
    ];
    lines.push(format!(
        "{:<34}{:>10}{:>10}",
        "one way, microseconds, 128 bytes", "p50", "p99"
    ));
    for name in SYSTEMS {
        let row = &result["one_way_us"][name];
        let (p50, p99) = (number(&row["p50"]), number(&row["p99"]));
        lines.push(format!("{name:<34}{p50:>10}{p99:>10}"));
    }
    let mut flows = |title: String, flows: &Value| {
        lines.push(format!("\n{title}"));
        for (name, flow) in flows.as_object().into_iter().flatten() {
            lines.push(format!("{name:<34}{:>10}", number(&flow["mb_per_s"])));
        }
    };
    flows("stream as fast as it goes, MB/s".into(), &result["flow"]);
    let limit = &result["limit_mb_per_s"];
    flows(
        format!("stream, MB/s, each rail takes {limit}"),
        &result["stream"],
    );
    let failover = &result["failover_ms"];
    lines.push(format!(
        "\nfailover of a stream, ms, heartbeat {} deadline {}",
        failover["heartbeat_ms"], failover["deadline_ms"]
    ));
    for name in ["median", "longest"] {
        lines.push(format!("{name:<34}{:>10}", number(&failover[name])));
    }
    lines.push("\nfrom the cut until the rail is shown as degraded, ms".into());
    for name in ["median", "longest"] {
        let shown = &result["degraded_ms"][name];
        lines.push(format!(
            "{name:<34}{:>10}{}",
            number(shown),
            shown_verdict(name, shown)
        ));
    }
    lines.push("\nratios".into());
    for (name, ratio) in result["ratios"].as_object().into_iter().flatten() {
        lines.push(format!(
            "{name:<34}{:>10}{}",
            number(ratio),
            verdict(name, ratio)
        ));
    }
    lines.push(String::new());
    lines.join("\n")
}

/// The limit of this ratio, and whether this run met it; empty if there is none.
fn verdict(name: &str, ratio: &Value) -> String {
    let ratio = ratio.as_f64().unwrap_or(f64::NAN);
    let (limit, is_met) = match name {
        LATENCY_RATIO => ("at most 1.5", ratio <= 1.5),
        RAILS_RATIO | BULK_RAILS_RATIO => ("at least 1.8", ratio >= 1.8),
        _ => return String::new(),
    };
    let result = if is_met { "kept" } else { "MISSED" };
    format!("   {limit}: {result}")
}

/// The limit of the time until a rail is shown as degraded, and whether this run met it.
fn shown_verdict(name: &str, shown: &Value) -> String {
    if name != "longest" {
        return String::new();
    }
    let limit_ms = 2 * DEADLINE_US / 1000;
    let is_met = shown.as_f64().is_some_and(|ms| ms <= limit_ms as f64);
    let result = if is_met { "kept" } else { "MISSED" };
    format!("   at most two deadlines, {limit_ms}: {result}")
}

/// The course after one of two rails stops carrying data in both directions without notice.
struct Failover {
    /// From the cut to the sending of the last message that was lost, in milliseconds.
    lost_ms: f64,
    /// From the cut until the fabric reports that the peer is silent on the rail, which makes an agent show the member
    /// as degraded; infinite if it never does. In milliseconds.
    shown_ms: f64,
}

/// Cuts one of two rails during a stream.
fn failover() -> Result<Failover, CliError> {
    let Ends {
        near,
        mut far,
        to_far,
        to_near,
    } = open(2)?;
    let mut near = Faulty::new(near, FaultPlan::default());
    let start_us = now_us();
    let cut_us = start_us + WARM_US;
    let cut = |direction| Cut {
        rail: 0,
        direction,
        from_us: cut_us,
        until_us: u64::MAX,
    };
    near.plan_mut().cuts = [Direction::In, Direction::Out].map(cut).to_vec();
    near.watch(start_us, to_far, Pace::of_beats(BEAT_US, DEADLINE_US, 2));
    let mut sent: Vec<(u64, bool)> = Vec::new();
    let mut shown_ms = f64::INFINITY;
    let mut beat_us = start_us;
    while now_us() < cut_us + CUT_US {
        let now_us = now_us();
        if now_us >= beat_us {
            beat_us += BEAT_US;
            far.send(now_us, to_near, Class::Beat, Route::Next, b"beat");
        }
        // The last message must have time to arrive.
        let may_send = now_us + BEAT_US < cut_us + CUT_US;
        let is_due = |last: &(u64, bool)| last.0 + STREAM_GAP_US <= now_us;
        if may_send && sent.last().is_none_or(is_due) {
            let number = (sent.len() as u64).to_le_bytes();
            near.send(now_us, to_far, Class::News, Route::Next, &number);
            sent.push((now_us, false));
        }
        let mut is_answer_requested = false;
        far.poll(now_us, &mut |arrival| match arrival.bytes.first_chunk() {
            Some(number) => {
                let message = sent.get_mut(u64::from_le_bytes(*number) as usize);
                message.into_iter().for_each(|one| one.1 = true);
            }
            None => is_answer_requested = true,
        });
        if is_answer_requested {
            far.send(now_us, to_near, Class::News, Route::All, b"here");
        }
        let mut heard = Vec::new();
        near.poll(now_us, &mut |arrival| heard.push(arrival.rail));
        heard
            .into_iter()
            .for_each(|rail| near.heard(now_us, to_far, rail));
        while let Some(event) = near.poll_event() {
            // On this event an agent shows the member as degraded.
            let is_silent = matches!(event, FabricEvent::RailSilent { rail: 0, .. });
            if is_silent && now_us >= cut_us && shown_ms.is_infinite() {
                shown_ms = now_us.saturating_sub(cut_us) as f64 / 1000.0;
            }
            if matches!(event, FabricEvent::RailLate { .. }) {
                near.send(now_us, to_far, Class::News, Route::All, b"ask");
            }
        }
    }
    // On loopback the last messages have arrived by now.
    let lost = sent.iter().filter(|(_, come)| !come);
    let last_us = lost.map(|(at_us, _)| *at_us).max().unwrap_or(cut_us);
    Ok(Failover {
        lost_ms: last_us.saturating_sub(cut_us) as f64 / 1000.0,
        shown_ms,
    })
}
