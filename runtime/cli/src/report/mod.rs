//! `muster report`: writes one page about the course of a job, from the journals of its nodes.
//!
//! The page is a single HTML file without references: text, tables and a drawing. Reports of several agents about one
//! event are one incident, with the time between the first and the last report. Reports of nodes about others while
//! they are cut off are shown separately, and never count as failures. In a job with zones a table has the losses of
//! each.

mod apart;
mod entry;
mod html;
mod incident;
mod material;
mod page;
mod summary;
mod timeline;
mod zones;

use super::agents::AgentArgs;
use super::answer::counted;
use clap::Args;
use material::Material;
use muster_terminal::CliError;
use std::fs;
use std::path::PathBuf;

/// Options of `muster report`.
#[derive(Args)]
pub(crate) struct ReportArgs {
    /// Journals, or directories of them (MUSTER_JOURNAL), including rotated parts; without any, the
    /// events that an agent has in memory.
    journals: Vec<PathBuf>,
    /// HTML file to write; - is standard output.
    #[arg(long, value_name = "FILE", default_value = "report.html")]
    file: PathBuf,
    #[command(flatten)]
    agent: AgentArgs,
}

/// Runs `muster report`.
pub(crate) fn run(args: &ReportArgs) -> Result<(), CliError> {
    let mut material = Material::default();
    if args.journals.is_empty() {
        material.ask(&args.agent)?;
    }
    for path in files(&args.journals)? {
        let failed = |cause| {
            CliError::new(format!("read {}", path.display()), cause)
                .hint("name journals, as musterd writes them with MUSTER_JOURNAL")
        };
        material.read(&path).map_err(failed)?;
    }
    if material.events.is_empty() {
        let why = "the given journals have no events";
        return Err(
            CliError::new("report", why).hint("muster events prints the events of an agent")
        );
    }
    let content = material.content();
    let text = page::page(&content);
    if args.file.as_os_str() == "-" {
        print!("{text}");
        return Ok(());
    }
    fs::write(&args.file, text).map_err(|cause| {
        CliError::new(format!("write {}", args.file.display()), cause)
            .hint("name a file in a writable directory with --file FILE")
    })?;
    println!(
        "{}: {} ({}, {})",
        args.file.display(),
        content.summary,
        counted(material.events.len(), "event"),
        counted(content.explanation.incidents.len(), "incident")
    );
    Ok(())
}

/// The journal files to read, rotated parts first.
fn files(named: &[PathBuf]) -> Result<Vec<PathBuf>, CliError> {
    let mut files = Vec::new();
    for path in named {
        if path.is_dir() {
            let entries = fs::read_dir(path)
                .map_err(|cause| CliError::new(format!("read {}", path.display()), cause))?;
            let paths = entries.flatten().map(|entry| entry.path());
            let is_journal = |path: &PathBuf| {
                let name = path.file_name().unwrap_or_default().to_string_lossy();
                name.ends_with(".jsonl") || name.ends_with(".jsonl.1")
            };
            files.extend(paths.filter(is_journal));
        } else {
            let mut older = path.as_os_str().to_owned();
            older.push(".1");
            files.extend(
                [PathBuf::from(older)]
                    .into_iter()
                    .filter(|path| path.exists()),
            );
            files.push(path.clone());
        }
    }
    files.sort();
    files.dedup();
    Ok(files)
}
