//! `muster gossip`: age gossip of an agent that runs it, initialised, started, stopped and looked at.

use super::show::{ShowArgs, align, array, change, show, text};
use clap::{Args, Subcommand};
use muster_agent::rendezvous::Server;
use muster_config::{LIST_MAX, read_key_file, standing_key};
use muster_control::{GossipCommand, Question, Request};
use muster_ipc::base_directory;
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
    /// Give it participants and times, in place of those that it had; it waits to be started.
    Init(InitArgs),
    /// Go on: ping, reply, judge.
    Start(ShowArgs),
    /// Stop: no pings, no replies, no verdicts.
    Stop(ShowArgs),
    /// Show parameters, clock, and each participant's age and state.
    Status(ShowArgs),
    /// Serve as the gossip server at which participants find each other, until ended.
    ///
    /// An agent with server:HOST:PORT joins here, and when all have come each is told all of them. The server keeps the
    /// list in memory: one that is started again waits for all to come again. So it is required whenever an agent may
    /// start; agents that run, and those that replace a worker which crashed, need none.
    Serve(ServeArgs),
}

#[derive(Args)]
struct ServeArgs {
    /// Address to listen at, as in 0.0.0.0:7740.
    #[arg(long, value_name = "ADDR:PORT", default_value = "0.0.0.0:7740")]
    listen: SocketAddr,
    /// How many take part.
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
    /// puts them into a group. Or server:HOST:PORT alone: the gossip server that tells them (gossip serve).
    #[arg(required = true, value_name = "NIDS")]
    participants: Vec<String>,
    /// A cycle, in milliseconds.
    #[arg(long, default_value = "200")]
    interval_ms: String,
    /// The estimated round trip of the network, in milliseconds.
    #[arg(long, default_value = "1")]
    round_trip_ms: String,
    /// Allow a cycle below 200 ms.
    #[arg(long)]
    allow_fast_interval: bool,
    /// The part of pings that stay in the own group, as in 0.9 [default: groups do not matter].
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
                participants: words(&args.participants)?,
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
    // One connection for each of them.
    limits::raise_all();
    let mut server = Server::open(args.listen, expected, key).map_err(|error| {
        let at = args.listen;
        failed(&format!(
            "{at}: {error}; give another address with --listen"
        ))
    })?;
    let address = server.address().map_err(|error| failed(&error))?;
    println!("gossip server at {address}, for {expected} participants");
    let mut told = 0;
    loop {
        server.turn().map_err(|error| failed(&error))?;
        if server.joined() != told {
            told = server.joined();
            println!("{told} of {expected} have joined");
        }
    }
}

/// Files are read here: the agent may not see them.
fn words(given: &[String]) -> Result<Vec<String>, CliError> {
    let mut words = Vec::new();
    for given in given {
        let list = match given.strip_prefix("file:") {
            Some(path) => read_text(Path::new(path), LIST_MAX).map_err(|error| {
                let what = format!("gossip init: {path}");
                CliError::usage(what, error).hint("name a readable list of NIDs")
            })?,
            None => given.clone(),
        };
        words.extend(list.split_whitespace().map(str::to_owned));
    }
    Ok(words)
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
            "stopped: {} has another {}",
            answer["refused"]["member"].as_str().unwrap_or("a member"),
            text(&answer["refused"], "parameter")
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
