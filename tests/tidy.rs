//! The house rules, as a test: lengths, banned words, the rooms of `unsafe`.

use muster_tests::workspace;
use std::path::{Path, PathBuf};
use std::process::Command;

/// The rooms in which `unsafe` may stand; each line of it needs its reason there.
const UNSAFE_ROOMS: [&str; 10] = [
    "slurm-plugin/src/plugin.rs",
    "slurm-plugin/src/spank.rs",
    "slurm-plugin/src/start.rs",
    "fabric/libfabric-sys/",
    "fabric/src/provider/",
    "runtime/src/sys/",
    "runtime/src/pmix/ffi.rs",
    "runtime/src/pmix/server/",
    "bindings-c/",
    // Plays the process that is killed, stopped, traced and dumped.
    "runtime/tests/support/raw.rs",
];
const LINES_MAX: usize = 800;
const COLUMNS_MAX: usize = 120;

fn tracked(extension: &str) -> Vec<(PathBuf, String)> {
    let output = Command::new("git")
        .args([
            "ls-files",
            "-co",
            "--exclude-standard",
            "--",
            &format!("*.{extension}"),
        ])
        .current_dir(workspace())
        .output()
        .expect("git lists the files");
    let files: Vec<_> = String::from_utf8_lossy(&output.stdout)
        .lines()
        .map(PathBuf::from)
        .filter_map(|path| {
            let text = std::fs::read_to_string(workspace().join(&path)).ok()?;
            Some((path, text))
        })
        .collect();
    assert!(!files.is_empty(), "no *.{extension} file was found");
    files
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

/// Whether a Rust source has a test of this name: a function under `#[test]`.
fn has_test(text: &str, name: &str) -> bool {
    let lines: Vec<&str> = text.lines().map(str::trim_start).collect();
    let opens = |line: &&str| {
        let rest = line
            .strip_prefix("fn ")
            .and_then(|line| line.strip_prefix(name));
        rest.is_some_and(|rest| rest.starts_with('('))
    };
    let is_above = |line: &&&str| line.starts_with("#[") || line.starts_with("//");
    (0..lines.len()).filter(|at| opens(&lines[*at])).any(|at| {
        let mut above = lines[..at].iter().rev().take_while(is_above);
        above.any(|line| *line == "#[test]")
    })
}

/// Whether a place of proof is what it says: a test by its name, as `FILE::TEST`, or a study or scenario, which are
/// read and not run.
fn is_proof(file: &str, name: Option<&str>, text: &str) -> bool {
    match (file.rsplit_once('.').map(|(_, extension)| extension), name) {
        (Some("rs"), Some(name)) => has_test(text, name),
        // Those of the C API are functions that a test of its program calls.
        (Some("c"), Some(name)) => {
            file.starts_with("bindings-c/tests/") && text.contains(&format!("static void {name}("))
        }
        (Some("md"), None) => file.starts_with("docs/studies/"),
        (Some("toml"), None) => file.starts_with("tests/scenarios/"),
        _ => false,
    }
}

#[test]
fn a_test_is_found_by_its_name_alone() {
    let text = "/// X-1.\n#[test]\n#[ignore]\nfn one() {}\n    #[test]\n    fn two(\n        x in 0..9,\n    ) {}\n\
                fn helper() {}\n// fn three()\n#[test]\nfn three_more() {}\n";
    let found =
        ["one", "two", "helper", "three", "three_more", "on"].map(|name| has_test(text, name));
    assert_eq!(found, [true, true, false, false, true, false]);
    assert!(!is_proof("tests/a.rs", None, text));
    assert!(!is_proof("docs/a.md", None, text));
}

/// Every id in the table of `docs/coverage.md` is proved by tests that it names, in files that mention it.
#[test]
fn coverage_rows_are_proved_where_they_say() {
    let text = std::fs::read_to_string(workspace().join("docs/coverage.md")).unwrap();
    let mut rows = 0;
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
            assert!(proof.contains(id), "{id} is not mentioned in {file}");
            assert!(
                is_proof(file, name, &proof),
                "{id}: {file} has no test {name:?}; name one as FILE::TEST"
            );
        }
    }
    assert!(rows > 50, "docs/coverage.md has no rows");
}

/// Every id of `tests/requirements.txt` is proved as a whole, or says why not. What is open there and
/// proved by now is to be taken off the list.
#[test]
fn every_requirement_about_rails_is_proved_or_says_why_not() {
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
