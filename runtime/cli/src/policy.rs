//! `muster policy`: the rules that set preferences of nets, interfaces and pairs, and whether members relay for each
//! other.

use super::answer::{align, array, text};
use super::show::{ShowArgs, change, show};
use clap::{Args, Subcommand, ValueEnum};
use muster_config::{Change, RuleChoice, SUBJECTS, subject};
use muster_control::{Question, Request};
use muster_fabric::{Net, NidPattern, Rule, Subject};
use muster_terminal::CliError;
use serde_json::Value;

/// Options of `muster policy`.
#[derive(Args)]
#[command(args_conflicts_with_subcommands = true)]
pub(crate) struct PolicyArgs {
    #[command(subcommand)]
    command: Option<PolicyCommand>,
    #[command(flatten)]
    show: ShowArgs,
}

#[derive(Subcommand)]
enum PolicyCommand {
    /// Show the rules in force (the same as no command).
    Show(ShowArgs),
    /// Add a rule: its subject and its priority.
    Add(AddArgs),
    /// Remove a rule, by its number or its subject.
    Del(DelArgs),
    /// Switch relaying on or off: use other members where no direct pair works, and relay for them.
    Relay(RelayArgs),
}

#[derive(Args)]
struct RelayArgs {
    /// On or off.
    state: Switch,
    #[command(flatten)]
    show: ShowArgs,
}

#[derive(Clone, Copy, PartialEq, Eq, ValueEnum)]
enum Switch {
    /// The default.
    On,
    /// Nothing is sent through other members, nothing is relayed for them.
    Off,
}

#[derive(Args)]
struct AboutArgs {
    /// All rails on this net.
    #[arg(long)]
    net: Option<Net>,
    /// Local interfaces: 10.0.[0-3].*@udp0, eth[0-1]@udp0 or *@udp0; may be repeated.
    #[arg(long, value_name = "PATTERN")]
    local: Vec<NidPattern>,
    /// Remote NIDs, paired with each of the local ones; may be repeated.
    #[arg(long, value_name = "PATTERN", requires = "local")]
    remote: Vec<NidPattern>,
}

#[derive(Args)]
struct AddArgs {
    #[command(flatten)]
    about: AboutArgs,
    /// 0 is the highest preference, 255 the lowest; paths without a rule come after that.
    #[arg(long, default_value_t = 0)]
    priority: u8,
    /// Consecutive messages before another path is used in turn.
    #[arg(long)]
    messages: Option<u32>,
    #[command(flatten)]
    show: ShowArgs,
}

#[derive(Args)]
struct DelArgs {
    /// The rule's number, as shown.
    #[arg(conflicts_with_all = ["net", "local", "remote"])]
    number: Option<usize>,
    #[command(flatten)]
    about: AboutArgs,
    #[command(flatten)]
    show: ShowArgs,
}

/// Runs `muster policy`.
pub(crate) fn run(args: &PolicyArgs) -> Result<(), CliError> {
    match &args.command {
        None => show(&args.show, &Question::Policy, table),
        Some(PolicyCommand::Show(args)) => show(args, &Question::Policy, table),
        Some(PolicyCommand::Add(args)) => {
            let rule = Rule {
                subject: about(&args.about)?,
                priority: args.priority,
                messages: args.messages,
            };
            change(&args.show, &Request::Change(Change::AddRule(rule)))
        }
        Some(PolicyCommand::Relay(args)) => {
            let on = args.state == Switch::On;
            change(&args.show, &Request::Change(Change::SetRelay(on)))
        }
        Some(PolicyCommand::Del(args)) => {
            let choice = match args.number {
                Some(number) => RuleChoice::Number(number),
                None => RuleChoice::About(about(&args.about)?),
            };
            change(&args.show, &Request::Change(Change::RemoveRule(choice)))
        }
    }
}

fn about(args: &AboutArgs) -> Result<Subject, CliError> {
    let (local, remote) = (args.local.clone(), args.remote.clone());
    subject(args.net, local, remote).ok_or_else(|| {
        CliError::usage("policy", SUBJECTS).hint("give --net, or --local, or --local and --remote")
    })
}

fn table(answer: &Value) -> String {
    let mut rows = vec![["RULE", "PRIORITY", "MESSAGES", "ABOUT"].map(String::from)];
    for rule in array(answer, "rules") {
        rows.push([
            rule["number"].to_string(),
            rule["priority"].to_string(),
            rule["messages"]
                .as_u64()
                .map_or("-".into(), |count| count.to_string()),
            text(rule, "about").to_owned(),
        ]);
    }
    align(&rows) + &format!("relay {}\n", text(answer, "relay"))
}
