//! The house rules, as a test: lengths, banned words, the rooms of `unsafe`.

use muster_tests::workspace;
use std::path::{Path, PathBuf};
use std::process::Command;

/// The rooms in which `unsafe` may stand; each line of it needs its reason there.
const UNSAFE_ROOMS: [&str; 12] = [
    "slurm-plugin/src/plugin.rs",
    "slurm-plugin/src/spank.rs",
    "slurm-plugin/src/start.rs",
    "fabric/libfabric-sys/",
    "fabric/provider/src/libfabric/",
    // Forks.
    "fabric/tests/fork.rs",
    "runtime/sys/src/",
    "runtime/pmix/src/ffi.rs",
    "runtime/pmix/src/functions.rs",
    "runtime/pmix/src/server/",
    "bindings-c/",
    // Plays the process that is killed, stopped, traced and dumped.
    "runtime/agent/tests/support/raw.rs",
];
const LINES_MAX: usize = 800;
const COLUMNS_MAX: usize = 120;

/// Why a proof may be left out of a build that is not optimised; `scripts/check` has a line for its file.
const IN_RELEASE: &str = "`make check` runs it in release";

/// Files with this ending that are Muster's own: those that git knows or would, and in an unpacked archive, where it
/// cannot say, all but what was built and the crates of others.
fn tracked(extension: &str) -> Vec<(PathBuf, String)> {
    let paths = match workspace().join(".git").exists() {
        true => known_to_git(extension),
        false => found_below(workspace(), extension),
    };
    let read = |path: PathBuf| {
        let text = std::fs::read_to_string(workspace().join(&path)).ok()?;
        Some((path, text))
    };
    let files: Vec<_> = paths.into_iter().filter_map(read).collect();
    assert!(!files.is_empty(), "no *.{extension} file was found");
    files
}

fn known_to_git(extension: &str) -> Vec<PathBuf> {
    let output = Command::new("git")
        .args(["ls-files", "-co", "--exclude-standard", "--"])
        .arg(format!("*.{extension}"))
        .current_dir(workspace())
        .output()
        .expect("git lists the files");
    let paths = String::from_utf8_lossy(&output.stdout).into_owned();
    paths.lines().map(PathBuf::from).collect()
}

fn found_below(root: &Path, extension: &str) -> Vec<PathBuf> {
    let mut found = Vec::new();
    let mut folders = vec![root.to_owned()];
    while let Some(folder) = folders.pop() {
        for entry in std::fs::read_dir(folder).expect("a folder").flatten() {
            let (path, name) = (entry.path(), entry.file_name());
            let is_ours = name != "target" && name != "vendor" && name != ".git";
            if path.is_symlink() || !is_ours {
                continue;
            }
            if path.is_dir() {
                folders.push(path);
            } else if path.extension().is_some_and(|one| one == extension) {
                found.push(path.strip_prefix(root).expect("below it").to_owned());
            }
        }
    }
    found
}

/// In a checkout without untracked files both ways find the same.
#[test]
fn an_archive_is_read_as_a_checkout_is() {
    if !workspace().join(".git").exists() {
        return;
    }
    for extension in ["rs", "sh", "c"] {
        let found = found_below(workspace(), extension);
        for path in known_to_git(extension) {
            let is_there = workspace().join(&path).exists();
            assert!(!is_there || found.contains(&path), "{}", path.display());
        }
    }
}

fn in_unsafe_room(path: &Path) -> bool {
    UNSAFE_ROOMS
        .iter()
        .any(|room| path.starts_with(room) || path == Path::new(room))
}

#[test]
fn files_open_with_what_they_are_and_stay_short() {
    for (path, text) in tracked("rs") {
        let path = path.display();
        assert!(text.starts_with("//!"), "{path} does not open with //!");
        let lines = text.lines().count();
        assert!(
            lines <= LINES_MAX,
            "{path} has {lines} lines: more than one noun?"
        );
        for (number, line) in (1..).zip(text.lines()) {
            assert!(line.is_ascii(), "{path}:{number} is not ASCII");
            assert!(
                line.chars().count() <= COLUMNS_MAX,
                "{path}:{number} is too long"
            );
        }
    }
}

#[test]
fn unsafe_stays_in_its_rooms() {
    let words = [
        concat!("uns", "afe {"),
        concat!("uns", "afe fn"),
        concat!("uns", "afe impl"),
    ];
    for (path, text) in tracked("rs")
        .iter()
        .filter(|(path, _)| !in_unsafe_room(path))
    {
        for (number, line) in (1..).zip(text.lines()) {
            let found = words.iter().any(|word| line.contains(word));
            assert!(
                !found,
                "{}:{number} is outside the rooms of unsafe",
                path.display()
            );
        }
    }
}

/// The protocol and the core of the launcher are told the time and the events.
#[test]
fn pure_parts_have_no_clock_and_no_io() {
    const PARTS: [&str; 4] = [
        "runtime/wire/src",
        "runtime/age/src",
        "runtime/protocol/src",
        "runtime/launch/src/core",
    ];
    const IMPURE: [&str; 14] = [
        "Instant::now",
        "SystemTime",
        "std::env",
        "std::fs",
        "std::io",
        "std::net",
        "std::process",
        "std::sync::atomic",
        "Mutex",
        "OnceLock",
        "std::thread",
        "thread_local",
        "muster_sys",
        "muster_client",
    ];
    let mut count = 0;
    for (path, text) in tracked("rs") {
        // Simulated jobs read their seeds; faults are planted, and work is counted, in test builds.
        let is_test = path
            .iter()
            .any(|part| part == "sim_tests" || part == "planted.rs" || part == "work.rs");
        if is_test || !PARTS.iter().any(|part| path.starts_with(part)) {
            continue;
        }
        count += 1;
        let code = text.split("#[cfg(test)]\nmod tests").next();
        for word in IMPURE {
            let found = code.is_some_and(|code| code.contains(word));
            assert!(!found, "{} uses {word}", path.display());
        }
    }
    assert!(count > 60, "{count} files");
}

#[test]
fn tests_await_events_and_nothing_is_left_to_do() {
    let sleep = concat!("thread::", "sleep");
    let later = [
        concat!("FIX", "ME"),
        concat!("TO", "DO"),
        concat!("XX", "X"),
    ];
    for (path, text) in tracked("rs") {
        let is_test = path.starts_with("tests") || path.iter().any(|part| part == "tests");
        assert!(
            !(is_test && text.contains(sleep)),
            "{} sleeps",
            path.display()
        );
        for word in later {
            assert!(!text.contains(word), "{} says {word}", path.display());
        }
    }
}

/// What `scripts/check` says is here is what tests are passed over for, by the same words.
#[test]
fn what_tests_may_lack_has_one_name() {
    let check = std::fs::read_to_string(workspace().join("scripts/check")).unwrap();
    let mut words = Vec::new();
    for line in check.lines().map(str::trim_start) {
        if let Some(list) = line.strip_prefix("needs=\"") {
            words.extend(list.trim_end_matches('"').split(' '));
        } else if let Some((word, _)) = line
            .strip_prefix("may ")
            .and_then(|line| line.split_once(' '))
        {
            words.push(word);
        }
    }
    words.retain(|word| !word.starts_with('$'));
    assert!(words.len() > 8, "{words:?}");
    let sources = tracked("rs");
    let is_test =
        |path: &Path| path.starts_with("tests") || path.iter().any(|part| part == "tests");
    for word in words {
        let word = format!("\"{word}\"");
        let mut tests = sources
            .iter()
            .filter(|(path, _)| is_test(path) && !path.ends_with("tidy.rs"));
        assert!(
            tests.any(|(_, text)| text.contains(&word)),
            "no test is passed over for {word}"
        );
    }
    // A file with a test that is run in release alone has its line.
    for (path, text) in sources
        .iter()
        .filter(|(path, _)| is_test(path) && !path.ends_with("tidy.rs"))
    {
        let name = |path: &Path| {
            path.file_stem()
                .expect("a name")
                .to_string_lossy()
                .into_owned()
        };
        let (group, name) = (path.parent().map(name).unwrap_or_default(), name(path));
        let line = format!("--test {group} {name} -- --ignored");
        assert!(
            !text.contains(IN_RELEASE) || check.contains(&line),
            "{}: no {line}",
            path.display()
        );
    }
}

/// The test of this name in a Rust source, from the comment above it on, if it is run: a function under `#[test]`, also
/// one that is left out of a build that is not optimised, if `make check` runs it in one that is.
fn test_of<'a>(text: &'a str, name: &str) -> Option<Vec<&'a str>> {
    let found = function(text, &format!("fn {name}("));
    let is_run = |block: &Vec<&str>| {
        let lines = || block.iter().map(|line| line.trim_start());
        let mut left_out = lines().filter(|line| line.starts_with("#[ignore"));
        lines().any(|line| line == "#[test]") && left_out.all(|line| line.contains(IN_RELEASE))
    };
    found.into_iter().find(is_run)
}

/// Functions that open so, with the comments and attributes above them.
fn function<'a>(text: &'a str, opens: &str) -> Vec<Vec<&'a str>> {
    let lines: Vec<&str> = text.lines().collect();
    let above = ["#[", "//", "/*", " *"];
    let block = |at: usize| {
        let line = lines[at];
        let indent = &line[..line.len() - line.trim_start().len()];
        let is_above = |line: &&&str| {
            let rest = line.strip_prefix(indent).unwrap_or(line);
            above.iter().any(|mark| rest.starts_with(mark))
        };
        let first = at - lines[..at].iter().rev().take_while(is_above).count();
        let end = format!("{indent}}}");
        let is_inside = |line: &&&str| **line != end;
        let rest = match line.ends_with('}') {
            true => 0,
            false => lines[at..].iter().take_while(is_inside).count(),
        };
        lines[first..=at + rest.saturating_sub(1)].to_vec()
    };
    let opens = |at: &usize| lines[*at].trim_start().starts_with(opens);
    (0..lines.len()).filter(opens).map(block).collect()
}

/// Whether this id stands in these lines, and not as the head of a longer one.
fn has_id(lines: &[&str], id: &str) -> bool {
    let ends = |rest: &str| !rest.starts_with(|next: char| next.is_ascii_digit());
    lines.iter().any(|line| {
        line.match_indices(id)
            .any(|(at, _)| ends(&line[at + id.len()..]))
    })
}

/// Why a place of proof is not what it says: a test by its name, as `FILE::TEST`, with the id above it or in it, or a
/// study or scenario, which are read and not run.
fn fault_of(id: &str, file: &str, name: Option<&str>, text: &str) -> Option<&'static str> {
    let lines = match (file.rsplit_once('.').map(|(_, extension)| extension), name) {
        (Some("rs"), Some(name)) => test_of(text, name),
        // Those of the C API are functions that a test of its program calls.
        (Some("c"), Some(name)) if file.starts_with("bindings-c/tests/") => {
            function(text, &format!("static void {name}(")).pop()
        }
        (Some("md"), None) if file.starts_with("docs/studies/") => Some(text.lines().collect()),
        (Some("toml"), None) if file.starts_with("tests/scenarios/") => {
            Some(text.lines().collect())
        }
        _ => None,
    };
    match lines {
        None => Some("no such test is run; name one as FILE::TEST"),
        Some(lines) if !has_id(&lines, id) => Some("the id is neither above the test nor in it"),
        Some(_) => None,
    }
}

#[test]
fn a_test_is_found_by_its_name_alone() {
    let text = "/// X-1.\n#[test]\nfn one() {}\n#[test]\n#[ignore = \"slow\"]\nfn never() {}\n\
                \x20   #[test]\n    fn two(\n        x in 0..9,\n    ) {}\n\
                fn second() {}\n// fn three()\n#[test]\nfn three_more() {}\n";
    let found = ["one", "never", "two", "second", "three", "three_more", "on"]
        .map(|name| test_of(text, name).is_some());
    assert_eq!(found, [true, false, true, false, false, true, false]);
    let later = text.replace("slow", &format!("slow; {IN_RELEASE}"));
    assert!(test_of(&later, "never").is_some());
    assert_eq!(fault_of("X-1", "tests/a.rs", Some("one"), text), None);
    for (id, file, name) in [
        ("X-1", "tests/a.rs", None),
        ("X-1", "docs/a.md", None),
        ("X-1", "tests/a.rs", Some("two")),
        ("X-", "tests/a.rs", Some("one")),
    ] {
        assert!(
            fault_of(id, file, name, text).is_some(),
            "{id} {file} {name:?}"
        );
    }
}

/// Every id in the table of `docs/coverage.md` is proved by tests that it names and that mention it.
#[test]
fn coverage_rows_are_proved_where_they_say() {
    let text = std::fs::read_to_string(workspace().join("docs/coverage.md")).unwrap();
    let (mut rows, mut wrong) = (0, Vec::new());
    for line in text.lines().filter(|line| line.starts_with("| ")) {
        let mut cells = line.trim_matches('|').split('|').map(str::trim);
        let (Some(id), Some(place)) = (cells.next(), cells.nth(1)) else {
            continue;
        };
        let number = id.split_once('-').map(|(_, number)| number);
        let is_id = |number: &str| number.chars().all(|digit| digit.is_ascii_digit());
        if !number.is_some_and(|number| !number.is_empty() && is_id(number)) {
            continue;
        }
        rows += 1;
        for file in place.split(',').map(|file| file.trim().trim_matches('`')) {
            let (file, name) = match file.split_once("::") {
                Some((file, name)) => (file, Some(name)),
                None => (file, None),
            };
            let path = workspace().join(file);
            let proof = std::fs::read_to_string(&path)
                .unwrap_or_else(|error| panic!("{id}: {file}: {error}"));
            if let Some(fault) = fault_of(id, file, name, &proof) {
                wrong.push(format!("{id}: {file} {name:?}: {fault}"));
            }
        }
    }
    assert!(wrong.is_empty(), "{wrong:#?}");
    assert!(rows > 50, "docs/coverage.md has no rows");
}

/// Every id of `tests/requirements.txt` is proved as a whole, or says why not. What is open there and
/// proved by now is to be taken off the list.
#[test]
fn every_requirement_is_proved_or_says_why_not() {
    let read = |file: &str| std::fs::read_to_string(workspace().join(file)).unwrap();
    let coverage = read("docs/coverage.md");
    let is_whole = |id: &str| coverage.contains(&format!("| {id} | whole"));
    let mut wrong = Vec::new();
    let mut count = 0;
    for line in read("tests/requirements.txt").lines() {
        if line.starts_with('#') {
            continue;
        }
        count += 1;
        let (id, reason) = line.split_once(": ").unwrap_or((line, ""));
        let open = reason.starts_with("open:");
        if open {
            println!("not proved yet: {line}");
        }
        if reason.is_empty() != is_whole(id) {
            wrong.push(line.to_owned());
        }
    }
    assert_eq!(wrong, Vec::<String>::new(), "of {count} ids");
    assert!(count > 100, "the list is too short");
}
