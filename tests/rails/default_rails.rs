//! Rails without a configuration, on hosts that have more interfaces than the networks they share.

use muster_tests::admin::Admin;
use muster_tests::hosts::{Fault, Hosts, address};
use muster_tests::{Member, program, until};
use serde_json::Value;
use std::fs;
use std::path::Path;

/// The address of Docker's bridge, the same on every machine.
const DOCKER: &str = "172.17.0.1";
/// Messages on each common network after which a rail that does not work would have been detected: a rail is
/// silent after about ten heartbeats.
const MESSAGES: u64 = 100;

/// Starts a member on each host without named rails; they find the first one by this address.
fn start(hosts: &Hosts, directory: &Path, seed: &str) -> Vec<Member> {
    let start = |host| {
        let command = hosts.command(host, &program("musterd"));
        let arguments = ["--port", "7741", "--seed", seed];
        Member::start_by(command, directory, &format!("n{host}"), &arguments)
    };
    (1..=hosts.count()).map(start).collect()
}

fn of_others(word: &str, count: usize, own: usize) -> Vec<String> {
    let others = (1..=count).filter(|other| *other != own);
    others.map(|other| format!("{word} n{other}")).collect()
}

/// Messages that a host has received at each of its addresses.
fn received(rails: &Value) -> Vec<(String, u64)> {
    let rails = rails["rails"].as_array().expect("rails");
    let figures = rails.iter().map(|rail| {
        let nid = rail["nid"].as_str().expect("a NID");
        let (address, _) = nid.split_once(':').unwrap_or((nid, ""));
        let address = address.split('@').next().expect("an address");
        (
            address.to_owned(),
            rail["receives"].as_u64().expect("a count"),
        )
    });
    figures.collect()
}

/// Waits until all members see each other and many messages have arrived at each address on a common network.
/// The members print nothing else.
fn are_well(directory: &Path, members: &[Member], rails: usize) {
    let count = members.len();
    for (host, member) in (1..).zip(members) {
        let others = member.wait_for(&of_others("UP", count, host));
        assert_eq!(others, [""; 0], "at n{host}");
    }
    for host in 1..=count {
        let admin = Admin::of(directory, &format!("n{host}"));
        let first = received(&admin.json(&["rails"]));
        let more = || {
            let now = received(&admin.json(&["rails"]));
            let since = |own: &str| {
                let of = |figures: &[(String, u64)]| {
                    let found = figures.iter().find(|(address, _)| address == own);
                    found.map_or(0, |(_, count)| *count)
                };
                of(&now) - of(&first)
            };
            (0..rails)
                .all(|rail| since(&address(host, rail)) >= MESSAGES)
                .then_some(())
        };
        until(|| format!("n{host}: {}", admin.ask(&["rails"])), more);
    }
    for (host, member) in (1..).zip(members) {
        assert_eq!(member.pending_lines(), [""; 0], "at n{host}");
    }
}

/// Docker's bridge is no rail, and `muster rails` reports why.
#[test]
fn a_bridge_with_the_same_address_everywhere_is_no_rail() {
    let Some(hosts) = Hosts::open(2, 1) else {
        return;
    };
    for host in 1..=hosts.count() {
        // As without a container: a bridge without a port has no carrier.
        hosts.configure(
            host,
            &format!(
                "link add docker0 type bridge\naddr add {DOCKER}/16 dev docker0\nlink set docker0 up\n\
                 link add inside type veth peer name outside\nlink set outside master docker0 up\n\
                 link set inside up\n"
            ),
        );
    }
    let directory = tempfile::tempdir().unwrap();
    let members = start(&hosts, directory.path(), &format!("{}@udp0", address(1, 0)));
    are_well(directory.path(), &members, 1);
    for host in 1..=hosts.count() {
        let admin = Admin::of(directory.path(), &format!("n{host}"));
        let rails = admin.json(&["rails"]);
        assert_eq!(received(&rails).len(), 1, "{rails}");
        let table = admin.ask(&["rails"]);
        let line = table.lines().find(|line| line.contains("docker0"));
        assert!(
            line.is_some_and(|line| line.contains("is a bridge")),
            "{table}"
        );
    }
}

/// An interface that looks like any other and has the same address on every host is a rail, but no path to
/// another host. A shared network is one, whichever address the members find each other by; if it is cut,
/// they report that.
#[test]
fn a_common_address_degrades_no_member_and_a_cut_network_does() {
    let Some(hosts) = Hosts::open(3, 2) else {
        return;
    };
    for host in 1..=hosts.count() {
        hosts.configure(
            host,
            &format!(
                "link add inner type veth peer name outer\naddr add {DOCKER}/16 dev inner\n\
                 link set inner up\nlink set outer up\n"
            ),
        );
    }
    let directory = tempfile::tempdir().unwrap();
    let members = start(&hosts, directory.path(), &format!("{}@udp0", address(1, 1)));
    are_well(directory.path(), &members, 2);
    let rails = Admin::of(directory.path(), "n1").json(&["rails"]);
    let addresses: Vec<String> = received(&rails).into_iter().map(|(one, _)| one).collect();
    assert!(addresses.iter().any(|one| one == DOCKER), "{addresses:?}");

    hosts.break_rail(3, 1, Fault::Black);
    for member in &members[..2] {
        member.wait_for(&["DEGRADED n3".into()]);
    }
    hosts.heal(3, 1, Fault::Black);
    for member in &members[..2] {
        member.wait_for(&["RECOVERED n3".into()]);
    }
}

/// A document that was exported on one node configures another one, which has other addresses.
/// cfg-170.
#[test]
fn a_document_of_one_node_configures_another() {
    let Some(hosts) = Hosts::open(2, 2) else {
        return;
    };
    let directory = tempfile::tempdir().unwrap();
    let directory = directory.path();
    let seed = format!("{}@udp0", address(1, 0));
    let begin = |host, arguments: &[&str]| {
        let command = hosts.command(host, &program("musterd"));
        Member::start_by(command, directory, &format!("n{host}"), arguments)
    };
    let first = begin(1, &["--port", "7741"]);
    let admin = Admin::of(directory, "n1");
    let limit = ["rails", "set", "--sensitivity", "150"];
    admin.await_answer(&limit, |answer| answer.contains("done"));
    let document = admin.ask(&["export"]);
    let file = directory.join("n1.yaml");
    fs::write(&file, &document).unwrap();

    let file = file.to_str().expect("a path in UTF-8");
    let members = [first, begin(2, &["--config", file, "--seed", &seed])];
    are_well(directory, &members, 2);
    let other = Admin::of(directory, "n2");
    assert_eq!(other.ask(&["export"]), document);
    let addresses = received(&other.json(&["rails"]));
    let mut addresses: Vec<String> = addresses.into_iter().map(|(one, _)| one).collect();
    addresses.sort();
    assert_eq!(addresses, [address(2, 0), address(2, 1)]);
}
