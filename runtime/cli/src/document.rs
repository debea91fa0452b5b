//! `muster export` and `muster import`: the configuration of rails, peers and policy as one document.

use super::answer::{Shape, print_answer, text};
use super::show::{ShowArgs, ask, change};
use clap::Args;
use muster_config::{Change, ConfigError, RailsDocument, read_document};
use muster_control::{Question, Request};
use muster_terminal::CliError;
use std::path::{Path, PathBuf};

/// Options of `muster export`.
#[derive(Args)]
pub(crate) struct ExportArgs {
    #[command(flatten)]
    show: ShowArgs,
}

/// Options of `muster import`.
#[derive(Args)]
pub(crate) struct ImportArgs {
    /// The document, as muster export writes it; - is standard input.
    file: PathBuf,
    #[command(flatten)]
    show: ShowArgs,
}

/// Runs `muster export`.
pub(crate) fn export(args: &ExportArgs) -> Result<(), CliError> {
    let answer = ask(&args.show, &Request::Ask(Question::Export))?;
    match args.show.output {
        // The document is YAML already, in whatever format the agent's answer is.
        Shape::Table | Shape::Yaml => print!("{}", text(&answer, "yaml")),
        Shape::Json => print_answer(Shape::Json, &answer, |_| String::new()),
    }
    Ok(())
}

/// Runs `muster import FILE`.
pub(crate) fn import(args: &ImportArgs) -> Result<(), CliError> {
    let document = read(
        &args.file,
        "nothing was changed; muster export prints an example of a document",
    )?;
    let replace = Change::Replace(Box::new(document));
    change(&args.show, &Request::Change(replace))
}

/// Reads a document. An error in its content has exit code 7.
pub(super) fn read(file: &Path, hint: &str) -> Result<RailsDocument, CliError> {
    read_document(file).map_err(|error| match &error {
        ConfigError::File { path, source } => CliError::new(path.display().to_string(), source)
            .hint("name a readable file, or - for standard input"),
        ConfigError::Document { path, source } => CliError::new(path.display().to_string(), source)
            .exit_code(7)
            .hint(hint),
        other => CliError::new("read document", other),
    })
}
