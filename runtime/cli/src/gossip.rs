//! `muster gossip`: initialises, starts, stops and shows age gossip on an agent that runs it.

use super::answer::{align, array, text};
use super::show::{ShowArgs, change, show};
use clap::{Args, Subcommand};
use muster_config::{LIST_MAX, read_key_file, standing_key};
use muster_control::{GossipCommand, Question, Request};
use muster_ipc::base_directory;
use muster_rendezvous::Server;
use muster_sys::file::read_text;
use muster_sys::limits;
use muster_terminal::CliError;
use serde_json::Value;
use std::net::SocketAddr;
use std::path::{Path, PathBuf};

/// Options of `muster gossip`.
#[derive(Args)]
pub(crate) struct GossipArgs {
    #[command(subcommand)]
    command: Command,
}

#[derive(Subcommand)]
enum Command {
    /// Set participants and times, replacing the previous ones; gossip then waits for start.
    Init(InitArgs),
    /// Start or continue: ping, reply, judge.
    Start(ShowArgs),
    /// Stop: no pings, no replies, no verdicts.
    Stop(ShowArgs),
    /// Show parameters, clock, and each participant's age and state.
    Status(ShowArgs),
    /// Run the gossip server, at which participants find each other, until ended.
    ///
    /// An agent with server:HOST:PORT joins here; when all have joined, each receives the list of all. The server keeps
    /// the list in memory: a restarted server waits until all have joined again. So the server is required whenever an
    /// agent may start. Running agents, and workers that replace a crashed worker, do not require it.
    Serve(ServeArgs),
}

#[derive(Args)]
struct ServeArgs {
    /// Address to listen at, as in 0.0.0.0:7740.
    #[arg(long, value_name = "ADDR:PORT", default_value = "0.0.0.0:7740")]
    listen: SocketAddr,
    /// Number of participants.
    #[arg(long, value_parser = clap::value_parser!(u32).range(2..=1 << 20))]
    participants: u32,
    /// File with the job key: 64 hexadecimal digits, mode 0600 [default: the standing key of this user].
    #[arg(long, value_name = "FILE", env = "MUSTER_KEY_FILE")]
    key_file: Option<PathBuf>,
}

#[derive(Args)]
struct InitArgs {
    /// NIDs of all participants, file:PATH, or server:HOST:PORT.
    ///
    /// This node's NID is among them: lists, ranges such as 192.168.[1-2].[1-128/2]@o2ib0, or file:PATH; GROUP=NIDS
    /// puts them into a group. Or server:HOST:PORT alone: the gossip server that has the list (gossip serve).
    #[arg(required = true, value_name = "NIDS")]
    participants: Vec<String>,
    /// Length of a cycle, in milliseconds.
    #[arg(long, default_value = "200")]
    interval_ms: String,
    /// The estimated round trip of the network, in milliseconds.
    #[arg(long, default_value = "1")]
    round_trip_ms: String,
    /// Allow a cycle below 200 ms.
    #[arg(long)]
    allow_fast_interval: bool,
    /// The fraction of pings to the node's own group, as in 0.9 [default: groups have no effect].
    #[arg(long, value_name = "L")]
    local: Option<String>,
    #[command(flatten)]
    show: ShowArgs,
}

/// Runs `muster gossip`.
pub(crate) fn run(args: &GossipArgs) -> Result<(), CliError> {
    match &args.command {
        Command::Start(args) => change(args, &Request::Gossip(GossipCommand::Start)),
        Command::Stop(args) => change(args, &Request::Gossip(GossipCommand::Stop)),
        Command::Status(args) => show(args, &Question::Gossip, table),
        Command::Serve(args) => serve(args),
        Command::Init(args) => {
            let command = GossipCommand::Init {
                interval_ms: args.interval_ms.clone(),
                round_trip_ms: args.round_trip_ms.clone(),
                allow_fast_interval: args.allow_fast_interval,
                local: args.local.clone(),
                participants: participants(&args.participants)?,
            };
            change(&args.show, &Request::Gossip(command))
        }
    }
}

fn serve(args: &ServeArgs) -> Result<(), CliError> {
    let failed = |error: &dyn std::fmt::Display| CliError::new("gossip serve", error);
    let key = match &args.key_file {
        Some(path) => read_key_file(path),
        None => {
            let base = base_directory().map_err(|error| failed(&error))?;
            standing_key(&base.join("key"))
        }
    };
    let key = key.map_err(|error| failed(&error))?;
    let expected = args.participants as usize;
    // Each participant has one connection, which requires a descriptor.
    limits::raise_all();
    let mut server = Server::open(args.listen, expected, key).map_err(|error| {
        let at = args.listen;
        failed(&format!(
            "{at}: {error}; give another address with --listen"
        ))
    })?;
    let address = server.address().map_err(|error| failed(&error))?;
    println!("gossip server at {address}, for {expected} participants");
    let mut printed = 0;
    loop {
        server.turn().map_err(|error| failed(&error))?;
        if server.joined() != printed {
            printed = server.joined();
            println!("{printed} of {expected} have joined");
        }
    }
}

/// Replaces file:PATH by the content of the file. The command reads it, since the agent may not have access.
fn participants(given: &[String]) -> Result<Vec<String>, CliError> {
    let mut participants = Vec::new();
    for given in given {
        let list = match given.strip_prefix("file:") {
            Some(path) => read_text(Path::new(path), LIST_MAX).map_err(|error| {
                let what = format!("gossip init: {path}");
                CliError::usage(what, error).hint("name a readable file with a list of NIDs")
            })?,
            None => given.clone(),
        };
        participants.extend(list.split_whitespace().map(str::to_owned));
    }
    Ok(participants)
}

fn table(answer: &Value) -> String {
    let mut rows = vec![["NID", "AGE", "STATE"].map(String::from)];
    for one in array(answer, "participants") {
        let age = one["age"]
            .as_u64()
            .map_or("-".into(), |age| age.to_string());
        rows.push([text(one, "nid").into(), age, text(one, "state").into()]);
    }
    let state = match (answer["running"] == true, answer["refused"].is_object()) {
        (true, _) => "running".to_owned(),
        (false, _) if answer["waiting"] == true => "waiting for its participants".to_owned(),
        (false, false) => "stopped".to_owned(),
        (false, true) => format!(
            "stopped: {} has {} {}, here {}",
            answer["refused"]["member"].as_str().unwrap_or("a member"),
            text(&answer["refused"], "parameter"),
            answer["refused"]["values"][1].as_str().unwrap_or("?"),
            answer["refused"]["values"][0].as_str().unwrap_or("?")
        ),
    };
    format!(
        "gossip is {state}; clock {}, cycle {}, interval {} ms, suspect after {}, failed after {}\n{}",
        answer["clock"],
        answer["cycles"],
        answer["interval_ms"],
        answer["suspect_after"],
        answer["dead_after"],
        align(&rows)
    )
}
