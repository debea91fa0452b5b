//! `muster report`: one page about what became of a job, from the journals of its nodes.
//!
//! The page is one file that needs nothing else: text, a table, and a drawing in it. What several agents
//! say of one thing is one incident, with how long it took until the last of them knew. What nodes say of others
//! while they are cut off is shown apart from that, and never counts as a failure.

mod apart;
mod entry;
mod incident;
mod material;
mod page;
mod summary;
mod timeline;

use super::agents::AgentArgs;
use super::show::counted;
use clap::Args;
use material::Material;
use muster_terminal::CliError;
use std::fs;
use std::path::PathBuf;

/// Options of `muster report`.
#[derive(Args)]
pub(crate) struct ReportArgs {
    /// Journals, or directories of them (MUSTER_JOURNAL), the parts before included; without any, the
    /// events that an agent has in memory.
    journals: Vec<PathBuf>,
    /// The HTML page that is written; - is standard output.
    #[arg(short, long, value_name = "FILE", default_value = "report.html", value_parser = page_file)]
    output: PathBuf,
    #[command(flatten)]
    agent: AgentArgs,
}

/// Runs it.
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
        let why = "there is no event in what was named";
        return Err(
            CliError::new("report", why).hint("muster events shows whether an agent has some")
        );
    }
    let content = material.content();
    let text = page::page(&content);
    if args.output.as_os_str() == "-" {
        print!("{text}");
        return Ok(());
    }
    fs::write(&args.output, text).map_err(|cause| {
        CliError::new(format!("write {}", args.output.display()), cause)
            .hint("name a file in a directory that can be written, with -o FILE")
    })?;
    println!(
        "{}: {} ({}, {})",
        args.output.display(),
        content.summary,
        counted(material.events.len(), "event"),
        counted(content.explanation.incidents.len(), "incident")
    );
    Ok(())
}

/// Other commands take a format with `-o`: a file of that name is hardly meant.
fn page_file(word: &str) -> Result<PathBuf, String> {
    if ["table", "json", "yaml", "html"].contains(&word) {
        return Err(format!(
            "a report is an HTML page, and -o names its file (./{word} for one of that name); for events as data use \
             muster events -o json"
        ));
    }
    Ok(word.into())
}

/// The files that are meant, older parts first.
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

#[cfg(test)]
mod tests {
    #[test]
    fn a_format_is_no_file() {
        for word in ["json", "yaml", "table"] {
            let said = super::page_file(word).unwrap_err();
            assert!(
                said.contains(&format!("./{word}")) && said.contains("muster events"),
                "{said}"
            );
        }
        for file in ["-", "report.html", "./json"] {
            assert_eq!(super::page_file(file), Ok(file.into()));
        }
    }
}
