//! The manual (doc-005, doc-010, doc-015): whatever a user can call, set or type stands on a page, and pages and
//! completions are such as their readers take.

use muster_tests::{program, skipped, workspace};
use std::collections::BTreeSet;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

/// The words of a text that begin with `prefix` and continue with characters of `more`.
fn words(text: &str, prefix: &str, more: fn(char) -> bool) -> BTreeSet<String> {
    let rest = |start: usize| text[start + prefix.len()..].split(|c| !more(c)).next();
    text.match_indices(prefix)
        .filter_map(|(start, _)| rest(start).filter(|rest| !rest.is_empty()))
        .map(|rest| format!("{prefix}{rest}"))
        .collect()
}

fn pages(section: &str) -> Vec<(String, String)> {
    let mut pages: Vec<_> = fs::read_dir(workspace().join("docs/man"))
        .expect("docs/man")
        .map(|entry| entry.expect("an entry").path())
        .filter(|path| {
            path.extension()
                .is_some_and(|extension| extension == section)
        })
        .map(|path| {
            let text = fs::read_to_string(&path).expect("a page is text");
            (path.display().to_string(), text)
        })
        .collect();
    pages.sort();
    assert!(!pages.is_empty(), "no page of section {section}");
    pages
}

/// doc-015.
#[test]
fn every_function_has_one_page_with_its_prototype() {
    let map = fs::read_to_string(workspace().join("bindings-c/muster.map")).expect("the map");
    let functions = words(&map, "    muster_", |c| c.is_ascii_lowercase() || c == '_');
    assert!(functions.len() > 20, "{functions:?}");
    let pages = pages("3");
    for function in functions.iter().map(|function| function.trim()) {
        let named: Vec<_> = pages
            .iter()
            .filter(|(_, text)| {
                text.lines()
                    .any(|line| line.split_whitespace().take(2).eq([".Nm", function]))
            })
            .collect();
        assert_eq!(named.len(), 1, "pages that name {function}");
        let prototype = format!(".Fn {function} ");
        assert!(
            named[0].1.contains(&prototype),
            "{}: no {prototype}",
            named[0].0
        );
    }
}

#[test]
fn every_error_code_of_a_page_exists() {
    let header =
        fs::read_to_string(workspace().join("bindings-c/include/muster.h")).expect("the header");
    let constant = |c: char| c.is_ascii_uppercase() || c == '_';
    let known = words(&header, "MUSTER_", constant);
    for (page, text) in pages("3") {
        for word in words(&text, "MUSTER_ERR_", constant) {
            assert!(known.contains(&word), "{page}: {word} is not in muster.h");
        }
    }
}

/// What Muster's own processes tell each other, and names that are no variables.
const PRIVATE: [&str; 9] = [
    "MUSTER_BENCH_MEMBERS",
    // Of tests: which random jobs.
    "MUSTER_LAUNCH_SEED",
    "MUSTER_LAUNCH_SEEDS",
    "MUSTER_RUN_",
    "MUSTER_RUN_EMULATED",
    "MUSTER_RUN_HOST",
    "MUSTER_RUN_LOCK",
    "MUSTER_RUN_STEP",
    // Of the build: for which Slurm.
    "MUSTER_SLURM_VERSION",
];

/// doc-005.
#[test]
fn every_variable_that_is_read_is_explained() {
    fn read(directory: &Path, text: &mut String) {
        for entry in fs::read_dir(directory).expect("a folder of the sources") {
            let path = entry.expect("an entry").path();
            if path.is_dir() {
                read(&path, text);
            } else {
                text.push_str(&fs::read_to_string(&path).expect("a source file"));
            }
        }
    }
    let mut sources = String::new();
    let crates = fs::read_dir(workspace().join("runtime"))
        .expect("crates")
        .flatten();
    let folders = crates
        .map(|entry| entry.path().join("src"))
        .filter(|folder| folder.is_dir());
    for folder in folders.chain([workspace().join("slurm-plugin/src")]) {
        read(&folder, &mut sources);
    }
    let constant = |c: char| c.is_ascii_uppercase() || c == '_';
    let pages = pages("7");
    let (_, page) = pages
        .iter()
        .find(|(path, _)| path.ends_with("/muster.7"))
        .expect("muster.7");
    let read = words(&sources, "\"MUSTER_", constant);
    assert!(read.len() > 8, "{read:?}");
    for private in PRIVATE {
        assert!(
            read.contains(&format!("\"{private}")),
            "nobody says {private}"
        );
    }
    let variables = read.iter().map(|word| word.trim_start_matches('"'));
    for variable in variables.filter(|variable| !PRIVATE.contains(variable)) {
        assert!(
            page.contains(&format!(".It Ev {variable}\n")),
            "muster.7: no {variable}"
        );
    }
}

/// The protocol's page has every word that can be said at the socket, and every schema.
#[test]
fn every_request_and_every_schema_is_on_the_protocols_page() {
    let pages = pages("7");
    let page = pages
        .iter()
        .find(|(path, _)| path.ends_with("muster-protocol.7"));
    let (_, page) = page.expect("muster-protocol.7");
    let source = workspace().join("runtime/control/src");
    let parser = fs::read_to_string(source.join("question.rs")).expect("the parser");
    let arms = parser
        .lines()
        .filter_map(|line| line.trim().strip_prefix("[\""));
    let requests: BTreeSet<&str> = arms.filter_map(|arm| arm.split('"').next()).collect();
    assert!(requests.len() > 12, "{requests:?}");
    for request in requests {
        assert!(page.contains(request), "muster-protocol.7: no {request}");
    }
    let mut schemas = BTreeSet::new();
    for file in ["answer.rs", "rails.rs"] {
        let text = fs::read_to_string(source.join(file)).expect("the answers");
        schemas.extend(words(&text, "muster/", |c| {
            c.is_ascii_alphanumeric() || c == '/'
        }));
    }
    assert!(schemas.len() > 10, "{schemas:?}");
    for schema in schemas {
        assert!(page.contains(&schema), "muster-protocol.7: no {schema}");
    }
}

/// What `muster manual` writes.
fn generated() -> tempfile::TempDir {
    let directory = tempfile::tempdir().expect("a temporary folder");
    let done = Command::new(program("muster"))
        .arg("manual")
        .arg(directory.path())
        .output()
        .expect("muster runs");
    assert!(done.status.success(), "{done:?}");
    directory
}

/// doc-010.
#[test]
fn every_command_has_a_page_and_every_shell_its_completions() {
    let directory = generated();
    let help = Command::new(program("muster"))
        .arg("--help")
        .output()
        .expect("muster runs");
    let help = String::from_utf8(help.stdout).expect("text");
    let commands = help
        .split("Commands:\n")
        .nth(1)
        .expect("a list of commands");
    let mut seen = 0;
    for line in commands.lines().take_while(|line| line.starts_with("  ")) {
        // What a command does may go on in the next line, further in.
        let Some(name) = line
            .strip_prefix("  ")
            .filter(|line| !line.starts_with(' '))
        else {
            continue;
        };
        let name = name.split_whitespace().next().expect("a name");
        if name == "help" {
            continue;
        }
        seen += 1;
        let page = directory.path().join(format!("man/man1/muster-{name}.1"));
        let text = fs::read_to_string(&page).expect(name);
        assert!(text.contains(".SH \"EXIT STATUS\""), "{name}: {text}");
        let built = workspace().display().to_string();
        assert!(!text.contains(&built), "{name} has a path of this machine");
    }
    assert!(seen > 5, "{help}");
    for file in [
        "man/man8/musterd.8",
        "bash-completion/completions/muster",
        "zsh/site-functions/_musterd",
        "fish/vendor_completions.d/muster.fish",
    ] {
        let size = fs::metadata(directory.path().join(file)).expect(file).len();
        assert!(size > 200, "{file}: {size} bytes");
    }
}

/// Lines of a help at most, as a terminal of 100 columns shows them; the rest is in a manual page.
const HELP_LINES_MAX: usize = 40;
const TERMINAL_COLUMNS: usize = 100;

/// The helps of a command and of all below it, with the words that show them.
fn helps(words: &[&str]) -> Vec<(String, String)> {
    let done = Command::new(program("muster"))
        .args(words)
        .arg("--help")
        .output();
    let help = String::from_utf8(done.expect("muster runs").stdout).expect("text");
    let listed = help.split("Commands:\n").nth(1).unwrap_or_default();
    let listed = listed.lines().take_while(|line| line.starts_with("  "));
    let mut all = Vec::new();
    for line in listed.filter(|line| !line.starts_with("   ")) {
        let name = line.split_whitespace().next().expect("a name");
        if name != "help" {
            all.extend(helps(&[words, &[name]].concat()));
        }
    }
    all.push((words.join(" "), help));
    all
}

#[test]
fn the_help_of_every_command_fits_on_a_screen() {
    let all = helps(&[]);
    assert!(all.len() > 40, "{all:?}");
    for (words, help) in &all {
        let height = |line: &str| line.len().div_ceil(TERMINAL_COLUMNS).max(1);
        let lines: usize = help.lines().map(height).sum();
        assert!(
            lines <= HELP_LINES_MAX,
            "muster {words} --help: {lines} lines\n{help}"
        );
    }
}

/// That of the agent has long lines, since each option names its variable.
#[test]
fn the_help_of_the_agent_is_short() {
    let done = Command::new(program("musterd")).arg("--help").output();
    let help = String::from_utf8(done.expect("musterd runs").stdout).expect("text");
    let lines = help.lines().count();
    assert!((20..=HELP_LINES_MAX).contains(&lines), "{lines}: {help}");
}

/// The page of `muster run`, written by hand, has each of its options.
#[test]
fn the_page_of_muster_run_has_every_option() {
    let page = fs::read_to_string(workspace().join("docs/man/muster-run.1")).expect("the page");
    let (_, help) = helps(&["run"]).pop().expect("a help");
    let options = words(&help, "--", |c| c.is_ascii_lowercase() || c == '-');
    assert!(options.len() > 15, "{options:?}");
    for option in options {
        let name = option.trim_start_matches("--");
        assert!(
            page.contains(&format!("Fl -{name}")),
            "muster-run.1: no {option}"
        );
    }
}

/// Everything that this program says of these pages, if there is such a program.
fn said_by(program: &str, options: &[&str], pages: &[PathBuf]) -> Option<String> {
    let mut command = Command::new(program);
    let output = command
        .args(options)
        .args(pages)
        .env("LC_ALL", "C")
        .output();
    let Ok(output) = output else {
        skipped(program, "not on this machine");
        return None;
    };
    Some(String::from_utf8_lossy(&[output.stdout, output.stderr].concat()).into_owned())
}

/// The formatters report no fault in any page. Style is not checked, nor what clap's generator writes
/// around a paragraph.
#[test]
fn pages_are_right_for_who_shows_them() {
    let directory = generated();
    let in_folder = |folder: PathBuf| {
        let entries = fs::read_dir(folder).expect("pages").flatten();
        entries.map(|entry| entry.path()).collect::<Vec<_>>()
    };
    let written = in_folder(workspace().join("docs/man"));
    let made = ["man/man1", "man/man8"].map(|folder| in_folder(directory.path().join(folder)));
    let made = made.concat();
    assert!(
        written.len() > 10 && made.len() > 20,
        "{written:?} {made:?}"
    );
    let all = [&written[..], &made].concat();
    if let Some(said) = said_by("mandoc", &["-T", "lint", "-W", "warning"], &all) {
        let harmless = [
            "new sentence, new line",
            "unusual Xr order",
            "skipping paragraph macro: br",
            "date in the future",
        ];
        let is_fault = |line: &&str| !harmless.iter().any(|harmless| line.contains(harmless));
        let faults: Vec<&str> = said.lines().filter(is_fault).collect();
        assert!(faults.is_empty(), "{faults:#?}");
    }
    for (macros, pages) in [("-mdoc", &written), ("-man", &made)] {
        let said = said_by("groff", &[macros, "-Tutf8", "-ww", "-z"], pages);
        assert!(said.as_ref().is_none_or(String::is_empty), "{said:?}");
    }
}

/// The completions are such as the shells take, and bash finds a command, an option and a value by them.
#[test]
fn shells_complete_by_them() {
    let directory = generated();
    for (shell, file) in [
        ("bash", "bash-completion/completions/muster"),
        ("bash", "bash-completion/completions/musterd"),
        ("zsh", "zsh/site-functions/_muster"),
        ("zsh", "zsh/site-functions/_musterd"),
        ("fish", "fish/vendor_completions.d/muster.fish"),
        ("fish", "fish/vendor_completions.d/musterd.fish"),
    ] {
        let file = directory.path().join(file);
        if let Some(said) = said_by(shell, &["-n"], std::slice::from_ref(&file)) {
            assert!(said.is_empty(), "{shell} {file:?}: {said}");
        }
    }
    let script = "source \"$1\"; shift; COMP_WORDS=(\"$@\"); COMP_CWORD=$(($# - 1)); COMP_LINE=\"$*\"; \
                  _muster muster \"${COMP_WORDS[COMP_CWORD]}\" \"${COMP_WORDS[COMP_CWORD-1]}\"; \
                  printf '%s\\n' \"${COMPREPLY[@]}\"";
    let bash = directory.path().join("bash-completion/completions/muster");
    for (typed, offered) in [
        (&["muster", "mem"][..], "members"),
        (&["muster", "members", "--fo"], "--fold"),
        (&["muster", "members", "--output", "ya"], "yaml"),
        (&["muster", "config", "sh"], "show"),
    ] {
        let mut command = Command::new("bash");
        command.args(["-c", script, "bash"]).arg(&bash).args(typed);
        let output = command.output().expect("bash");
        let said = String::from_utf8_lossy(&output.stdout);
        assert!(
            said.lines().any(|line| line == offered),
            "{typed:?}: {output:?}"
        );
    }
}

/// Each schema of what commands print is explained.
#[test]
fn every_schema_of_a_command_is_on_a_page() {
    let pages: String = pages("7").into_iter().map(|(_, text)| text).collect();
    let mut schemas = BTreeSet::new();
    let mut folders = ["cli", "lab", "launch", "control", "agent"]
        .map(|name| workspace().join("runtime").join(name).join("src"))
        .to_vec();
    while let Some(folder) = folders.pop() {
        for entry in fs::read_dir(folder)
            .expect("a folder of the sources")
            .flatten()
        {
            let path = entry.path();
            // What the bench prints is for developers.
            if path.is_dir() && !path.ends_with("bench") {
                folders.push(path);
            } else if path.extension().is_some_and(|extension| extension == "rs") {
                let text = fs::read_to_string(&path).expect("a source file");
                let more = |c: char| c.is_ascii_alphanumeric() || c == '/' || c == '-';
                schemas.extend(words(&text, "\"muster/", more));
            }
        }
    }
    let schemas: Vec<&str> = schemas
        .iter()
        .map(|schema| schema.trim_start_matches('"'))
        .filter(|schema| schema.rsplit_once("/v").is_some())
        .collect();
    assert!(schemas.len() > 20, "{schemas:?}");
    for schema in schemas {
        assert!(pages.contains(schema), "no page has {schema}");
    }
}

#[test]
fn a_directory_that_cannot_be_written_is_named() {
    let done = Command::new(program("muster"))
        .args(["manual", "/proc/nowhere"])
        .output()
        .expect("muster runs");
    assert_eq!(done.status.code(), Some(1));
    let said = String::from_utf8_lossy(&done.stderr);
    assert!(said.contains("/proc/nowhere"), "{said}");
}

/// An installed muster has no MPI program for its demo: it says where the source is.
#[test]
fn an_installed_demo_says_how_to_make_its_program() {
    let prefix = tempfile::tempdir().expect("a temporary folder");
    let (bin, examples) = (
        prefix.path().join("bin"),
        prefix.path().join("share/doc/muster/examples"),
    );
    fs::create_dir_all(&bin).expect("a folder");
    fs::create_dir_all(&examples).expect("a folder");
    // Copied by another process: this one may start one for another test that would hold the copy open for writing.
    let programs = [program("muster"), program("muster-lab")];
    let copied = Command::new("cp").args(programs).arg(&bin).status();
    assert!(copied.is_ok_and(|status| status.success()));
    let source = examples.join("ulfm_survive.c");
    fs::copy(workspace().join("examples/ulfm_survive.c"), &source).expect("a copy");
    let done = Command::new(bin.join("muster")).arg("demo").output();
    let done = done.expect("muster runs");
    assert!(!done.status.success());
    let said = String::from_utf8_lossy(&done.stderr);
    let source = source.canonicalize().expect("a path").display().to_string();
    for part in [source.as_str(), "the mpicc of Open MPI", "--program"] {
        assert!(said.contains(part), "{part}: {said}");
    }
}
