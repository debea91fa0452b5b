//! `muster manual DIR`: manual pages and completions, made from the command lines themselves.
//!
//! So a page cannot say what a command does not take. Pages about ideas and about the C API are
//! written by hand and lie in `docs/man`; `make install` puts both in one place.

use super::CliError;
use crate::agent;
use clap::{Args, Command};
use clap_complete::Shell;
use clap_mangen::Man;
use clap_mangen::roff::{Roff, bold, roman};
use std::fs;
use std::io;
use std::path::{Path, PathBuf};

/// What the exit codes mean, for every command.
const EXIT_CODES: [(&str, &str); 12] = [
    ("0", "all is well"),
    (
        "1",
        "it failed; standard error says what, why, and what to do",
    ),
    ("2", "wrong usage"),
    ("3", "no agent answers"),
    (
        "4",
        "muster check: not all is well; muster wait: who should live has failed; muster doctor: something \
         is to be mended",
    ),
    ("5", "a deadline passed"),
    (
        "6",
        "the agent is somebody else's, or others can change its place",
    ),
    ("7", "musterd, muster import: the configuration was refused"),
    (
        "20",
        "muster sim: a promise was broken in the simulated world",
    ),
    ("21", "muster sim: it did not come to rest in time"),
    ("22", "muster sim: the code panicked"),
    (
        "0..3",
        "muster check --nagios: OK, WARNING, CRITICAL, UNKNOWN, in place of all these",
    ),
];

/// When the pages were last looked through: without a date the next field would stand in its place.
const DATE: &str = "2026-11-22";

/// Options of `muster manual`.
#[derive(Args)]
pub(crate) struct ManualArgs {
    /// The directory; pages go to its man/man1 and man/man8, completions to where shells look.
    directory: PathBuf,
}

/// Writes everything; `muster` is the command line of this program.
pub(crate) fn write(args: &ManualArgs, muster: Command) -> Result<(), CliError> {
    let failed = |error| CliError::new(format!("write under {}", args.directory.display()), error);
    write_all(&args.directory, muster).map_err(failed)
}

fn write_all(directory: &Path, mut muster: Command) -> io::Result<()> {
    muster.build();
    write_pages(&directory.join("man/man1"), &muster, "1")?;
    let mut musterd = agent::command();
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

/// A page for a command and for each of its subcommands.
fn write_pages(directory: &Path, command: &Command, section: &str) -> io::Result<()> {
    let shown = command.get_subcommands().filter(|sub| {
        // `help` says nothing that the page does not.
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
    let man = Man::new(command.clone().disable_help_subcommand(true))
        .title(name)
        .section(section)
        .date(DATE)
        .source(format!("Muster {}", env!("CARGO_PKG_VERSION")))
        .manual("Muster Manual");
    let mut page = Vec::new();
    man.render_title(&mut page)?;
    man.render_name_section(&mut page)?;
    man.render_synopsis_section(&mut page)?;
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
    end.control("SH", ["EXIT STATUS"]);
    for (code, meaning) in EXIT_CODES {
        end.control("TP", ["4"]);
        end.text([bold(code)]);
        end.text([roman(meaning)]);
    }
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
