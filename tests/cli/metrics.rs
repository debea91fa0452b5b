//! The metrics: a strict reader of OpenMetrics and the one of Prometheus accept the output of a real agent.
//! The text file has the format that node_exporter reads and is replaced atomically. Every name in the
//! dashboard is one that an agent exports.

use muster_tests::admin::Admin;
use muster_tests::{Members, program, python_with, workspace};
use serde_json::Value;
use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::io::Write;
use std::path::Path;
use std::process::Command;

/// What the strict reader found: the samples by name and labels.
#[derive(Debug, Default)]
struct Exposition {
    kinds: BTreeMap<String, String>,
    samples: BTreeMap<String, BTreeMap<Vec<(String, String)>, f64>>,
}

/// Reads OpenMetrics text 1.0, and refuses everything that the format does not allow.
fn read(text: &str) -> Result<Exposition, String> {
    let body = text.strip_suffix("# EOF\n").ok_or("the end is not # EOF")?;
    let suffixes = [("counter", "_total"), ("gauge", ""), ("info", "_info")];
    read_families(body, &suffixes)
}

/// Reads the text format of node_exporter: no other types, no suffixes, no end mark.
fn read_classic(text: &str) -> Result<Exposition, String> {
    if text.contains("# EOF") {
        return Err("an end as of OpenMetrics".into());
    }
    read_families(text, &[("counter", ""), ("gauge", "")])
}

/// Reads families of these types, whose samples have these suffixes.
fn read_families(body: &str, suffixes: &[(&str, &'static str)]) -> Result<Exposition, String> {
    let mut found = Exposition::default();
    let mut family: Option<(String, String)> = None;
    let mut helped = BTreeSet::new();
    for line in body.split_inclusive('\n') {
        let fault = |why: &str| format!("{why}: {line:?}");
        let line = line
            .strip_suffix('\n')
            .ok_or_else(|| fault("no end of line"))?;
        if let Some(rest) = line.strip_prefix("# TYPE ") {
            let (name, kind) = rest.split_once(' ').ok_or_else(|| fault("no type"))?;
            is_name(name)
                .then_some(())
                .ok_or_else(|| fault("a bad name"))?;
            if !suffixes.iter().any(|(known, _)| *known == kind) {
                return Err(fault("an unknown type"));
            }
            if found
                .kinds
                .insert(name.to_owned(), kind.to_owned())
                .is_some()
            {
                return Err(fault("a family that comes twice, or in parts"));
            }
            family = Some((name.to_owned(), kind.to_owned()));
        } else if let Some(rest) = line.strip_prefix("# HELP ") {
            let (name, help) = rest.split_once(' ').ok_or_else(|| fault("no help"))?;
            let is_current = family.as_ref().is_some_and(|(family, _)| family == name);
            if !is_current || help.is_empty() || !helped.insert(name.to_owned()) {
                return Err(fault("help that is not its family's, or comes twice"));
            }
        } else {
            let (family, kind) = family
                .as_ref()
                .ok_or_else(|| fault("a sample without a family"))?;
            let (name, labels, value) = sample(line).ok_or_else(|| fault("no sample"))?;
            let suffix = suffixes.iter().find(|(known, _)| known == kind);
            let suffix = suffix.map_or("", |(_, suffix)| suffix);
            if name != format!("{family}{suffix}") {
                return Err(fault("a sample of another family"));
            }
            if kind == "counter" && value < 0.0 || kind == "info" && value != 1.0 {
                return Err(fault("a value that its type does not allow"));
            }
            if found
                .samples
                .entry(name)
                .or_default()
                .insert(labels, value)
                .is_some()
            {
                return Err(fault("a sample that comes twice"));
            }
        }
    }
    Ok(found)
}

fn is_name(name: &str) -> bool {
    let character = |c: char| c.is_ascii_alphabetic() || c == '_' || c == ':';
    name.starts_with(character) && name.chars().all(|c| character(c) || c.is_ascii_digit())
}

type Sample = (String, Vec<(String, String)>, f64);

fn sample(line: &str) -> Option<Sample> {
    let at = line.find('{')?;
    let (name, mut rest) = (&line[..at], &line[at + 1..]);
    let mut labels: Vec<(String, String)> = Vec::new();
    loop {
        let (key, quoted) = rest.split_once("=\"")?;
        let (value, behind) = unquoted(quoted)?;
        let is_new = !labels.iter().any(|(known, _)| known == key);
        if !is_name(key) || key.contains(':') || !is_new {
            return None;
        }
        labels.push((key.to_owned(), value));
        match behind.strip_prefix(',') {
            Some(more) => rest = more,
            None => {
                let value = behind.strip_prefix("} ")?.parse().ok()?;
                return is_name(name).then(|| (name.to_owned(), labels, value));
            }
        }
    }
}

/// Reads a value up to its closing quote. Returns the remainder, too.
fn unquoted(text: &str) -> Option<(String, &str)> {
    let mut value = String::new();
    let mut characters = text.char_indices();
    while let Some((at, character)) = characters.next() {
        match character {
            '"' => return Some((value, &text[at + 1..])),
            '\\' => match characters.next()?.1 {
                'n' => value.push('\n'),
                other @ ('"' | '\\') => value.push(other),
                _ => return None,
            },
            other => value.push(other),
        }
    }
    None
}

/// The reader is strict: with a reader that accepts everything the tests would prove nothing.
#[test]
fn the_reader_refuses_what_the_format_does_not_allow() {
    let good = "# TYPE a counter\n# HELP a b\na_total{x=\"\\\"1\\\\\"} 3\n# EOF\n";
    assert_eq!(read(good).unwrap().samples["a_total"].len(), 1);
    for (from, to) in [
        ("# EOF\n", ""),
        ("a_total{", "a{"),
        ("a_total{", "b_total{"),
        (" 3", " three"),
        (" 3", " -3"),
        ("x=", "1x="),
        ("\\\"1", "\\q1"),
        ("counter", "number"),
        ("# TYPE a counter\n", ""),
        ("# EOF", "# TYPE a counter\n# EOF"),
        ("# EOF", "a_total{x=\"\\\"1\\\\\"} 4\n# EOF"),
    ] {
        let bad = good.replacen(from, to, 1);
        assert!(read(&bad).is_err(), "{bad}");
    }
}

/// The names in the expressions of a dashboard.
fn names_in(value: &Value, names: &mut BTreeSet<String>) {
    match value {
        Value::Object(entries) => entries.iter().for_each(|(key, value)| match value {
            Value::String(text) if key == "expr" || key == "query" => {
                let word = |c: char| c.is_ascii_alphanumeric() || c == '_';
                let words = text
                    .split(|c| !word(c))
                    .filter(|word| word.starts_with("muster_"));
                names.extend(words.map(str::to_owned));
            }
            value => names_in(value, names),
        }),
        Value::Array(items) => items.iter().for_each(|item| names_in(item, names)),
        _ => {}
    }
}

/// The parsers of prometheus_client accept both texts, and find what this reader finds. `make setup` installs
/// them.
fn as_prometheus_reads(open: &str, classic: &Path, ours: &Exposition) {
    let Some(python) = python_with("prometheus_client") else {
        return;
    };
    let mut file = tempfile::NamedTempFile::new().unwrap();
    file.write_all(open.as_bytes()).unwrap();
    let script = workspace().join("tests/programs/read_metrics.py");
    let output = Command::new(&python)
        .arg(script)
        .arg(file.path())
        .arg(classic)
        .output()
        .unwrap();
    let printed = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success(), "{printed}");
    let counted: Value = serde_json::from_slice(&output.stdout).unwrap();
    let samples: usize = ours.samples.values().map(BTreeMap::len).sum();
    for format in ["open", "classic"] {
        assert_eq!(
            counted[format]["families"],
            ours.kinds.len(),
            "{format}: {counted}"
        );
        assert_eq!(counted[format]["samples"], samples, "{format}: {counted}");
    }
}

#[test]
fn a_strict_reader_accepts_the_metrics_and_the_dashboard_uses_no_others() {
    let directory = tempfile::tempdir().unwrap();
    let members = Members::new(directory.path(), &["127.71.20".to_owned()]).start_all(2);
    members[0].wait_for(&["UP n2".into()]);
    let admin = Admin::of(directory.path(), "n1");
    let found = read(&admin.ask(&["metrics"])).unwrap();
    let sum_of = |name: &str, key: &str, value: &str| -> f64 {
        let has = |labels: &&Vec<(String, String)>| labels.contains(&(key.into(), value.into()));
        let samples = found
            .samples
            .get(name)
            .unwrap_or_else(|| panic!("no {name}"));
        samples
            .iter()
            .filter(|(labels, _)| has(labels))
            .map(|(_, value)| value)
            .sum()
    };
    assert_eq!(sum_of("muster_members", "state", "alive"), 2.0);
    assert_eq!(sum_of("muster_members", "state", "failed"), 0.0);
    assert_eq!(sum_of("muster_rail_up", "rail", "127.71.20.1@udp0"), 1.0);
    assert!(sum_of("muster_rail_sends_total", "node", "n1") > 0.0);
    assert_eq!(found.kinds["muster_deadline_seconds"], "gauge");
    for samples in found.samples.values() {
        for labels in samples.keys() {
            assert!(
                labels
                    .iter()
                    .any(|(key, value)| key == "node" && value == "n1"),
                "{labels:?}"
            );
        }
    }

    // The text file is always the whole new or the whole old text, and no other file is beside it.
    let files = directory.path().join("textfiles");
    fs::create_dir(&files).unwrap();
    let file = files.join("muster.prom");
    for _ in 0..2 {
        let printed = admin.ask(&["metrics", "--textfile", file.to_str().unwrap()]);
        assert!(printed.is_empty(), "{printed}");
        let classic = read_classic(&fs::read_to_string(&file).unwrap()).unwrap();
        // The same samples in both formats.
        let names = |of: &Exposition| of.samples.keys().cloned().collect::<Vec<_>>();
        assert_eq!(names(&classic), names(&found));
    }
    as_prometheus_reads(&admin.ask(&["metrics"]), &file, &found);
    assert_eq!(fs::read_dir(&files).unwrap().count(), 1);
    let (code, _, error) = admin.run(&["metrics", "--textfile", "/proc/nowhere/x.prom"]);
    assert!(
        code == Some(1) && error.contains("/proc/nowhere/x.prom"),
        "{error}"
    );
    // Without an agent the file stays unchanged.
    let gone = Admin(directory.path().join("nobody"));
    let (code, ..) = gone.run(&["metrics", "--textfile", file.to_str().unwrap()]);
    assert_eq!(code, Some(3));
    assert!(read_classic(&fs::read_to_string(&file).unwrap()).is_ok());

    let dashboard = workspace().join("share/grafana/muster.json");
    let dashboard: Value = serde_json::from_str(&fs::read_to_string(dashboard).unwrap()).unwrap();
    let mut names = BTreeSet::new();
    names_in(&dashboard, &mut names);
    assert!(names.len() > 15, "{names:?}");
    for name in names {
        assert!(
            found.samples.contains_key(&name),
            "the dashboard uses {name}, which no agent exports"
        );
    }
}

/// The help text names the collector of node_exporter.
#[test]
fn the_help_names_the_collector() {
    let help = Command::new(program("muster"))
        .args(["metrics", "--help"])
        .output()
        .unwrap();
    assert!(String::from_utf8_lossy(&help.stdout).contains("node_exporter"));
}
