//! `muster manual DIR`: writes manual pages and shell completions, generated from the command-line definitions.
//!
//! A generated page cannot describe an option that its command does not accept. Pages about concepts and about the
//! C API are written by hand and are in `docs/man`; `make install` installs both.

use clap::{Args, Command};
use clap_complete::Shell;
use clap_mangen::Man;
use clap_mangen::roff::{Roff, bold, roman};
use muster_terminal::CliError;
use std::fs;
use std::io;
use std::path::{Path, PathBuf};

/// The meaning of each exit code, for every command.
const EXIT_CODES: [(&str, &str); 12] = [
    ("0", "all is well"),
    (
        "1",
        "it failed; standard error has the cause, the reason and a remedy",
    ),
    ("2", "wrong usage"),
    ("3", "no agent answers"),
    (
        "4",
        "muster check: not all is well; muster wait: a member that is to live has failed; muster doctor: \
       something requires a repair",
    ),
    ("5", "a deadline passed"),
    (
        "6",
        "the agent belongs to another user, or other users can change its directory",
    ),
    ("7", "musterd, muster import: the configuration was refused"),
    (
        "20",
        "muster sim: a checked property is violated in the simulated world",
    ),
    (
        "21",
        "muster sim: the simulated world did not become quiet in time",
    ),
    ("22", "muster sim: the code panicked"),
    (
        "0..3",
        "muster check --nagios: OK, WARNING, CRITICAL, UNKNOWN, in place of all these",
    ),
];

/// Examples for the manual pages. A test parses each with the definition of its command.
const EXAMPLES: [(&str, &str); 31] = [
    (
        "muster members",
        "all members, their ranks, and how each state is known",
    ),
    (
        "muster members --fold --state failed,suspect",
        "members that are not well, as n[01-04,07]",
    ),
    (
        "muster why n4",
        "the observations about n4, their sources and times",
    ),
    ("muster why 3", "the same about the node of rank 3"),
    (
        "muster rails add 10.1.0.1@udp1",
        "open a rail; the other members learn of it at once",
    ),
    (
        "muster rails set --sensitivity 200",
        "an error lowers the health of an interface by less",
    ),
    (
        "muster peers n[2-3]",
        "the NIDs of two members, with the traffic over each",
    ),
    (
        "muster policy add --net udp1 --priority 0",
        "prefer this net to all others while it works",
    ),
    ("muster policy del 1", "remove the first rule"),
    (
        "muster explain n2",
        "which rail the next message to n2 takes, and why",
    ),
    (
        "muster events --follow -o json",
        "each event a line of JSON, until the agent ends",
    ),
    (
        "muster events --member n[1-4] --count 1 --timeout 60",
        "the first event about one of these, or exit code 5",
    ),
    (
        "muster wait n[01-16] --timeout 30",
        "until all are alive; exit code 5 if it takes longer, 4 if one has failed",
    ),
    (
        "muster wait --ranks 0-3 --state failed",
        "until these ranks have failed",
    ),
    (
        "muster top --delay 5",
        "members and rails, every five seconds",
    ),
    (
        "muster check --nagios --members 16",
        "a line for monitoring; WARNING below 16 members",
    ),
    (
        "muster report /var/log/muster --file job.html",
        "a page with a timeline, from journals",
    ),
    (
        "muster doctor",
        "what is wrong on this node, with the remedy",
    ),
    ("muster attrs n2", "what n2 has published"),
    (
        "muster metrics --textfile /var/lib/node_exporter/muster.prom",
        "a file for node_exporter",
    ),
    (
        "muster config show --origin",
        "each setting, and its source",
    ),
    (
        "muster config check node.yaml",
        "check a file, without an agent",
    ),
    (
        "muster stats --per rail --rate 1000",
        "the traffic over each rail, per second",
    ),
    ("muster gossip status", "clock and ages"),
    ("muster export", "rails, peers and policy, as YAML"),
    (
        "muster import node.yaml",
        "apply a configuration, whole or not at all",
    ),
    (
        "muster run --nodes 4 -n 8 -- ./app",
        "a job on four emulated nodes of this machine",
    ),
    (
        "muster run --hosts n[1-4] --label -- ./app",
        "a rank on each host, over ssh",
    ),
    (
        "muster demo --out demo.json",
        "the demonstration, and its figures in a file",
    ),
    (
        "musterd --name a --rail 127.0.1.1@udp0 --print-events plain",
        "a member without a job, in the foreground",
    ),
    (
        "musterd --serve --rail eth0@udp0 --hosts n[1-4]",
        "the agent of the job that MUSTER_JOB names",
    ),
];

/// Date of the last revision of the pages. Without a date, the next field of the title line would take its place.
const DATE: &str = "2026-11-22";

/// Options of `muster manual`.
#[derive(Args)]
pub(crate) struct ManualArgs {
    /// Target directory: pages go to man/man1 and man/man8, completions to the standard paths of the shells.
    directory: PathBuf,
}

/// Writes all pages and completions; `muster` is the command-line definition of this program.
pub(crate) fn write(args: &ManualArgs, muster: Command) -> Result<(), CliError> {
    let failed = |error| CliError::new(format!("write under {}", args.directory.display()), error);
    write_all(&args.directory, muster).map_err(failed)
}

fn write_all(directory: &Path, mut muster: Command) -> io::Result<()> {
    muster.build();
    write_pages(&directory.join("man/man1"), &muster, "1")?;
    let mut musterd = muster_agent::command();
    musterd.build();
    write_pages(&directory.join("man/man8"), &musterd, "8")?;
    for command in [&mut muster, &mut musterd] {
        let name = command.get_name().to_owned();
        for (shell, place) in [
            (Shell::Bash, format!("bash-completion/completions/{name}")),
            (Shell::Zsh, format!("zsh/site-functions/_{name}")),
            (
                Shell::Fish,
                format!("fish/vendor_completions.d/{name}.fish"),
            ),
        ] {
            let mut text = Vec::new();
            clap_complete::generate(shell, command, &name, &mut text);
            write_file(&directory.join(place), &text)?;
        }
    }
    Ok(())
}

/// Writes the page of a command and the pages of its subcommands.
fn write_pages(directory: &Path, command: &Command, section: &str) -> io::Result<()> {
    let shown = command.get_subcommands().filter(|sub| {
        // The page of `help` would have nothing that the page of its parent does not have.
        !sub.is_hide_set() && sub.get_name() != "help"
    });
    for subcommand in shown {
        write_pages(directory, subcommand, section)?;
    }
    let name = command.get_display_name().unwrap_or(command.get_name());
    let page = directory.join(format!("{name}.{section}"));
    write_file(&page, &page_of(command, name, section)?)
}

fn page_of(command: &Command, name: &str, section: &str) -> io::Result<Vec<u8>> {
    // The page of `help` is not written, so no page refers to it.
    let mut shown = command.clone();
    if shown.find_subcommand("help").is_some() {
        shown = shown.mut_subcommand("help", |help| help.hide(true));
    }
    let man = Man::new(shown)
        .title(name)
        .section(section)
        .date(DATE)
        .source(format!("Muster {}", env!("CARGO_PKG_VERSION")))
        .manual("Muster Manual");
    let mut page = Vec::new();
    man.render_title(&mut page)?;
    man.render_name_section(&mut page)?;
    let mut synopsis = Roff::new();
    synopsis.control("SH", ["SYNOPSIS"]);
    let usage = command.clone().render_usage().to_string();
    synopsis.text([roman(usage.trim_start_matches("Usage: "))]);
    synopsis.to_writer(&mut page)?;
    man.render_description_section(&mut page)?;
    if command
        .get_arguments()
        .any(|argument| !argument.is_hide_set())
    {
        man.render_options_section(&mut page)?;
    }
    if command
        .get_subcommands()
        .any(|sub| sub.get_name() != "help")
    {
        man.render_subcommands_section(&mut page)?;
    }
    let mut end = Roff::new();
    // A page of a command with subcommands has no examples: the pages of the subcommands have them.
    let prefix = format!("{} ", name.replace('-', " "));
    let is_of_command = |line: &&(&str, &str)| {
        !command.has_subcommands() && format!("{} ", line.0).starts_with(&prefix)
    };
    let examples: Vec<_> = EXAMPLES.iter().filter(is_of_command).collect();
    if !examples.is_empty() {
        end.control("SH", ["EXAMPLES"]);
    }
    for (line, what) in examples {
        end.control("TP", []);
        end.text([bold(*line)]);
        end.text([roman(*what)]);
    }
    end.control("SH", ["EXIT STATUS"]);
    for (code, meaning) in EXIT_CODES {
        end.control("TP", ["4"]);
        end.text([bold(code)]);
        end.text([roman(meaning)]);
    }
    end.control("SH", ["FILES"]);
    end.control("TP", []);
    end.text([bold("/tmp/muster-UID")]);
    end.text([roman(
        "sockets, keys and logs of agents; MUSTER_DIR names another directory, see muster(7)",
    )]);
    end.control("SH", ["SEE ALSO"]);
    end.text([
        bold("muster"),
        roman("(1), "),
        bold("musterd"),
        roman("(8), "),
        bold("muster_init"),
        roman("(3), "),
        bold("muster"),
        roman("(7)"),
    ]);
    end.to_writer(&mut page)?;
    Ok(page)
}

fn write_file(path: &Path, bytes: &[u8]) -> io::Result<()> {
    if let Some(parent) = path.parent() {
        fs::create_dir_all(parent)?;
    }
    fs::write(path, bytes)
        .map_err(|error| io::Error::new(error.kind(), format!("{}: {error}", path.display())))
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Each example is accepted by its command, and is on a page.
    #[test]
    fn every_example_is_a_command_line() {
        for (line, what) in EXAMPLES {
            let root = match line.starts_with("musterd ") {
                true => muster_agent::command(),
                false => crate::whole_command(),
            };
            let parsed = root.try_get_matches_from(line.split(' '));
            assert!(
                parsed.is_ok() && !what.is_empty(),
                "{line}: {:?}",
                parsed.err()
            );
        }
    }
}
