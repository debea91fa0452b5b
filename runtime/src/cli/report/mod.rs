//! `muster report`: one page about what became of a job, from the journals of its nodes.
//!
//! The page is one file that needs nothing else: text, a table, and a drawing in it. What several agents
//! say of one thing is one incident, with how long it took until the last of them knew.

mod incident;
mod page;
mod timeline;

use super::CliError;
use super::agents::{self, AgentArgs};
use super::show::{asked, counted};
use crate::control::{Followed, Follower};
use clap::Args;
use incident::{Incident, gather};
use serde_json::Value;
use std::fs::{self, File};
use std::io::{BufRead, BufReader, Read};
use std::path::{Path, PathBuf};

/// Lines of all journals together: more would be a page that no browser shows.
const LINES_MAX: usize = 1 << 20;
/// Longest line.
const LINE_BYTES_MAX: u64 = 1 << 20;

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

/// Everything that was read.
#[derive(Debug, Default)]
struct Material {
    events: Vec<Value>,
    /// Lines that are no events, of a file that was cut for instance.
    unread: usize,
    /// Events beyond what a page can hold.
    left_out: usize,
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
    let incidents = gather(&material.events);
    let text = page::page(
        &incidents,
        &material.events,
        material.unread,
        material.left_out,
    );
    if args.output.as_os_str() == "-" {
        print!("{text}");
        return Ok(());
    }
    fs::write(&args.output, text).map_err(|cause| {
        CliError::new(format!("write {}", args.output.display()), cause)
            .hint("name a file in a directory that can be written, with -o FILE")
    })?;
    let failures = incidents
        .iter()
        .filter(|incident| incident.is_failure())
        .count();
    println!(
        "{}: {}, {}, {}",
        args.output.display(),
        counted(material.events.len(), "event"),
        counted(incidents.len(), "incident"),
        counted(failures, "failure")
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

impl Material {
    fn ask(&mut self, agent: &AgentArgs) -> Result<(), CliError> {
        let path = agents::find(agent)?;
        let mut follower = Follower::open(&path, 0, false).map_err(asked)?;
        while let Followed::Event(event) = follower.next(None).map_err(asked)? {
            self.take(event);
        }
        Ok(())
    }

    fn read(&mut self, path: &Path) -> std::io::Result<()> {
        let mut file = BufReader::new(File::open(path)?);
        let mut line = Vec::new();
        while file
            .by_ref()
            .take(LINE_BYTES_MAX)
            .read_until(b'\n', &mut line)?
            > 0
        {
            match serde_json::from_slice::<Value>(&line) {
                Ok(event) if event["event"].is_string() => self.take(event),
                _ if line.trim_ascii().is_empty() => {}
                _ => self.unread += 1,
            }
            line.clear();
        }
        Ok(())
    }

    fn take(&mut self, event: Value) {
        match self.events.len() < LINES_MAX {
            true => self.events.push(event),
            false => self.left_out += 1,
        }
    }
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
