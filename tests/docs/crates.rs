//! The crates and their arrows are those of ARCHITECTURE.md, and what it names exists.

use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

use crate::circles::{circles, modules};
use muster_tests::workspace;

/// Most lines of a crate without its tests.
const LINES_MAX: usize = 12_000;
/// Lower limits of crates that were one crate above `LINES_MAX`. Their sum may only fall.
const LOWER: [(&str, usize); 3] = [
    ("muster-protocol", 11_427),
    ("muster-age", 2_430),
    ("muster-wire", 3_214),
];

/// The crates of the table, from top to bottom, each with its directory.
fn crates() -> Vec<(String, PathBuf)> {
    let text = fs::read_to_string(workspace().join("ARCHITECTURE.md")).expect("ARCHITECTURE.md");
    let (_, table) = text.split_once("\n## Crates\n").expect("a section");
    let (table, _) = table.split_once("\n## ").expect("another section");
    let cells = |line: &str| -> Option<(String, PathBuf)> {
        let mut words = line.strip_prefix("| `")?.split('`');
        let name = words.next()?.to_owned();
        let directory = words.nth(1)?;
        Some((name, workspace().join(directory)))
    };
    table.lines().filter_map(cells).collect()
}

/// The crates of this workspace in the `[dependencies]` of a manifest.
fn dependencies(manifest: &str, crates: &[(String, PathBuf)]) -> Vec<String> {
    let (_, section) = manifest
        .split_once("\n[dependencies]\n")
        .unwrap_or_default();
    let section = section.split("\n[").next().unwrap_or_default();
    let named = section.lines().filter_map(|line| {
        let name = line.split(['.', ' ', '=']).next()?;
        crates.iter().find(|(one, _)| one == name)
    });
    named.map(|(name, _)| name.clone()).collect()
}

#[test]
fn arrows_between_crates_point_down() {
    let crates = crates();
    assert!(crates.len() > 15, "{crates:?}");
    for (position, (name, directory)) in crates.iter().enumerate() {
        let manifest = fs::read_to_string(directory.join("Cargo.toml")).expect("a manifest");
        assert!(
            manifest.contains(&format!("name = \"{name}\"")),
            "{name} is not in {}",
            directory.display()
        );
        for dependency in dependencies(&manifest, &crates) {
            let below = crates[position + 1..]
                .iter()
                .any(|(one, _)| *one == dependency);
            assert!(
                below,
                "{name} depends on {dependency}, which is not below it"
            );
        }
    }
}

#[test]
fn every_crate_of_the_workspace_is_in_the_table() {
    let known: Vec<PathBuf> = crates()
        .into_iter()
        .map(|(_, directory)| directory)
        .collect();
    let manifest = fs::read_to_string(workspace().join("Cargo.toml")).expect("the manifest");
    let (_, members) = manifest.split_once("members = [").expect("the members");
    let (members, _) = members.split_once(']').expect("their end");
    for member in members.split('"').skip(1).step_by(2) {
        assert!(known.contains(&workspace().join(member)), "{member}");
    }
}

/// The lines of a source file before its tests.
fn lines_without_tests(text: &str) -> usize {
    let lines: Vec<&str> = text.lines().collect();
    let tests = lines.windows(2).position(|two| {
        two[0].trim() == "#[cfg(test)]" && two[1].starts_with("mod ") && two[1].ends_with('{')
    });
    tests.unwrap_or(lines.len())
}

fn count(folder: &Path) -> usize {
    let Ok(entries) = fs::read_dir(folder) else {
        return 0;
    };
    let paths = entries.flatten().map(|entry| entry.path());
    let sizes = paths.map(|path| {
        let name = path
            .file_name()
            .unwrap_or_default()
            .to_string_lossy()
            .into_owned();
        if path.is_dir() && name.ends_with("tests") {
            0
        } else if path.is_dir() {
            count(&path)
        } else if name.ends_with(".rs")
            && !name.ends_with("tests.rs")
            && !name.ends_with("_test.rs")
        {
            lines_without_tests(&fs::read_to_string(&path).expect("a source file"))
        } else {
            0
        }
    });
    sizes.sum()
}

#[test]
fn no_crate_is_too_large() {
    let lower: BTreeMap<&str, usize> = LOWER.into();
    let mut sizes = String::new();
    for (name, directory) in crates().iter().filter(|(name, _)| name != "muster-tests") {
        let lines = count(&directory.join("src"));
        sizes.push_str(&format!("{name} {lines}\n"));
        let most = lower.get(name.as_str()).copied().unwrap_or(LINES_MAX);
        assert!(
            lines <= most,
            "{name} has {lines} lines without tests, at most {most}"
        );
    }
    println!("lines without tests:\n{sizes}");
}

/// Errors and settings lie below those that use them: no two modules of a crate refer to each other, unless one is
/// the parent of the other.
#[test]
fn no_circle_between_modules() {
    let mut found = BTreeSet::new();
    let mut count = 0;
    for (_, directory) in crates() {
        let modules = modules(&directory.join("src"));
        count += modules.len();
        let directory = directory.strip_prefix(workspace()).expect("below it");
        let directory = directory.to_string_lossy().into_owned();
        for (parent, group) in circles(&modules) {
            found.insert((directory.clone(), parent, group.join(" ")));
        }
    }
    assert!(count > 300, "{count} modules");
    assert!(found.is_empty(), "modules in a circle: {found:#?}");
}

/// libmuster is linked into every application: it brings libc and crates of this workspace.
#[test]
fn libmuster_needs_libc_alone() {
    let cargo = std::env::var_os("CARGO").unwrap_or_else(|| "cargo".into());
    let tree = Command::new(cargo)
        .args([
            "tree",
            "--offline",
            "--locked",
            "--edges",
            "normal",
            "--prefix",
            "none",
            "--package",
            "muster-c",
        ])
        .current_dir(workspace())
        .output()
        .expect("cargo runs");
    assert!(
        tree.status.success(),
        "{}",
        String::from_utf8_lossy(&tree.stderr)
    );
    let text = String::from_utf8(tree.stdout).expect("text");
    let names: Vec<&str> = text
        .lines()
        .filter_map(|line| line.split(' ').next())
        .collect();
    assert!(names.len() > 5, "{text}");
    let may = [
        "libc",
        "blake3",
        "pmix-sys",
        "muster-c",
        "muster-client",
        "muster-ipc",
        "muster-pmix",
        "muster-shm",
        "muster-sys",
    ];
    for name in names.iter().filter(|name| !name.is_empty()) {
        assert!(may.contains(name), "libmuster needs {name}:\n{text}");
    }
}

/// Each `path` and `path::function` of ARCHITECTURE.md exists.
#[test]
fn paths_and_functions_of_the_architecture_exist() {
    let text = fs::read_to_string(workspace().join("ARCHITECTURE.md")).expect("ARCHITECTURE.md");
    let mut functions = 0;
    for quoted in text.split('`').skip(1).step_by(2) {
        let (path, function) = quoted.split_once("::").unwrap_or((quoted, ""));
        let is_path = [
            "fabric",
            "runtime/",
            "bindings-c",
            "tests/",
            "docs/",
            "slurm-plugin",
        ]
        .iter()
        .any(|root| path.starts_with(root));
        if !is_path || path.contains(char::is_whitespace) {
            continue;
        }
        let file = workspace().join(path);
        assert!(
            file.exists(),
            "ARCHITECTURE.md names {path}, which does not exist"
        );
        if !function.is_empty() {
            let source = fs::read_to_string(&file).expect("a source file");
            let found = source.contains(&format!("fn {function}("))
                || source.contains(&format!("fn {function}<"));
            assert!(found, "ARCHITECTURE.md names {function} of {path}");
            functions += 1;
        }
    }
    assert!(functions >= 15, "{functions} functions");
}

/// The public types that a source text declares.
fn public_types(text: &str) -> Vec<&str> {
    let lines = text.lines().map(str::trim_start);
    let declared = lines.filter_map(|line| {
        let rest = line.strip_prefix("pub ")?;
        ["struct ", "enum ", "trait ", "type "]
            .iter()
            .find_map(|kind| rest.strip_prefix(kind))
    });
    declared
        .filter_map(|rest| {
            rest.split(|c: char| c != '_' && !c.is_ascii_alphanumeric())
                .next()
        })
        .collect()
}

/// One name is one thing: no crate has two public types of one name.
#[test]
fn no_two_public_types_of_a_crate_have_one_name() {
    fn read(folder: &Path, into: &mut Vec<String>) {
        for entry in fs::read_dir(folder).expect("a folder").flatten() {
            let path = entry.path();
            if path.is_dir() {
                read(&path, into);
            } else if path.extension().is_some_and(|extension| extension == "rs") {
                into.push(fs::read_to_string(&path).expect("a source file"));
            }
        }
    }
    for (name, directory) in crates().iter().filter(|(name, _)| name != "muster-tests") {
        let mut texts = Vec::new();
        read(&directory.join("src"), &mut texts);
        let mut seen = BTreeSet::new();
        for kind in texts.iter().flat_map(|text| public_types(text)) {
            assert!(seen.insert(kind), "{name} has two public types {kind}");
        }
    }
}

/// The crates that call C libraries: only they use libc.
const OVER_LIBC: [&str; 5] = [
    "libfabric-sys",
    "muster-pmix",
    "muster-provider",
    "muster-slurm",
    "muster-sys",
];

/// System calls have one layer in each crate: `muster-sys` over libc, and above it rustix for what `muster-sys` does
/// not have.
#[test]
fn only_crates_that_call_c_libraries_use_libc() {
    let mut over_libc = Vec::new();
    for (name, directory) in crates() {
        let manifest = fs::read_to_string(directory.join("Cargo.toml")).expect("a manifest");
        let (_, section) = manifest
            .split_once("\n[dependencies]\n")
            .unwrap_or_default();
        let section = section.split("\n[").next().unwrap_or_default();
        let has = |crate_name: &str| {
            let mut names = section
                .lines()
                .filter_map(|line| line.split(['.', ' ', '=']).next());
            names.any(|one| one == crate_name)
        };
        assert!(
            name == "muster-provider" || !(has("libc") && has("rustix")),
            "{name} depends on libc and on rustix"
        );
        if has("libc") {
            over_libc.push(name);
        }
    }
    over_libc.sort();
    assert_eq!(over_libc, OVER_LIBC);
}
