//! `muster wait`: returns when members or ranks are in a state, woken by the agent's events.

use super::agents;
use super::names;
use super::show::{Shape, ShowArgs, TIMEOUT_MAX_S, array, asked, asked_again, text};
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
    /// Members to wait for, such as n[01-16]; without any, --count of all.
    hosts: Vec<String>,
    /// Ranks to wait for instead, such as 0-3,7.
    #[arg(long, value_name = "RANKS", conflicts_with = "hosts")]
    ranks: Option<String>,
    /// The state to wait for.
    #[arg(short, long, value_name = "STATE", default_value = "alive")]
    state: State,
    /// How many must be in it [default: all that are named].
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u64).range(1..))]
    count: Option<u64>,
    /// How long to wait, in seconds; exit code 5 then.
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
    fn word(self) -> &'static str {
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

/// What is waited for.
struct Wanted {
    names: Vec<String>,
    of_ranks: bool,
    state: State,
    count: u64,
}

/// Where it stands.
struct Standing {
    reached: Vec<String>,
    /// Those that will hardly come any more: failed or left where they should live.
    lost: Vec<String>,
    missing: Vec<String>,
    /// Names of those that the agent does not know.
    unknown: Vec<String>,
}

/// Runs it.
pub(crate) fn run(args: &WaitArgs) -> Result<(), CliError> {
    let wanted = Wanted::read(args)?;
    let path = agents::find(&args.show.agent)?;
    let end = Instant::now() + Duration::from_secs(args.timeout);
    // First the ear, then the look: nothing falls between the two. What is old wakes nobody.
    let head = Follower::open(&path, u64::MAX - 1, false)
        .map_err(asked)?
        .head;
    let mut ear = Follower::open(&path, head["last"].as_u64().unwrap_or(0), true).map_err(asked)?;
    loop {
        let standing = wanted.look(&path)?;
        if standing.reached.len() as u64 >= wanted.count {
            print(&wanted, &standing, args.show.output);
            return Ok(());
        }
        if wanted.is_lost(&standing) {
            let why = format!("{} failed or left", wanted.folded(&standing.lost));
            let hint = match wanted.of_ranks {
                true => "muster members".to_owned(),
                false => format!("muster why {}", standing.lost[0]),
            };
            return Err(CliError::new(wanted.what(), why).exit_code(4).hint(hint));
        }
        match ear.next(Some(end)).map_err(asked)? {
            Followed::Event(_) => {}
            Followed::Late => return Err(wanted.late(&standing, args.timeout)),
            Followed::Ended => {
                return Err(agents::ended(&path));
            }
        }
    }
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
            let why = "for whom? name members, --ranks or --count";
            return Err(CliError::usage("wait", why).hint("muster wait --count 4"));
        }
        let count = args.count.unwrap_or(names.len() as u64);
        if !names.is_empty() && count > names.len() as u64 {
            let why = format!("--count {count} of {} that are named", names.len());
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

    fn look(&self, path: &Path) -> Result<Standing, CliError> {
        let answer = ask(path, &Question::Members).map_err(|error| asked_again(path, error))?;
        let members = array(&answer, "members").iter();
        let states: Vec<(String, &str)> = match self.of_ranks {
            false => members
                .map(|one| (text(one, "name").to_owned(), text(one, "state")))
                .collect(),
            true => members.flat_map(ranks_of).collect(),
        };
        let mut standing = Standing {
            reached: Vec::new(),
            lost: Vec::new(),
            missing: self.names.clone(),
            unknown: self.names.clone(),
        };
        for (name, state) in states {
            standing.unknown.retain(|unknown| *unknown != name);
            if !self.names.is_empty() && !self.names.contains(&name) {
                continue;
            }
            if state == self.state.word() {
                standing.missing.retain(|missing| *missing != name);
                standing.reached.push(name);
            } else if matches!(state, "failed" | "left") {
                standing.lost.push(name);
            }
        }
        Ok(standing)
    }

    /// Whether it cannot come any more without a restart: who waits for the living gives up on the dead.
    fn is_lost(&self, standing: &Standing) -> bool {
        let left = self.names.len().saturating_sub(standing.lost.len()) as u64;
        self.state == State::Alive && !self.names.is_empty() && left < self.count
    }

    /// Names as they are typed: ranks without brackets, 0-3.
    fn folded(&self, names: &[String]) -> String {
        let folded = fold(names.iter().map(String::as_str));
        match self.of_ranks {
            true => folded.trim_matches(['[', ']']).to_owned(),
            false => folded,
        }
    }

    fn what(&self) -> String {
        let whom = match self.names.is_empty() {
            true => "members".to_owned(),
            false if self.of_ranks => format!("ranks {}", self.folded(&self.names)),
            false => self.folded(&self.names),
        };
        format!(
            "wait for {} of {whom} to be {}",
            self.count,
            self.state.word()
        )
    }

    fn late(&self, standing: &Standing, seconds: u64) -> CliError {
        let (count, state) = (standing.reached.len(), self.state.word());
        let mut why = format!("timed out after {seconds} s with {count} {state}");
        let (unknown, mut others) = (&standing.unknown, standing.missing.clone());
        others.retain(|name| !unknown.contains(name));
        for (names, what) in [
            (&others, format!("not {state}")),
            (unknown, "unknown".into()),
        ] {
            if !names.is_empty() {
                why += &format!("; {what}: {}", self.folded(names));
            }
        }
        CliError::timed_out(self.what(), why).hint("muster members")
    }
}

/// The ranks of a member, with their states; those of one that failed have failed with it.
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

fn print(wanted: &Wanted, standing: &Standing, output: Shape) {
    let answer = json!({
        "schema": "muster/wait/v1",
        "state": wanted.state.word(),
        "reached": standing.reached,
    });
    let names = wanted.folded(&standing.reached);
    match output {
        Shape::Table => println!("{names} {}", wanted.state.word()),
        Shape::Json => println!("{answer:#}"),
        Shape::Yaml => print!("{}", Yaml(&answer)),
    }
}
