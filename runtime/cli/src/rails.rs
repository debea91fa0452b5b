//! `muster rails`: shows, opens, closes and configures the local interfaces while the agent runs.

use super::answer::{align, array, text};
use super::show::{ShowArgs, change, show};
use clap::{Args, Subcommand};
use muster_config::{Change, Limit, RailEntry};
use muster_control::explanation::ranges;
use muster_control::{Question, Request};
use muster_fabric::{Net, Nid};
use muster_terminal::CliError;
use serde_json::Value;

/// Options of `muster rails`.
#[derive(Args)]
#[command(args_conflicts_with_subcommands = true)]
pub(crate) struct RailsArgs {
    #[command(subcommand)]
    command: Option<RailsCommand>,
    #[command(flatten)]
    show: ShowArgs,
}

#[derive(Subcommand)]
enum RailsCommand {
    /// Show the rails, their state and their traffic (the same as no command).
    Show(ShownArgs),
    /// Open a rail and use it from now on.
    Add(AddArgs),
    /// Close a rail; the last rail cannot be closed.
    Del(DelArgs),
    /// Change a rail's CPU partitions, or the limits of all rails.
    Set(SetArgs),
}

#[derive(Args)]
struct ShownArgs {
    /// Only the rail at --index among those of this net.
    #[arg(long, requires = "index")]
    net: Option<Net>,
    /// The position, from 0.
    #[arg(long, requires = "net")]
    index: Option<usize>,
    #[command(flatten)]
    show: ShowArgs,
}

#[derive(Args)]
struct AddArgs {
    /// The interface: ADDRESS[:PORT]@NET or INTERFACE[:PORT]@NET, as 10.0.0.1@udp0 or eth1@tcp0.
    nid: Nid,
    /// CPU partitions that the rail serves, separated by commas [default: all].
    #[arg(long, value_delimiter = ',')]
    partitions: Vec<u32>,
    #[command(flatten)]
    show: ShowArgs,
}

#[derive(Args)]
struct DelArgs {
    /// The rail, as shown or as configured.
    nid: Nid,
    #[command(flatten)]
    show: ShowArgs,
}

#[derive(Args)]
struct SetArgs {
    /// The rail whose partitions are set.
    #[arg(requires = "partitions")]
    nid: Option<Nid>,
    /// CPU partitions that the rail serves, separated by commas, or all.
    #[arg(long, requires = "nid")]
    partitions: Option<String>,
    /// Rails up to this NUMA distance from the memory count as near; a large value switches this off.
    #[arg(long, value_parser = number)]
    numa_range: Option<u64>,
    /// What an error subtracts from the health (at most 1000); 0 switches health off.
    #[arg(long, value_parser = number)]
    sensitivity: Option<u64>,
    /// What a success adds to the health.
    #[arg(long, value_parser = number)]
    recovery: Option<u64>,
    /// Below this health, healthier rails are preferred.
    #[arg(long, value_parser = number)]
    shun_below: Option<u64>,
    /// First pause before a failed rail or NID is tried again, in microseconds.
    #[arg(long, value_parser = number)]
    pause_min_us: Option<u64>,
    /// Longest pause, in microseconds.
    #[arg(long, value_parser = number)]
    pause_max_us: Option<u64>,
    /// Time without an acknowledgement after which a bulk message takes another path, in microseconds.
    ///
    /// Each time-out is shorter than the next: transport, retry, reply, upper. The agent stores them; it sends
    /// no bulk messages itself.
    #[arg(long, value_parser = number)]
    transport_us: Option<u64>,
    /// Time without progress after which a bulk message is given up, in microseconds.
    #[arg(long, value_parser = number)]
    retry_us: Option<u64>,
    /// Time after which a partly received bulk message is dropped, in microseconds.
    #[arg(long, value_parser = number)]
    reply_us: Option<u64>,
    /// Time that the user of the rails waits for an answer, in microseconds; longer than all these, 0 is no limit.
    #[arg(long, value_parser = number)]
    upper_us: Option<u64>,
    /// Maximum number of times that a bulk message is sent again without progress.
    #[arg(long, value_parser = number)]
    retries_max: Option<u64>,
    #[command(flatten)]
    show: ShowArgs,
}

/// Runs `muster rails`.
pub(crate) fn run(args: &RailsArgs) -> Result<(), CliError> {
    match &args.command {
        None => show(&args.show, &Question::Rails, table),
        Some(RailsCommand::Show(args)) => {
            let one = args.net.zip(args.index);
            let question = one.map_or(Question::Rails, |(net, index)| Question::Rail {
                net,
                index,
            });
            show(&args.show, &question, table)
        }
        Some(RailsCommand::Add(args)) => {
            let entry = RailEntry {
                nid: args.nid.clone(),
                partitions: args.partitions.clone(),
            };
            change(&args.show, &Request::Change(Change::AddRail(entry)))
        }
        Some(RailsCommand::Del(args)) => {
            let nid = args.nid.clone();
            change(&args.show, &Request::Change(Change::RemoveRail(nid)))
        }
        Some(RailsCommand::Set(args)) => set(args),
    }
}

/// Parses the value of a limit.
fn number(text: &str) -> Result<u64, String> {
    let parsed = text.parse();
    parsed.map_err(|_| format!("give a whole number from 0 to {}", u64::MAX))
}

fn set(args: &SetArgs) -> Result<(), CliError> {
    let limits: Vec<(Limit, u64)> = [
        (Limit::NumaRange, args.numa_range),
        (Limit::Sensitivity, args.sensitivity),
        (Limit::Recovery, args.recovery),
        (Limit::ShunBelow, args.shun_below),
        (Limit::PauseMinUs, args.pause_min_us),
        (Limit::PauseMaxUs, args.pause_max_us),
        (Limit::TransportUs, args.transport_us),
        (Limit::RetryUs, args.retry_us),
        (Limit::ReplyUs, args.reply_us),
        (Limit::UpperUs, args.upper_us),
        (Limit::RetriesMax, args.retries_max),
    ]
    .into_iter()
    .filter_map(|(limit, value)| Some((limit, value?)))
    .collect();
    let of_rail = args.nid.as_ref().zip(args.partitions.as_ref());
    if limits.is_empty() == of_rail.is_none() {
        let why = "give either a rail with --partitions, or limits such as --numa-range";
        return Err(CliError::usage("rails set", why).hint("muster rails set --help shows both"));
    }
    let Some((nid, partitions)) = of_rail else {
        return change(&args.show, &Request::Change(Change::SetLimits(limits)));
    };
    let numbers: Result<Vec<u32>, _> = match partitions.as_str() {
        "all" => Ok(Vec::new()),
        list => list.split(',').map(str::parse).collect(),
    };
    let partitions = numbers.map_err(|_| {
        let what = format!("rails set --partitions {partitions:?}");
        CliError::usage(what, "it is not a list of numbers")
            .hint("give numbers such as 0,1, or all")
    })?;
    let entry = RailEntry {
        nid: nid.clone(),
        partitions,
    };
    change(&args.show, &Request::Change(Change::SetRail(entry)))
}

/// The rails as a table; below it the found faults, and the interfaces that are no rails by default.
pub(super) fn table(answer: &Value) -> String {
    let titles = [
        "RAIL", "STATE", "HEALTH", "PROVIDER", "DEVICE", "NUMA", "CPUS", "CREDITS", "USAGE",
        "SENT", "RECEIVED", "TIMEOUTS", "DROPPED",
    ];
    let mut rows = vec![titles.map(String::from)];
    for rail in array(answer, "rails") {
        let partitions: Vec<u64> = array(rail, "partitions")
            .iter()
            .filter_map(Value::as_u64)
            .collect();
        rows.push([
            text(rail, "nid").to_owned(),
            text(rail, "state").to_owned(),
            rail["health"].to_string(),
            format!("{}{}", text(rail, "provider"), class(rail)),
            text(rail, "interface").to_owned(),
            rail["numa_node"]
                .as_u64()
                .map_or("-".into(), |node| node.to_string()),
            if partitions.is_empty() {
                "all".into()
            } else {
                ranges(&partitions)
            },
            credits(rail),
            rail["usage"].to_string(),
            rail["sends"].to_string(),
            rail["receives"].to_string(),
            rail["timeouts"].to_string(),
            dropped(rail).to_string(),
        ]);
    }
    let mut table = align(&rows);
    let lines = array(answer, "findings")
        .iter()
        .chain(array(answer, "choice"));
    for finding in lines.filter_map(Value::as_str) {
        table += &format!("{finding}\n");
    }
    table
}

/// The traffic class that the provider reports for the requested one, or the DSCP of the datagrams, in parentheses;
/// empty if there is none.
pub(super) fn class(rail: &Value) -> String {
    match rail["traffic_class"].as_str() {
        None | Some("untold") => String::new(),
        Some(class) => format!(" ({class})"),
    }
}

/// Send credits: current, lowest so far, maximum.
pub(super) fn credits(value: &Value) -> String {
    let credits = &value["credits"];
    match credits.is_object() {
        true => format!(
            "{}/{}/{}",
            credits["now"], credits["least"], credits["most"]
        ),
        false => "-".into(),
    }
}

/// Drops for all reasons.
pub(super) fn dropped(value: &Value) -> u64 {
    let drops = value["drops"].as_object();
    drops.map_or(0, |drops| drops.values().filter_map(Value::as_u64).sum())
}
