//! `muster peers`: other members by their NIDs, with state and counters, and peers that were added by hand.

use super::answer::{align, array, print_answer, text};
use super::names;
use super::rails::{credits, dropped};
use super::show::{ShowArgs, ask, change};
use clap::{Args, Subcommand};
use muster_config::{Change, peers_of};
use muster_control::{Question, Request};
use muster_fabric::{Nid, NidPattern};
use muster_hostlist::by_number;
use muster_terminal::CliError;
use serde_json::Value;

/// Maximum number of names that one pattern of peers to show may expand to.
const NAMES_MAX: usize = 4096;

/// Options of `muster peers`.
#[derive(Args)]
#[command(args_conflicts_with_subcommands = true)]
pub(crate) struct PeersArgs {
    #[command(subcommand)]
    command: Option<PeersCommand>,
    #[command(flatten)]
    shown: ShownArgs,
}

#[derive(Subcommand)]
enum PeersCommand {
    /// Show the peers (the same as no command).
    Show(ShownArgs),
    /// Declare that these NIDs belong to one peer, and send it a join.
    Add(NamedArgs),
    /// Remove NIDs from added peers; a peer without NIDs is removed.
    Del(NamedArgs),
}

#[derive(Args)]
struct ShownArgs {
    /// Only these peers: names of members or NIDs, with ranges, such as n[1-4] or 10.0.[0-3].*@udp0.
    only: Vec<String>,
    /// Maximum number of peers.
    #[arg(long, default_value_t = 4096, value_name = "N", value_parser = clap::value_parser!(u64).range(1..))]
    most: u64,
    /// Number of peers to skip, to list them in parts.
    #[arg(long, default_value_t = 0, value_name = "N")]
    behind: u64,
    #[command(flatten)]
    show: ShowArgs,
}

#[derive(Args)]
struct NamedArgs {
    /// The NIDs of one peer, separated by commas; ranges expand to as many peers:
    /// 10.0.0.[1-4]@udp0,10.1.0.[1-4]@tcp0 is four peers with two NIDs each.
    #[arg(required = true)]
    nids: Vec<String>,
    #[command(flatten)]
    show: ShowArgs,
}

/// Runs `muster peers`.
pub(crate) fn run(args: &PeersArgs) -> Result<(), CliError> {
    match &args.command {
        None => show(&args.shown),
        Some(PeersCommand::Show(args)) => show(args),
        Some(PeersCommand::Add(args)) => change_all(args, Change::AddPeers),
        Some(PeersCommand::Del(args)) => change_all(args, Change::RemovePeers),
    }
}

/// Sends all of them as one change.
fn change_all(args: &NamedArgs, make: fn(String) -> Change) -> Result<(), CliError> {
    for text in &args.nids {
        peers_of(text).map_err(|error| CliError::usage("peers", error))?;
    }
    let peers: Vec<String> = args.nids.iter().map(|text| text.replace(' ', "")).collect();
    change(&args.show, &Request::Change(make(peers.join(" "))))
}

fn show(args: &ShownArgs) -> Result<(), CliError> {
    let only = Selection::read(&args.only)?;
    let question = Question::Peers {
        most: usize::try_from(args.most).unwrap_or(usize::MAX),
        behind: usize::try_from(args.behind).unwrap_or(usize::MAX),
    };
    let mut answer = ask(&args.show, &Request::Ask(question))?;
    if let Some(peers) = answer["peers"].as_array_mut() {
        peers.retain(|peer| only.names(peer));
        peers.sort_by(|one, other| by_number(text(one, "name"), text(other, "name")));
    }
    print_answer(args.show.output, &answer, table);
    Ok(())
}

/// The selection of peers.
struct Selection {
    names: Vec<String>,
    patterns: Vec<NidPattern>,
}

impl Selection {
    fn read(texts: &[String]) -> Result<Selection, CliError> {
        let mut only = Selection {
            names: Vec::new(),
            patterns: Vec::new(),
        };
        for text in texts {
            if text.contains('@') {
                let pattern = text.parse();
                only.patterns
                    .push(pattern.map_err(|error| CliError::usage("peers", error))?);
            } else {
                only.names
                    .extend(names::expand_one("peers", text, NAMES_MAX)?);
            }
        }
        Ok(only)
    }

    fn names(&self, peer: &Value) -> bool {
        let nids = || {
            let nids = array(peer, "nids").iter();
            nids.filter_map(|nid| text(nid, "nid").parse::<Nid>().ok())
        };
        let matches = |pattern: &NidPattern| nids().any(|nid| pattern.matches(&nid, None));
        (self.names.is_empty() && self.patterns.is_empty())
            || self.names.iter().any(|name| name == text(peer, "name"))
            || self.patterns.iter().any(matches)
    }
}

/// The peers' NIDs as a table.
pub(super) fn table(answer: &Value) -> String {
    let titles = [
        "PEER", "NID", "STATE", "HEALTH", "RAILS", "CREDITS", "QUEUED", "USAGE", "SENT",
        "RECEIVED", "TIMEOUTS", "DROPPED",
    ];
    let mut rows = vec![titles.map(String::from)];
    for peer in array(answer, "peers") {
        for nid in array(peer, "nids") {
            let rails: Vec<&str> = array(nid, "rails")
                .iter()
                .filter_map(Value::as_str)
                .collect();
            let figure = |key: &str| {
                nid[key]
                    .as_u64()
                    .map_or("-".into(), |figure| figure.to_string())
            };
            rows.push([
                text(peer, "name").to_owned(),
                text(nid, "nid").to_owned(),
                text(nid, "state").to_owned(),
                figure("health"),
                if rails.is_empty() {
                    "-".into()
                } else {
                    rails.join(" ")
                },
                credits(nid),
                figure("queued_bytes"),
                figure("usage"),
                figure("sends"),
                figure("receives"),
                figure("timeouts"),
                dropped(nid).to_string(),
            ]);
        }
    }
    align(&rows)
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    /// AG-11: hosts and NIDs are named by ranges, with a limit.
    #[test]
    fn peers_are_named_by_ranges() {
        let peer = |name: &str, nid: &str| json!({ "name": name, "nids": [{ "nid": nid }] });
        let named = |texts: &[&str], peer: &Value| {
            let texts: Vec<String> = texts.iter().map(ToString::to_string).collect();
            Selection::read(&texts).map(|only| only.names(peer))
        };
        let n3 = peer("n3", "10.0.0.3@udp0");
        assert!(named(&[], &n3).unwrap());
        assert!(named(&["n[1-4]"], &n3).unwrap());
        assert!(!named(&["n[4-9]", "n1"], &n3).unwrap());
        assert!(named(&["10.0.0.[3-4]@udp0"], &n3).unwrap());
        assert!(!named(&["*@tcp0"], &n3).unwrap());
        let error = named(&["n[1-99999]"], &n3).unwrap_err().to_string();
        assert!(error.contains("99999 names; at most 4096"), "{error}");
        assert!(named(&["10.0.0@udp0"], &n3).is_err());
    }
}
