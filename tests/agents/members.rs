//! Sixteen real members on loopback: all learn of a death and of a return, exactly once.

use muster_tests::admin::Admin;
use muster_tests::{Member, Members, program, until};
use rustix::process::Signal;
use serde_json::Value;
use std::net::UdpSocket;
use std::path::Path;
use std::process::Command;

const COUNT: usize = 16;

/// Starts member `index`; every member has two rails and joins through the first member's addresses.
fn group(directory: &Path, net: u8) -> Members<'_> {
    Members::new(directory, &[0, 1].map(|rail| format!("127.{net}.{rail}")))
}

fn names(word: &str, except: usize) -> Vec<String> {
    (1..=COUNT)
        .filter(|index| *index != except)
        .map(|index| format!("{word} n{index}"))
        .collect()
}

/// The others print DOWN once for a killed member and UP once for a returned one, and nothing else. Rows
/// ZM-01, ZM-02, ZM-06.
#[test]
fn a_killed_member_is_down_and_a_restarted_one_is_up_and_nothing_else_is_printed() {
    let directory = tempfile::tempdir().unwrap();
    let mut members: Vec<_> = group(directory.path(), 61).start_all(COUNT);
    assert_eq!(Member::await_all_up(&members), [""; 0]);

    let victim = 7;
    members.remove(victim - 1).kill();
    for member in &members {
        member.expect_down(&format!("n{victim}"));
    }

    let back = group(directory.path(), 61).start(victim);
    for member in &members {
        assert_eq!(
            member.next_line(),
            format!("UP n{victim}"),
            "at {}",
            member.name
        );
    }
    assert_eq!(back.wait_for(&names("UP", victim)), Vec::<String>::new());
    for member in &members {
        assert_eq!(
            member.pending_lines(),
            Vec::<String>::new(),
            "at {}",
            member.name
        );
    }
}

/// A member that is terminated announces that it leaves: the others print LEFT, not DOWN. Row ZM-07.
#[test]
fn a_member_that_leaves_in_order_is_not_a_failure() {
    let directory = tempfile::tempdir().unwrap();
    let mut members: Vec<_> = (1..=4)
        .map(|index| group(directory.path(), 62).start(index))
        .collect();
    for (index, member) in (1..).zip(&members) {
        let others: Vec<_> = (1..=4)
            .filter(|other| *other != index)
            .map(|other| format!("UP n{other}"))
            .collect();
        assert_eq!(member.wait_for(&others), Vec::<String>::new());
    }
    assert!(
        members.remove(2).leave(),
        "musterd ends with status 0 after SIGTERM"
    );
    for member in &members {
        assert_eq!(member.next_line(), "LEFT n3", "at {}", member.name);
    }
}

/// `muster members` and `muster why` show the state and its evidence.
#[test]
fn an_operator_sees_the_failed_member_and_the_evidence() {
    let directory = tempfile::tempdir().unwrap();
    let mut members: Vec<_> = (1..=4)
        .map(|index| group(directory.path(), 65).start(index))
        .collect();
    for (index, member) in (1..).zip(&members) {
        let others = (1..=4).filter(|other| *other != index);
        member.wait_for(
            &others
                .map(|other| format!("UP n{other}"))
                .collect::<Vec<_>>(),
        );
    }
    // Stopped first, so that its silence is the only evidence.
    let n3 = members.remove(2);
    n3.signal(Signal::STOP);
    members[0].expect_down("n3");
    n3.kill();

    let ask = |arguments: &[&str]| {
        let output = Command::new(program("muster"))
            .args(arguments)
            .arg("--agent")
            .arg(directory.path().join("n1.control"))
            .output()
            .unwrap();
        assert!(
            output.status.success(),
            "{}",
            String::from_utf8_lossy(&output.stderr)
        );
        String::from_utf8_lossy(&output.stdout).into_owned()
    };
    let table = ask(&["members"]);
    let n3 = table
        .lines()
        .find(|line| line.starts_with("n3 "))
        .expect(&table);
    assert!(
        n3.contains("failed") && n3.contains("silence on every rail, by n"),
        "{table}"
    );
    let explanation = ask(&["why", "n3"]);
    assert!(
        explanation.contains("was declared failed (silence on every rail)"),
        "{explanation}"
    );
    let json: Value = serde_json::from_str(&ask(&["members", "-o", "json"])).unwrap();
    assert_eq!(
        (&json["schema"], &json["self"]),
        (&"muster/members/v1".into(), &"n1".into())
    );
    assert_eq!(json["alive"], 3);
    let rails: Value = serde_json::from_str(&ask(&["rails", "-o", "json"])).unwrap();
    assert_eq!(rails["rails"].as_array().map(Vec::len), Some(2));
    // A title, two rails, and below them the findings of the pairs with the failed member.
    let findings = rails["findings"].as_array().map_or(0, Vec::len);
    assert!(ask(&["rails"]).lines().count() >= 3, "{findings} findings");

    // Garbage from an unauthenticated sender is dropped and counted, whatever its content.
    let outsider = UdpSocket::bind("127.0.0.1:0").unwrap();
    for garbage in [
        &b"hello"[..],
        &[0; 59],
        &[0xff; 1472],
        b"Mu\x01\x01 and so on",
    ] {
        outsider.send_to(garbage, "127.65.0.1:7741").unwrap();
    }
    let is_counted = || (rejected(&ask(&["stats"])) >= 4).then_some(());
    until(|| "the garbage is counted".into(), is_counted);
    assert_eq!(members[0].pending_lines(), Vec::<String>::new());
}

/// Datagrams that were no frames of this job, from the table of `muster stats`.
fn rejected(stats: &str) -> u64 {
    let kinds = [
        "rejected_foreign",
        "rejected_truncated",
        "rejected_malformed",
        "rejected_forged",
    ];
    let counts = stats
        .lines()
        .filter_map(|line| line.split_once(' '))
        .filter_map(|(name, count)| {
            kinds
                .contains(&name)
                .then(|| count.trim().parse::<u64>().ok())
                .flatten()
        });
    counts.sum()
}

/// The broken liveness connection shows that a member was killed, long before its silence would: the deadline
/// of this profile is a second. A member that comes back at once is accepted again. Row ZM-06.
#[test]
fn a_broken_liveness_connection_reveals_a_killed_member() {
    let directory = tempfile::tempdir().unwrap();
    let nets = [0, 1].map(|rail| format!("127.66.{rail}"));
    let five = Members::new(directory.path(), &nets).with_arguments(&["--profile", "quiet"]);
    let mut members = five.start_all(5);
    assert_eq!(Member::await_all_up(&members), [""; 0]);
    members.remove(2).kill();
    for member in &members {
        // The first report may be printed before the second one makes it a verdict.
        let others = member.wait_for(&["DOWN n3".into()]);
        assert!(others.iter().all(|line| line == "SUSPECT n3"), "{others:?}");
    }
    let output = Command::new(program("muster"))
        .args(["why", "n3", "--agent"])
        .arg(directory.path().join("n1.control"))
        .output()
        .unwrap();
    let explanation = String::from_utf8_lossy(&output.stdout).into_owned();
    assert!(
        explanation.contains("was declared failed (unreachable)"),
        "{explanation}"
    );
    let back = five.start(3);
    for member in &members {
        assert_eq!(member.next_line(), "UP n3", "at {}", member.name);
    }
    let others: Vec<_> = [1, 2, 4, 5].map(|other| format!("UP n{other}")).into();
    assert_eq!(back.wait_for(&others), Vec::<String>::new());
}

/// A sender with another key is not believed, and receives nothing.
#[test]
fn a_member_with_another_key_stays_outside() {
    let ours = tempfile::tempdir().unwrap();
    let theirs = tempfile::tempdir().unwrap();
    let first = group(ours.path(), 63).start(1);
    let outsider = group(theirs.path(), 63).start(2);
    // A member that does not serve yet would die of SIGTERM.
    Admin::of(theirs.path(), "n2").await_answer(&["members"], |answer| answer.contains("n2"));
    let second = group(ours.path(), 63).start(3);
    assert_eq!(first.wait_for(&["UP n3".into()]), Vec::<String>::new());
    assert_eq!(second.wait_for(&["UP n1".into()]), Vec::<String>::new());
    assert_eq!(outsider.pending_lines(), Vec::<String>::new());
    assert!(outsider.leave());
    assert_eq!(first.pending_lines(), Vec::<String>::new());
}

/// Two of three members of a rack are killed: each failure is reported, then the rack.
#[test]
fn a_failed_rack_is_reported_after_its_members() {
    let directory = tempfile::tempdir().unwrap();
    let mut members: Vec<_> = (1..=7)
        .map(|index| {
            let rail = format!("127.64.9.{index}@udp0");
            let rack = if index < 5 { "rack1" } else { "rack2" };
            let seed = "127.64.9.1@udp0";
            let arguments = ["--rail", &rail, "--seed", seed, "--group", rack];
            Member::start(directory.path(), &format!("n{index}"), &arguments)
        })
        .collect();
    assert_eq!(Member::await_all_up(&members), [""; 0]);
    members.remove(6).kill();
    members.remove(5).kill();
    let expected = ["DOWN n6", "DOWN n7", "GROUP-DOWN rack2 n6,n7"].map(str::to_owned);
    for member in &members {
        let mut others = member.wait_for(&expected);
        // Silence may be detected first.
        others.retain(|line| line != "SUSPECT n6" && line != "SUSPECT n7");
        assert_eq!(others, Vec::<String>::new());
    }
}

/// Members that were given different lists of nodes have different zones. They refuse each other, and name the digests
/// that `muster zones plan` prints, also if by these lists they are in different zones. Row AG-05.
#[test]
fn a_member_with_other_zones_is_refused_with_both_digests() {
    let directory = tempfile::tempdir().unwrap();
    let seeds = "127.61.201.1@udp0 127.61.201.5@udp0";
    let lists = ["n[1-8]", "n[1-12]"];
    let start = |index: usize, nodes: &str| {
        let rail = format!("127.61.201.{index}@udp0");
        let arguments = [
            "--rail", &rail, "--seed", seeds, "--nodes", nodes, "--zones", "4",
        ];
        Member::start(directory.path(), &format!("n{index}"), &arguments)
    };
    let digests = lists.map(|nodes| {
        let sizes = ["--one-zone-max", "4", "--zone-size", "4", "-o", "json"];
        let mut plan = Command::new(program("muster"));
        plan.args(["zones", "plan", "--nodes", nodes]).args(sizes);
        let plan = plan.output().unwrap();
        assert!(plan.status.success(), "{plan:?}");
        let plan: Value = serde_json::from_slice(&plan.stdout).unwrap();
        plan["digest"].as_str().unwrap()[..8].to_owned()
    });
    let (one, other) = (start(1, lists[0]), start(5, lists[1]));
    let [short, long] = &digests;
    assert_eq!(one.next_line(), format!("REFUSED n5 zones {short} {long}"));
    assert_eq!(
        other.next_line(),
        format!("REFUSED n1 zones {long} {short}")
    );
    assert!(one.leave() && other.leave());
}

/// Two members of one job with different settings: each names the other and the setting, and neither accepts
/// the other. Row AG-05.
#[test]
fn a_member_with_other_settings_is_refused_by_name() {
    let directory = tempfile::tempdir().unwrap();
    let seeds = "127.61.200.1@udp0 127.61.200.2@udp0";
    let start = |index: usize, profile: &str| {
        let rail = format!("127.61.200.{index}@udp0");
        let arguments = ["--rail", &rail, "--seed", seeds, "--profile", profile];
        Member::start(directory.path(), &format!("n{index}"), &arguments)
    };
    let (one, other) = (start(1, "standard"), start(2, "quiet"));
    assert_eq!(one.next_line(), "REFUSED n2 heartbeat_us 20000 200000");
    assert_eq!(other.next_line(), "REFUSED n1 heartbeat_us 200000 20000");
    assert_eq!(one.pending_lines(), [""; 0]);
    assert!(one.leave() && other.leave());
}
