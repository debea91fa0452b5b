//! `muster attrs`: shows the attributes that nodes have published for each other.

use super::answer::{align, array, text};
use super::names;
use super::show::{ShowArgs, show};
use clap::Args;
use muster_control::Question;
use muster_hostlist::by_number;
use muster_terminal::CliError;
use serde_json::Value;

/// Options of `muster attrs`.
#[derive(Args)]
pub(crate) struct AttrsArgs {
    /// Only the attributes of this member.
    name: Option<String>,
    /// Also those that the launchers of muster run publish for each other (run.*).
    #[arg(long)]
    all: bool,
    #[command(flatten)]
    show: ShowArgs,
}

/// Runs `muster attrs`.
pub(crate) fn run(args: &AttrsArgs) -> Result<(), CliError> {
    let name = args.name.as_deref().map(|name| names::one("attrs", name));
    let table = if args.all {
        all_attributes
    } else {
        without_run_attributes
    };
    show(&args.show, &Question::Attributes(name.transpose()?), table)
}

fn all_attributes(answer: &Value) -> String {
    table(answer, |_| true)
}

fn without_run_attributes(answer: &Value) -> String {
    table(answer, |key| !key.starts_with("run."))
}

fn table(answer: &Value, is_shown: fn(&str) -> bool) -> String {
    // A value may be long, so it is the last column.
    let mut rows = vec![["NODE", "KEY", "VERSION", "VALUE"].map(String::from)];
    let mut attributes: Vec<&Value> = array(answer, "attributes").iter().collect();
    attributes.retain(|one| is_shown(text(one, "key")));
    attributes.sort_by(|one, other| {
        let by_node = by_number(text(one, "node"), text(other, "node"));
        by_node.then_with(|| text(one, "key").cmp(text(other, "key")))
    });
    for one in attributes {
        let value = match (one["value"].as_str(), one["value_hex"].as_str()) {
            (Some(value), _) => value.to_owned(),
            (None, Some(hex)) => format!("0x{hex}"),
            (None, None) => "-".to_owned(),
        };
        let (node, key) = (text(one, "node").to_owned(), text(one, "key").to_owned());
        rows.push([node, key, one["version"].to_string(), value]);
    }
    align(&rows)
}
