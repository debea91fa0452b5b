//! Documents lead where they say: every relative link resolves to a file, every anchor to a heading, every page of the
//! guide is in its summary, and the README stays short. mdBook is not needed.

use muster_tests::workspace;
use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::path::{Component, Path, PathBuf};
use std::process::{Command, Stdio};

/// Lines of the README at most.
const README_LINES_MAX: usize = 150;

/// The lines of a document outside of its blocks of code, each with its number.
fn prose(text: &str) -> Vec<(usize, &str)> {
    let mut inside = false;
    let mut lines = Vec::new();
    for (number, line) in (1..).zip(text.lines()) {
        if line.trim_start().starts_with("```") {
            inside = !inside;
        } else if !inside {
            lines.push((number, line));
        }
    }
    lines
}

/// A line without what stands between backticks.
fn without_code(line: &str) -> String {
    let parts = line.split('`').step_by(2);
    parts.collect::<Vec<_>>().join("_")
}

/// Targets of the links and pictures of a document, with the number of the line.
fn links(text: &str) -> Vec<(usize, String)> {
    let mut found = Vec::new();
    for (number, line) in prose(text) {
        let line = without_code(line);
        for (at, _) in line.match_indices("](") {
            if let Some((target, _)) = line[at + 2..].split_once(')') {
                found.push((number, target.to_owned()));
            }
        }
    }
    found
}

/// The anchors of a document's headings, as GitHub and mdBook make them.
fn anchors(text: &str) -> BTreeSet<String> {
    let mut seen: BTreeMap<String, usize> = BTreeMap::new();
    let mut anchors = BTreeSet::new();
    for (_, line) in prose(text) {
        let title = line.trim_start_matches('#');
        if title.len() == line.len() || !title.starts_with(' ') {
            continue;
        }
        let keep = |c: char| c.is_alphanumeric() || "-_ ".contains(c);
        let title = title.trim().to_lowercase();
        let slug: String = title.chars().filter(|c| keep(*c)).collect();
        let slug = slug.replace(' ', "-");
        let count = seen.entry(slug.clone()).or_default();
        anchors.insert(match *count {
            0 => slug,
            more => format!("{slug}-{more}"),
        });
        *count += 1;
    }
    anchors
}

/// A path without `..` and `.`.
fn plain(path: &Path) -> PathBuf {
    let mut plain = PathBuf::new();
    for part in path.components() {
        match part {
            Component::ParentDir => {
                plain.pop();
            }
            Component::CurDir => {}
            other => plain.push(other),
        }
    }
    plain
}

/// Links of a document that lead nowhere, or out of `root`.
fn dead(root: &Path, document: &Path, text: &str) -> Vec<String> {
    let mut dead = Vec::new();
    for (number, link) in links(text) {
        if link.starts_with("https://") || link.starts_with("http://") {
            continue;
        }
        let (path, anchor) = link.split_once('#').unwrap_or((&link, ""));
        let target = match path {
            "" => document.to_owned(),
            path => plain(&document.parent().expect("a folder").join(path)),
        };
        let is_there = target.starts_with(root) && target.exists();
        let leads = is_there
            && (anchor.is_empty()
                || fs::read_to_string(&target).is_ok_and(|text| anchors(&text).contains(anchor)));
        if !leads {
            dead.push(format!("{}:{number}: {link}", document.display()));
        }
    }
    dead
}

/// Every Markdown file below a folder.
fn documents(folder: &Path) -> Vec<PathBuf> {
    let mut found = Vec::new();
    for entry in fs::read_dir(folder).expect("a folder").flatten() {
        let path = entry.path();
        if path.is_dir() {
            found.extend(documents(&path));
        } else if path.extension().is_some_and(|extension| extension == "md") {
            found.push(path);
        }
    }
    found
}

fn dead_of_all(root: &Path, documents: &[PathBuf]) -> Vec<String> {
    let read = |path: &PathBuf| fs::read_to_string(path).expect("a document");
    let dead = documents.iter().map(|path| dead(root, path, &read(path)));
    dead.flatten().collect()
}

#[test]
fn no_link_is_dead() {
    let mut all = documents(&workspace().join("docs"));
    for name in [
        "README.md",
        "ARCHITECTURE.md",
        "CONTRIBUTING.md",
        "CHANGELOG.md",
        "examples/README.md",
    ] {
        all.push(workspace().join(name));
    }
    assert!(all.len() > 20, "{all:?}");
    let dead = dead_of_all(workspace(), &all);
    assert!(dead.is_empty(), "{dead:#?}");
}

/// The sources of the book that `make docs` builds: no page links to what is not in the book.
#[test]
fn no_link_of_the_book_is_dead() {
    let folder = tempfile::tempdir().expect("a folder");
    let status = Command::new("sh")
        .args(["scripts/docs", "--sources"])
        .arg(folder.path())
        .current_dir(workspace())
        .status();
    assert!(status.is_ok_and(|status| status.success()));
    let root = plain(&folder.path().join("src"));
    let dead = dead_of_all(&root, &documents(&root));
    assert!(dead.is_empty(), "{dead:#?}");
    // mdBook renders the pages of the summary and no others.
    let summary = fs::read_to_string(root.join("SUMMARY.md")).expect("the summary");
    let listed: BTreeSet<PathBuf> = links(&summary)
        .into_iter()
        .map(|(_, link)| root.join(link))
        .collect();
    let mut pages: BTreeSet<PathBuf> = documents(&root).into_iter().collect();
    pages.remove(&root.join("SUMMARY.md"));
    assert_eq!(listed, pages);
}

#[test]
fn a_dead_link_is_found() {
    let folder = tempfile::tempdir().expect("a folder");
    let page = folder.path().join("page.md");
    let text = "# One `a.b` thing\n[there](page.md#one-ab-thing) and [here](#one-ab-thing), `[no](link.md)`\n\
                ```\n[code](none.md)\n# no-heading\n```\n[gone](none.md) [lost](page.md#two)\n[code](#no-heading)\n\
                [out](../page.md) [far](https://example.org)\n# One `a.b` thing\n[second](#one-ab-thing-1)\n";
    fs::write(&page, text).expect("a page");
    let dead = dead(folder.path(), &page, text);
    let ends: Vec<&str> = dead
        .iter()
        .map(|line| line.rsplit_once(' ').expect("a link").1)
        .collect();
    assert_eq!(
        ends,
        ["none.md", "page.md#two", "#no-heading", "../page.md"]
    );
}

#[test]
fn the_readme_is_short() {
    let readme = fs::read_to_string(workspace().join("README.md")).expect("README.md");
    let lines = readme.lines().count();
    assert!(lines <= README_LINES_MAX, "README.md has {lines} lines");
}

/// The picture is what `muster demo` printed, by `scripts/demo-svg`.
#[test]
fn the_picture_of_the_demo_is_its_output() {
    let text = fs::File::open(workspace().join("docs/demo.txt")).expect("docs/demo.txt");
    let output = Command::new("sh")
        .arg("scripts/demo-svg")
        .current_dir(workspace())
        .stdin(Stdio::from(text))
        .output()
        .expect("sh");
    assert!(output.status.success(), "{output:?}");
    let picture = fs::read(workspace().join("docs/demo.svg")).expect("docs/demo.svg");
    assert!(
        output.stdout == picture,
        "draw it anew: sh scripts/demo-svg <docs/demo.txt >docs/demo.svg"
    );
}
