//! `muster config`: shows the settings of an agent and their sources, and checks a configuration file.

use super::answer::{align, array, print_answer, text};
use super::document::read;
use super::show::{ShowArgs, show};
use clap::{Args, Subcommand};
use muster_control::Question;
use muster_terminal::CliError;
use serde_json::{Value, json};
use std::path::PathBuf;

/// Subcommands of `muster config`.
#[derive(Subcommand)]
pub(crate) enum ConfigCommand {
    /// Show the agent's settings; muster export shows its rails, peers and policy.
    Show(ShowConfigArgs),
    /// Check a file of rails, peers and policy, without an agent; exit code 7 if it is wrong.
    Check(CheckConfigArgs),
}

/// Options of `muster config show`.
#[derive(Args)]
pub(crate) struct ShowConfigArgs {
    /// Show the source of each setting: option, variable, file or default.
    #[arg(long)]
    origin: bool,
    #[command(flatten)]
    show: ShowArgs,
}

/// Options of `muster config check`.
#[derive(Args)]
pub(crate) struct CheckConfigArgs {
    /// The file, as muster export writes it; - is standard input.
    file: PathBuf,
    #[command(flatten)]
    show: ShowArgs,
}

/// Runs `muster config`.
pub(crate) fn run(command: &ConfigCommand) -> Result<(), CliError> {
    match command {
        ConfigCommand::Show(args) => {
            let table = if args.origin {
                with_origin
            } else {
                without_origin
            };
            show(&args.show, &Question::Config, table)
        }
        ConfigCommand::Check(args) => {
            let document = read(&args.file, "muster export prints an example of a document")?;
            let rails = document.rails.len();
            let answer = json!({
                "schema": "muster/config-check/v1",
                "file": args.file.display().to_string(),
                "rails": rails,
                "peers": document.peers.len(),
                "rules": document.policy.rules().len(),
            });
            print_answer(args.show.output, &answer, |answer| {
                format!(
                    "{} is valid: rails {}, peers {}, rules {}\n",
                    text(answer, "file"),
                    answer["rails"],
                    answer["peers"],
                    answer["rules"]
                )
            });
            Ok(())
        }
    }
}

fn with_origin(answer: &Value) -> String {
    let mut rows = vec![["SETTING", "VALUE", "ORIGIN"].map(String::from)];
    for one in array(answer, "settings") {
        rows.push(["key", "value", "origin"].map(|key| text(one, key).to_owned()));
    }
    align(&rows)
}

fn without_origin(answer: &Value) -> String {
    let mut rows = vec![["SETTING", "VALUE"].map(String::from)];
    for one in array(answer, "settings") {
        rows.push(["key", "value"].map(|key| text(one, key).to_owned()));
    }
    align(&rows)
}
