//! Circles between the modules of a crate: sibling modules that refer to each other, directly or through others.
//!
//! A module with all modules below it counts as one. References between a parent and its children do not count, and
//! neither do those of unit tests (`mod tests`). A reference is a path that begins with `crate`, `super` or `self`;
//! a call of a method is none.

use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::path::Path;

/// The path of a module in its crate; that of the crate's root is empty.
pub(crate) type Module = Vec<String>;
/// A group of sibling modules in a circle: their parent, and their names in order.
pub(crate) type Circle = (String, Vec<String>);

/// The modules of a source directory with their texts.
pub(crate) fn modules(source: &Path) -> BTreeMap<Module, String> {
    fn read(folder: &Path, at: &[String], into: &mut BTreeMap<Module, String>) {
        for entry in fs::read_dir(folder).into_iter().flatten().flatten() {
            let path = entry.path();
            let stem = path.file_stem().unwrap_or_default();
            let mut module = at.to_vec();
            module.push(stem.to_string_lossy().into_owned());
            if path.is_dir() {
                read(&path, &module, into);
            } else if path.extension().is_some_and(|extension| extension == "rs") {
                if ["mod", "lib", "main"].iter().any(|root| stem == *root) {
                    module.pop();
                }
                into.insert(module, fs::read_to_string(&path).expect("a source file"));
            }
        }
    }
    let mut found = BTreeMap::new();
    read(source, &[], &mut found);
    found
}

/// The circles of a crate.
pub(crate) fn circles(modules: &BTreeMap<Module, String>) -> BTreeSet<Circle> {
    // By parent: which of its children refer to which.
    let mut graphs: BTreeMap<&[String], BTreeMap<&str, BTreeSet<&str>>> = BTreeMap::new();
    for (from, text) in modules {
        for path in paths(&without_comments_and_tests(text)) {
            let Some(to) = target(from, &path, modules) else {
                continue;
            };
            let common = from.iter().zip(to).take_while(|(a, b)| a == b).count();
            if let (Some(a), Some(b)) = (from.get(common), to.get(common)) {
                let graph = graphs.entry(&from[..common]).or_default();
                graph.entry(a).or_default().insert(b);
            }
        }
    }
    let mut circles = BTreeSet::new();
    for (parent, graph) in &graphs {
        let reached: BTreeMap<&str, BTreeSet<&str>> = graph
            .keys()
            .map(|start| (*start, reachable(graph, start)))
            .collect();
        for (start, ends) in &reached {
            let comes_back = |end: &&&str| reached.get(**end).is_some_and(|on| on.contains(start));
            let group: Vec<String> = ends
                .iter()
                .filter(comes_back)
                .map(ToString::to_string)
                .collect();
            if group.len() > 1 {
                circles.insert((parent.join("::"), group));
            }
        }
    }
    circles
}

/// All that `start` refers to, directly or through others.
fn reachable<'a>(graph: &BTreeMap<&'a str, BTreeSet<&'a str>>, start: &str) -> BTreeSet<&'a str> {
    let mut reached = BTreeSet::new();
    let mut next: Vec<&str> = graph.get(start).into_iter().flatten().copied().collect();
    while let Some(one) = next.pop() {
        if reached.insert(one) {
            next.extend(graph.get(one).into_iter().flatten());
        }
    }
    reached
}

fn without_comments_and_tests(text: &str) -> String {
    let lines = text
        .lines()
        .map(|line| line.split_once("//").map_or(line, |(code, _)| code));
    let code = lines.collect::<Vec<_>>().join("\n");
    let tests = code.find("#[cfg(test)]\nmod tests {");
    code[..tests.unwrap_or(code.len())].to_owned()
}

/// The module that a path of module `from` leads to, or in which its item is.
fn target<'a>(
    from: &Module,
    path: &[String],
    modules: &'a BTreeMap<Module, String>,
) -> Option<&'a Module> {
    let up = path.iter().take_while(|word| *word == "super").count();
    let (base, rest) = match path.first()?.as_str() {
        "crate" => (&from[..0], &path[1..]),
        "self" => (&from[..], &path[1..]),
        _ => (&from[..from.len().saturating_sub(up)], &path[up..]),
    };
    let absolute = [base, rest].concat();
    let mut prefixes = (1..=absolute.len()).rev().map(|length| &absolute[..length]);
    let (module, _) = prefixes.find_map(|prefix| modules.get_key_value(prefix))?;
    (module != from).then_some(module)
}

/// The paths of a text that begin with `crate`, `super` or `self`, those of `use` with their braces expanded.
fn paths(code: &str) -> Vec<Vec<String>> {
    let is_word = |c: char| c == '_' || c.is_ascii_alphanumeric();
    let mut found = Vec::new();
    for (at, _) in code.match_indices("::") {
        let start = code[..at]
            .rfind(|c| !is_word(c))
            .map_or(0, |before| before + 1);
        let is_first = !code[..start].ends_with("::");
        if !is_first || !["crate", "super", "self"].contains(&&code[start..at]) {
            continue;
        }
        let is_use = code[..start]
            .trim_end()
            .strip_suffix("use")
            .is_some_and(|before| !before.ends_with(is_word));
        // A path without braces ends at the first character that does not belong to it.
        let end = match is_use {
            true => code[start..].find(';'),
            false => code[start..].find(|c| !is_word(c) && c != ':'),
        };
        let path = &code[start..end.map_or(code.len(), |end| start + end)];
        expand(&[], path, &mut found);
    }
    found
}

/// Adds the paths of a tree `a::{b, c::d}` below `prefix`.
fn expand(prefix: &[String], tree: &str, into: &mut Vec<Vec<String>>) {
    let (mut depth, mut start) = (0, 0);
    let mut branches = Vec::new();
    for (at, c) in tree.char_indices() {
        match c {
            '{' => depth += 1,
            '}' => depth -= 1,
            ',' if depth == 0 => {
                branches.push(&tree[start..at]);
                start = at + 1;
            }
            _ => {}
        }
    }
    branches.push(&tree[start..]);
    for branch in branches {
        let (path, inner) = branch
            .split_once('{')
            .map_or((branch, None), |(path, inner)| (path, Some(inner)));
        let path = path.split(" as ").next().unwrap_or_default();
        let words = path.split("::").map(str::trim);
        let words = words.filter(|word| !word.is_empty()).map(ToOwned::to_owned);
        let whole: Vec<String> = prefix.iter().cloned().chain(words).collect();
        match inner.and_then(|inner| inner.rsplit_once('}')) {
            Some((inner, _)) => expand(&whole, inner, into),
            None if whole.len() > prefix.len() => into.push(whole),
            None => {}
        }
    }
}

#[test]
fn circles_are_found_between_siblings_only() {
    let crate_of = |files: &[(&str, &str)]| -> BTreeMap<Module, String> {
        let module = |path: &str| -> Module {
            let words = path.split("::").filter(|word| !word.is_empty());
            words.map(ToOwned::to_owned).collect()
        };
        files
            .iter()
            .map(|(path, text)| (module(path), (*text).to_owned()))
            .collect()
    };
    let files = [
        ("", "mod a; mod b; mod c;"),
        // A child of `a` refers to `c`, and `c` by way of `b` to `a`.
        ("a", "mod inner;"),
        (
            "a::inner",
            "use super::{Own, super::c::{self, Item}};\n// use crate::b::B;",
        ),
        ("b", "fn f() { crate::a::f() }"),
        ("c", "pub(crate) use crate::{b::B, c::Own};"),
        // The second `super` does not begin a path.
        ("d::f", "use super::super::b::B;"),
        ("d::b", "use super::f::F;"),
        (
            "d",
            "use super::a::A;\n#[cfg(test)]\nmod tests { use crate::e; }",
        ),
        ("e", "use crate::d::D as Other;"),
    ];
    let names = ["a", "b", "c"].map(ToOwned::to_owned).to_vec();
    let found = circles(&crate_of(&files));
    assert_eq!(found, BTreeSet::from([(String::new(), names)]));
    let mut without = files;
    without[3].1 = "";
    assert_eq!(circles(&crate_of(&without)), BTreeSet::new());
}
