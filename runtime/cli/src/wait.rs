//! `muster wait`: returns when members or ranks are in a state. The agent's events wake it.

use super::agents;
use super::answer::{Shape, array, text};
use super::names;
use super::show::{ShowArgs, TIMEOUT_MAX_S, repeated_request_error, request_error};
use super::yaml::Yaml;
use clap::{Args, ValueEnum};
use muster_control::{Followed, Follower, Question, ask};
use muster_hostlist::fold;
use muster_terminal::CliError;
use serde_json::{Value, json};
use std::path::Path;
use std::time::{Duration, Instant};

/// Options of `muster wait`.
#[derive(Args)]
pub(crate) struct WaitArgs {
    /// Members to wait for, such as n[01-16]; without names, any --count of all members.
    hosts: Vec<String>,
    /// Ranks to wait for instead, such as 0-3,7.
    #[arg(long, value_name = "RANKS", conflicts_with = "hosts")]
    ranks: Option<String>,
    /// The state to wait for.
    #[arg(short, long, value_name = "STATE", default_value = "alive")]
    state: State,
    /// Number that must be in the state [default: all that are named].
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u64).range(1..))]
    count: Option<u64>,
    /// Time limit in seconds; exit code 5 if it passes.
    #[arg(long, value_name = "SECONDS", default_value_t = 60,
          value_parser = clap::value_parser!(u64).range(..=TIMEOUT_MAX_S))]
    timeout: u64,
    #[command(flatten)]
    show: ShowArgs,
}

#[derive(Clone, Copy, PartialEq, Eq, ValueEnum)]
enum State {
    Alive,
    Degraded,
    Suspect,
    Hung,
    Failed,
    Left,
}

impl State {
    fn name(self) -> &'static str {
        match self {
            Self::Alive => "alive",
            Self::Degraded => "degraded",
            Self::Suspect => "suspect",
            Self::Hung => "hung",
            Self::Failed => "failed",
            Self::Left => "left",
        }
    }
}

/// What the command waits for.
struct Wanted {
    names: Vec<String>,
    of_ranks: bool,
    state: State,
    count: u64,
}

/// The current states, compared with what is wanted.
struct Progress {
    reached: Vec<String>,
    /// Members or ranks that failed or left.
    lost: Vec<String>,
    missing: Vec<String>,
    /// Names that the agent does not know.
    unknown: Vec<String>,
}

/// Runs `muster wait`.
pub(crate) fn run(args: &WaitArgs) -> Result<(), CliError> {
    let wanted = Wanted::read(args)?;
    let path = agents::find(&args.show.agent)?;
    let end = Instant::now() + Duration::from_secs(args.timeout);
    // The order matters: subscribe to events first, then look, so that no change is missed. Events up to `last` are
    // skipped: they are older than the look.
    let head = Follower::open(&path, u64::MAX - 1, false)
        .map_err(request_error)?
        .head;
    let mut follower =
        Follower::open(&path, head["last"].as_u64().unwrap_or(0), true).map_err(request_error)?;
    loop {
        let progress = wanted.look(&path)?;
        if progress.reached.len() as u64 >= wanted.count {
            print(&wanted, &progress, args.show.output);
            return Ok(());
        }
        if wanted.is_lost(&progress) {
            let why = format!("{} failed or left", wanted.folded(&progress.lost));
            let hint = match wanted.of_ranks {
                true => "muster members shows the ranks of each member".to_owned(),
                false => format!("muster why {} shows the reason", progress.lost[0]),
            };
            return Err(CliError::new(wanted.what(), why).exit_code(4).hint(hint));
        }
        match follower.next(Some(end)).map_err(request_error)? {
            Followed::Event(_) => {}
            Followed::Late => return Err(wanted.timed_out(&progress, args.timeout)),
            Followed::Ended => {
                return Err(agents::ended(&path));
            }
        }
    }
}

/// The nodes of all zones but that of the agent, as it knows them.
fn nodes_of_other_zones(path: &Path) -> Result<Vec<Value>, CliError> {
    let request = |question: &Question| {
        ask(path, question).map_err(|error| repeated_request_error(path, error))
    };
    let answer = request(&Question::Zones)?;
    let is_other = |zone: &&Value| zone["level"] == 0 && zone["own"] != true;
    let mut nodes = Vec::new();
    for zone in array(&answer, "zones").iter().filter(is_other) {
        let answer = request(&Question::Zone(text(zone, "zone").to_owned()))?;
        nodes.extend(array(&answer, "nodes").iter().cloned());
    }
    Ok(nodes)
}

impl Wanted {
    fn read(args: &WaitArgs) -> Result<Self, CliError> {
        let mut names = names::members("wait", &args.hosts)?;
        if let Some(ranks) = &args.ranks {
            let ranks = names::ranks("wait --ranks", ranks)?;
            names = ranks.iter().map(u64::to_string).collect();
        }
        names.sort();
        names.dedup();
        if names.is_empty() && args.count.is_none() {
            let why = "no members are given; name members, --ranks or --count";
            return Err(CliError::usage("wait", why).hint("for example muster wait --count 4"));
        }
        let count = args.count.unwrap_or(names.len() as u64);
        if !names.is_empty() && count > names.len() as u64 {
            let why = format!("--count is {count}, but only {} are named", names.len());
            return Err(
                CliError::usage("wait", why).hint("leave --count out to wait for all of them")
            );
        }
        Ok(Self {
            names,
            of_ranks: args.ranks.is_some(),
            state: args.state,
            count,
        })
    }

    fn look(&self, path: &Path) -> Result<Progress, CliError> {
        let answer =
            ask(path, &Question::Members).map_err(|error| repeated_request_error(path, error))?;
        let mut others = Vec::new();
        if answer["outside"].is_object() {
            others = nodes_of_other_zones(path)?;
        }
        let members = array(&answer, "members").iter().chain(&others);
        let states: Vec<(String, &str)> = match self.of_ranks {
            false => members
                .map(|one| (text(one, "name").to_owned(), text(one, "state")))
                .collect(),
            true => members.flat_map(ranks_of).collect(),
        };
        let mut progress = Progress {
            reached: Vec::new(),
            lost: Vec::new(),
            missing: self.names.clone(),
            unknown: self.names.clone(),
        };
        for (name, state) in states {
            progress.unknown.retain(|unknown| *unknown != name);
            if !self.names.is_empty() && !self.names.contains(&name) {
                continue;
            }
            if state == self.state.name() {
                progress.missing.retain(|missing| *missing != name);
                progress.reached.push(name);
            } else if matches!(state, "failed" | "left") {
                progress.lost.push(name);
            }
        }
        Ok(progress)
    }

    /// Whether the wanted state requires a restart: too few of the members that are to be alive remain.
    fn is_lost(&self, progress: &Progress) -> bool {
        let left = self.names.len().saturating_sub(progress.lost.len()) as u64;
        self.state == State::Alive && !self.names.is_empty() && left < self.count
    }

    /// Names as they are typed: ranks are without brackets, as in 0-3.
    fn folded(&self, names: &[String]) -> String {
        let folded = fold(names.iter().map(String::as_str));
        match self.of_ranks {
            true => folded.trim_matches(['[', ']']).to_owned(),
            false => folded,
        }
    }

    fn what(&self) -> String {
        let subject = match self.names.is_empty() {
            true => "members".to_owned(),
            false if self.of_ranks => format!("ranks {}", self.folded(&self.names)),
            false => self.folded(&self.names),
        };
        format!(
            "wait for {} of {subject} to be {}",
            self.count,
            self.state.name()
        )
    }

    fn timed_out(&self, progress: &Progress, seconds: u64) -> CliError {
        let (count, state) = (progress.reached.len(), self.state.name());
        let mut why = format!("timed out after {seconds} s with {count} {state}");
        let (unknown, mut others) = (&progress.unknown, progress.missing.clone());
        others.retain(|name| !unknown.contains(name));
        for (names, what) in [
            (&others, format!("not {state}")),
            (unknown, "unknown".into()),
        ] {
            if !names.is_empty() {
                why += &format!("; {what}: {}", self.folded(names));
            }
        }
        CliError::timed_out(self.what(), why).hint("muster members shows all states")
    }
}

/// The ranks of a member with their states. Ranks of a failed member have failed too.
fn ranks_of(member: &Value) -> Vec<(String, &str)> {
    let node_is_lost = text(member, "state") == "failed";
    let state = |rank: &Value| match text(rank, "state") {
        "alive" | "hung" if node_is_lost => "failed",
        "alive" => "alive",
        "hung" => "hung",
        "failed" => "failed",
        "left" => "left",
        _ => "unknown",
    };
    let ranks = array(member, "ranks").iter();
    ranks
        .map(|rank| (rank["rank"].to_string(), state(rank)))
        .collect()
}

fn print(wanted: &Wanted, progress: &Progress, output: Shape) {
    let answer = json!({
        "schema": "muster/wait/v1",
        "state": wanted.state.name(),
        "reached": progress.reached,
    });
    let names = wanted.folded(&progress.reached);
    match output {
        Shape::Table => println!("{names} {}", wanted.state.name()),
        Shape::Json => println!("{answer:#}"),
        Shape::Yaml => print!("{}", Yaml(&answer)),
    }
}
