//! Members without a common net: real agents on loopback, of which a third one relays between two.

use muster_tests::{Member, program};
use serde_json::Value;
use std::path::Path;
use std::process::Command;

/// Runs a command for one agent. Returns the output.
fn ask(directory: &Path, name: &str, words: &[&str]) -> String {
    let output = Command::new(program("muster"))
        .args(words)
        .arg("--agent")
        .arg(directory.join(format!("{name}.control")))
        .output()
        .expect("muster can be started");
    let error = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success(), "{words:?}: {error}");
    String::from_utf8_lossy(&output.stdout).into_owned()
}

/// Messages from one member to another through a third, as counted by one of them.
fn carried(directory: &Path, at: &str, ends: [&str; 3]) -> u64 {
    let answer = ask(directory, at, &["stats", "--per", "relay", "-o", "json"]);
    let answer: Value = serde_json::from_str(&answer).expect("JSON");
    let pairs = answer["pairs"].as_array().expect("pairs");
    let [from, through, to] = ends;
    let of = |pair: &&Value| pair["from"] == from && pair["through"] == through && pair["to"] == to;
    let found = pairs.iter().find(of);
    found.map_or(0, |pair| pair["messages"].as_u64().expect("a number"))
}

/// Polls until it holds.
fn until(what: &str, holds: impl Fn() -> bool) {
    muster_tests::until(|| what.to_owned(), || holds().then_some(()));
}

fn start(directory: &Path, index: usize, rails: &[usize]) -> Member {
    let seed = "127.67.0.3@udp0,127.67.1.3@udp1";
    let mut words = vec!["--seed".to_owned(), seed.to_owned()];
    for rail in rails {
        words.push("--rail".to_owned());
        words.push(format!("127.67.{rail}.{index}@udp{rail}"));
    }
    let words: Vec<&str> = words.iter().map(String::as_str).collect();
    Member::start(directory, &format!("n{index}"), &words)
}

/// n1 is on udp0, n2 on udp1, n3 on both: all see all, n1 and n2 see each other as degraded, n3 relays, and
/// each of the three reports how much and why. Without relay n1 and n2 depend on n3's reports; a death is
/// detected either way.
#[test]
fn members_without_a_common_net_are_connected_through_a_third() {
    let directory = tempfile::tempdir().unwrap();
    let at = directory.path();
    let third = start(at, 3, &[0, 1]);
    let (first, second) = (start(at, 1, &[0]), start(at, 2, &[1]));
    let lines = |lines: &[&str]| lines.iter().map(ToString::to_string).collect::<Vec<_>>();
    let others = first.wait_for(&lines(&["UP n2", "UP n3", "DEGRADED n2"]));
    assert_eq!(others, [""; 0]);
    let others = second.wait_for(&lines(&["UP n1", "UP n3", "DEGRADED n1"]));
    assert_eq!(others, [""; 0]);
    assert_eq!(third.wait_for(&lines(&["UP n1", "UP n2"])), [""; 0]);

    let explanation = ask(at, "n1", &["explain", "n1", "n2"]);
    let expected =
        "n1 -> n2: no path\nthrough n3, since no rail of this node is on a net of the peer\n";
    assert!(explanation.starts_with(expected), "{explanation}");
    for (by, ends) in [
        ("n1", ["n1", "n3", "n2"]),
        ("n3", ["n1", "n3", "n2"]),
        ("n3", ["n2", "n3", "n1"]),
        ("n2", ["n1", "n3", "n2"]),
    ] {
        until("relayed messages are counted", || carried(at, by, ends) > 0);
    }
    assert!(ask(at, "n3", &["policy"]).contains("relay on"));
    assert!(ask(at, "n3", &["stats"]).contains("relay_carried"));

    // Relay off: nothing is relayed any more, and no member is declared failed because of it, since n3 sees
    // both.
    ask(at, "n3", &["policy", "relay", "off"]);
    assert!(ask(at, "n3", &["export"]).contains("relay: off"));
    let before = carried(at, "n3", ["n1", "n3", "n2"]);
    let refused = || {
        let rails: Value =
            serde_json::from_str(&ask(at, "n3", &["rails", "-o", "json"])).expect("JSON");
        let rails = rails["rails"].as_array().expect("rails").clone();
        let of = |rail: &Value| rail["drops"]["relay_off"].as_u64().expect("a number");
        rails.iter().map(of).sum::<u64>()
    };
    until("messages that are not relayed are counted", || {
        refused() > 20
    });
    assert_eq!(carried(at, "n3", ["n1", "n3", "n2"]), before);
    ask(at, "n1", &["policy", "relay", "off"]);
    let explanation = ask(at, "n1", &["explain", "n2"]);
    assert!(explanation.contains("relaying is off"), "{explanation}");
    ask(at, "n1", &["policy", "relay", "on"]);
    ask(at, "n3", &["policy", "relay", "on"]);
    until("messages are relayed again", || {
        carried(at, "n3", ["n1", "n3", "n2"]) > before
    });
    // While nothing is relayed, n1 learns of n2 only from n3.
    let mut printed = first.pending_lines();
    printed.retain(|line| line != "SUSPECT n2" && line != "RECOVERED n2");
    assert_eq!(printed, [""; 0]);

    second.kill();
    for member in [&first, &third] {
        let others = member.wait_for(&lines(&["DOWN n2"]));
        let alarming = others.iter().find(|line| !line.starts_with("SUSPECT n2"));
        assert_eq!(alarming, None);
    }
}
