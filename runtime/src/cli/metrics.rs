//! `muster metrics`: all figures as OpenMetrics, on standard output or in a file for node_exporter.

use super::CliError;
use super::show::{Shape, ShowArgs, ask, print_answer, text};
use crate::control::{Question, Request};
use clap::Args;
use std::fs::{self, File};
use std::io::{self, Write};
use std::path::{Path, PathBuf};

/// Options of `muster metrics`.
#[derive(Args)]
pub(crate) struct MetricsArgs {
    /// Write to this file in place of standard output: beside it first, then renamed, so that nobody
    /// reads half of it. node_exporter's textfile collector wants a name that ends with .prom.
    #[arg(long, value_name = "PATH")]
    textfile: Option<PathBuf>,
    #[command(flatten)]
    show: ShowArgs,
}

/// Runs it.
pub(crate) fn run(args: &MetricsArgs) -> Result<(), CliError> {
    let answer = ask(&args.show, &Request::Ask(Question::Metrics))?;
    let metrics = text(&answer, "text");
    match (&args.textfile, args.show.output) {
        (Some(path), _) => replace(path, metrics).map_err(|cause| {
            CliError::new(format!("write {}", path.display()), cause)
                .hint("the file there is as it was; name one in a directory that can be written")
        }),
        (None, Shape::Table) => {
            print!("{metrics}");
            Ok(())
        }
        (None, output) => {
            print_answer(output, &answer, |_| String::new());
            Ok(())
        }
    }
}

/// Puts the text in the place of the file at once.
fn replace(path: &Path, text: &str) -> io::Result<()> {
    let name = path.file_name().ok_or(io::ErrorKind::InvalidInput)?;
    let mut fresh = std::ffi::OsString::from(".");
    fresh.push(name);
    fresh.push(format!(".{}", std::process::id()));
    let fresh = path.with_file_name(fresh);
    let written = File::create(&fresh).and_then(|mut file| {
        file.write_all(text.as_bytes())?;
        fs::rename(&fresh, path)
    });
    if written.is_err() {
        let _ = fs::remove_file(&fresh);
    }
    written
}
