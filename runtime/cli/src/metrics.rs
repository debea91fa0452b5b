//! `muster metrics`: prints all metrics as OpenMetrics, or writes them to a file for node_exporter.
//!
//! The file has the older text format of Prometheus. The textfile collector of node_exporter reads no other format, and
//! skips a whole file if it does not know one type in it.

use super::answer::{Shape, print_answer, text};
use super::show::{ShowArgs, ask};
use clap::Args;
use muster_control::{Question, Request};
use muster_terminal::CliError;
use std::fs::{self, File};
use std::io::{self, Write};
use std::path::{Path, PathBuf};

/// Options of `muster metrics`.
#[derive(Args)]
pub(crate) struct MetricsArgs {
    /// Write to this file instead of standard output, for node_exporter's textfile collector: in the text format
    /// of Prometheus, which is the one that it reads. The file is replaced in one step (written beside it, then
    /// renamed). The collector requires a name that ends with .prom.
    #[arg(long, value_name = "PATH")]
    textfile: Option<PathBuf>,
    #[command(flatten)]
    show: ShowArgs,
}

/// Runs `muster metrics`.
pub(crate) fn run(args: &MetricsArgs) -> Result<(), CliError> {
    let answer = ask(&args.show, &Request::Ask(Question::Metrics))?;
    let metrics = text(&answer, "text");
    match (&args.textfile, args.show.output) {
        (Some(path), _) => replace(path, &classic(metrics)).map_err(|cause| {
            CliError::new(format!("write {}", path.display()), cause)
                .hint("the previous file is unchanged; name a file in a writable directory")
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

/// Converts OpenMetrics into the older text format: a family has the name of its samples, the only types are gauge and
/// counter, and there is no end marker.
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

/// Replaces the content of the file in one step.
fn replace(path: &Path, text: &str) -> io::Result<()> {
    let name = path.file_name().ok_or(io::ErrorKind::InvalidInput)?;
    let mut temporary = std::ffi::OsString::from(".");
    temporary.push(name);
    temporary.push(format!(".{}", std::process::id()));
    let temporary = path.with_file_name(temporary);
    // In a directory that other users may write to, a symbolic link of theirs must not be followed.
    let _ = fs::remove_file(&temporary);
    let written = File::create_new(&temporary).and_then(|mut file| {
        file.write_all(text.as_bytes())?;
        fs::rename(&temporary, path)
    });
    if written.is_err() {
        let _ = fs::remove_file(&temporary);
    }
    written
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn families_in_a_file_have_the_names_of_their_samples() {
        let open = "# TYPE a info\n# HELP a Who tells.\na_info{x=\"1 2\"} 1\n# TYPE b counter\n# HELP b Of b.\n\
                    b_total{x=\"1\"} 3\n# TYPE c gauge\n# HELP c Of c.\nc{x=\"1\"} 4\n# EOF\n";
        let wanted = "# TYPE a_info gauge\n# HELP a_info Who tells.\na_info{x=\"1 2\"} 1\n# TYPE b_total counter\n\
                      # HELP b_total Of b.\nb_total{x=\"1\"} 3\n# TYPE c gauge\n# HELP c Of c.\nc{x=\"1\"} 4\n";
        assert_eq!(classic(open), wanted);
    }
}
