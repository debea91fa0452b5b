//! `muster metrics`: all figures as OpenMetrics on standard output, or in a file for node_exporter, in the
//! older text format of Prometheus: its textfile collector reads no other, and leaves out a whole file of which
//! it does not know one type.

use super::show::{Shape, ShowArgs, ask, print_answer, text};
use clap::Args;
use muster_control::{Question, Request};
use muster_terminal::CliError;
use std::fs::{self, File};
use std::io::{self, Write};
use std::path::{Path, PathBuf};

/// Options of `muster metrics`.
#[derive(Args)]
pub(crate) struct MetricsArgs {
    /// Write to this file in place of standard output, for node_exporter's textfile collector: in the text
    /// format of Prometheus, which is the one that it reads; beside it first, then renamed, so that nobody
    /// reads half of it. The collector wants a name that ends with .prom.
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
        (Some(path), _) => replace(path, &classic(metrics)).map_err(|cause| {
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

/// OpenMetrics in the text format that was before: a family has the name of its samples, there are no types
/// but gauge and counter, and nothing marks the end.
fn classic(open: &str) -> String {
    let mut text = String::with_capacity(open.len());
    let mut suffix = "";
    for line in open.lines().filter(|line| *line != "# EOF") {
        let words: Vec<&str> = line.splitn(4, ' ').collect();
        let line = match words[..] {
            ["#", "TYPE", family, kind] => {
                let (behind, kind) = match kind {
                    "counter" => ("_total", "counter"),
                    "info" => ("_info", "gauge"),
                    kind => ("", kind),
                };
                suffix = behind;
                format!("# TYPE {family}{suffix} {kind}")
            }
            ["#", "HELP", family, help] => format!("# HELP {family}{suffix} {help}"),
            _ => line.to_owned(),
        };
        text.push_str(&line);
        text.push('\n');
    }
    text
}

/// Puts the text in the place of the file at once.
fn replace(path: &Path, text: &str) -> io::Result<()> {
    let name = path.file_name().ok_or(io::ErrorKind::InvalidInput)?;
    let mut fresh = std::ffi::OsString::from(".");
    fresh.push(name);
    fresh.push(format!(".{}", std::process::id()));
    let fresh = path.with_file_name(fresh);
    // In a directory that others may write to, a link of theirs must not be followed.
    let _ = fs::remove_file(&fresh);
    let written = File::create_new(&fresh).and_then(|mut file| {
        file.write_all(text.as_bytes())?;
        fs::rename(&fresh, path)
    });
    if written.is_err() {
        let _ = fs::remove_file(&fresh);
    }
    written
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_file_has_families_with_the_names_of_their_samples() {
        let open = "# TYPE a info\n# HELP a Who tells.\na_info{x=\"1 2\"} 1\n# TYPE b counter\n# HELP b Of b.\n\
                    b_total{x=\"1\"} 3\n# TYPE c gauge\n# HELP c Of c.\nc{x=\"1\"} 4\n# EOF\n";
        let wanted = "# TYPE a_info gauge\n# HELP a_info Who tells.\na_info{x=\"1 2\"} 1\n# TYPE b_total counter\n\
                      # HELP b_total Of b.\nb_total{x=\"1\"} 3\n# TYPE c gauge\n# HELP c Of c.\nc{x=\"1\"} 4\n";
        assert_eq!(classic(open), wanted);
    }
}
