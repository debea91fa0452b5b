//! `muster attrs`: what nodes have published for each other.

use super::CliError;
use super::show::{ShowArgs, align, array, show, text};
use crate::control::Question;
use clap::Args;
use serde_json::Value;

/// Options of `muster attrs`.
#[derive(Args)]
pub(crate) struct AttrsArgs {
    /// Of this member only.
    name: Option<String>,
    #[command(flatten)]
    show: ShowArgs,
}

/// Runs it.
pub(crate) fn run(args: &AttrsArgs) -> Result<(), CliError> {
    show(&args.show, &Question::Attributes(args.name.clone()), table)
}

fn table(answer: &Value) -> String {
    let mut rows = vec![["NODE", "KEY", "VALUE", "VERSION"].map(String::from)];
    for one in array(answer, "attributes") {
        let value = match (one["value"].as_str(), one["value_hex"].as_str()) {
            (Some(value), _) => value.to_owned(),
            (None, Some(hex)) => format!("0x{hex}"),
            (None, None) => "-".to_owned(),
        };
        let (node, key) = (text(one, "node").to_owned(), text(one, "key").to_owned());
        rows.push([node, key, value, one["version"].to_string()]);
    }
    align(&rows)
}
