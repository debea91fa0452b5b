//! One word has one meaning, and it is the field's word. Files that are written in plain English stay so: the words
//! below, which only the builders of Muster understood, do not come back. ARCHITECTURE.md has the glossary.

use muster_tests::workspace;
use std::ffi::OsStr;
use std::fs;
use std::path::{Path, PathBuf};

/// What is written in plain English: files, and folders with all below them.
const PLAIN: [&str; 12] = [
    "README.md",
    "CONTRIBUTING.md",
    "CHANGELOG.md",
    "ARCHITECTURE.md",
    "docs",
    "runtime",
    "fabric",
    "bindings-c",
    "slurm-plugin",
    "examples",
    "share",
    "tests",
];

/// Words that are not used, and what is said in their place.
const WORDS: [(&str, &str); 65] = [
    ("board", "state table"),
    ("letterbox", "piggyback buffer"),
    ("parcel", "piggyback"),
    ("parcels", "piggybacks"),
    ("doorman", "ipc server"),
    ("door", "listener"),
    ("nudge", "wake-up"),
    ("farewell", "detached"),
    ("porch", "PMIx integration"),
    ("crier", "event notifier"),
    ("hearsay", "launcher reports"),
    ("spokesman", "bootstrap publisher"),
    ("guest", "session"),
    ("keeper", "supervisor"),
    ("estate", "inherited state"),
    ("desk", "admin endpoint"),
    ("clerk", "control thread"),
    ("tray", "log writer"),
    ("scribe", "journal writer"),
    ("seat", "CPU placement"),
    ("strangers", "unauthenticated senders"),
    ("unheard", "unreachable members"),
    ("gathering", "participant discovery"),
    ("starter", "parent"),
    ("roster", "gossip server"),
    ("bell", "doorbell"),
    ("hall", "fence driver"),
    ("shelf", "fence data"),
    ("chorus", "error coalescing"),
    ("cord", "control channel"),
    ("mouths", "output forwarding"),
    ("conductor", "launch coordinator"),
    ("lifeline", "liveness connection"),
    ("letter", "request, message"),
    ("letters", "requests, messages"),
    ("errand", "operation"),
    ("deaf", "receive failing"),
    ("twin", "name conflict"),
    ("twins", "name conflict"),
    ("helper", "indirect probe"),
    ("helpers", "indirect probes"),
    ("knock", "join"),
    ("patience", "time-out"),
    ("boards", "state tables"),
    ("doors", "listeners"),
    ("bells", "doorbells"),
    ("guests", "sessions"),
    ("stranger", "unauthenticated sender, foreign process"),
    ("player", "remote launcher"),
    ("players", "remote launchers"),
    ("tube", "pipe"),
    ("tubes", "pipes"),
    ("nudges", "wake-ups"),
    ("keepers", "supervisors"),
    ("ears", "event listener, reader"),
    ("mouth", "output"),
    ("cry", "notify"),
    ("heat", "usage rate"),
    ("errands", "operations"),
    ("shelves", "fence data"),
    ("pump", "bulk driver"),
    ("tales", "news"),
    ("whoever", "the noun"),
    ("everybody", "the noun: all members, all ranks"),
    ("somebody", "the noun: a process, a member"),
];

/// Whether a line imports names, which may be of files that are not plain yet.
fn is_import(line: &str) -> bool {
    let line = line.trim_start().trim_start_matches("pub(crate) ");
    line.starts_with("use ")
}

/// The words of a text, also those that an identifier is made of, in small letters, each with its line.
fn words(text: &str) -> Vec<(usize, String)> {
    let mut found = Vec::new();
    for (number, line) in (1..).zip(text.lines()).filter(|(_, line)| !is_import(line)) {
        let mut word = String::new();
        let mut was_small = false;
        for letter in line.chars().chain([' ']) {
            let begins = letter.is_ascii_uppercase() && was_small;
            if (begins || !letter.is_ascii_alphabetic()) && !word.is_empty() {
                found.push((number, std::mem::take(&mut word)));
            }
            if letter.is_ascii_alphabetic() {
                word.push(letter.to_ascii_lowercase());
            }
            was_small = letter.is_ascii_lowercase();
        }
    }
    found
}

/// What a document says itself: not what it shows as code.
fn prose(text: &str) -> String {
    let mut is_code = false;
    let mut lines = text.lines().map(|line| {
        let is_fence = line.trim_start().starts_with("```");
        is_code ^= is_fence;
        match is_code || is_fence {
            true => String::new(),
            false => line.split('`').step_by(2).collect(),
        }
    });
    let first: String = lines.next().unwrap_or_default();
    lines.fold(first, |text, line| text + "\n" + &line)
}

/// The file, or the files below the folder.
fn files(path: &Path, found: &mut Vec<PathBuf>) {
    if path.is_file() {
        return found.push(path.to_owned());
    }
    // What another build has put there.
    if path.ends_with("target") {
        return;
    }
    for entry in fs::read_dir(path).expect("a folder").flatten() {
        files(&entry.path(), found);
    }
}

#[test]
fn plain_files_have_the_words_of_the_field() {
    let mut all = Vec::new();
    for path in PLAIN {
        files(&workspace().join(path), &mut all);
    }
    let mut faults = Vec::new();
    // This file has the words.
    let own = workspace().join("tests/docs/words.rs");
    for path in all.into_iter().filter(|path| *path != own) {
        let text = fs::read_to_string(&path).expect("a file");
        let text = match path.extension().and_then(OsStr::to_str) {
            Some("rs" | "c" | "h" | "f90" | "py" | "toml" | "in" | "1" | "3" | "5" | "7" | "8") => {
                text
            }
            Some("md") => prose(&text),
            _ => continue,
        };
        for (line, word) in words(&text) {
            if let Some((_, instead)) = WORDS.iter().find(|(old, _)| *old == word) {
                faults.push(format!("{}:{line}: {word}: say {instead}", path.display()));
            }
        }
    }
    assert!(faults.is_empty(), "{}", faults.join("\n"));
}

#[test]
fn identifiers_are_made_of_words() {
    let found = words("fn open_door(ParcelBox) -- a Letter");
    let found: Vec<&str> = found.iter().map(|(_, word)| word.as_str()).collect();
    let expected = ["fn", "open", "door", "parcel", "box", "a", "letter"];
    assert_eq!(found, expected);
}
