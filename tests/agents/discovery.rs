//! Discovery: from one address of one member all members learn all addresses of all.
//!
//! A contact request to an address is the ping. The record in the answer is the list of the other's
//! interfaces, the record in the request is the sender's own, and a changed record that spreads is the push.
//! The member that sends the request is the active side. Only frames of a member itself count for its
//! interfaces.

use muster_tests::Member;
use muster_tests::admin::Admin;
use std::fs;
use std::path::Path;

fn rails(index: usize, count: usize) -> Vec<String> {
    let rail = |rail: usize| format!("127.67.{rail}.{index}@udp{rail}");
    (0..count).map(rail).collect()
}

fn start(directory: &Path, index: usize, count: usize, more: &[&str]) -> Member {
    let rails = rails(index, count);
    let given = rails.iter().flat_map(|rail| ["--rail", rail]);
    let arguments: Vec<&str> = given.chain(more.iter().copied()).collect();
    Member::start(directory, &format!("n{index}"), &arguments)
}

/// The NIDs that an agent knows of another one.
fn known(admin: &Admin, name: &str) -> Vec<String> {
    let answer = admin.json(&["peers"]);
    let peers = answer["peers"].as_array().unwrap();
    let peer = peers.iter().find(|peer| peer["name"] == *name);
    let nids = peer.and_then(|peer| peer["nids"].as_array()).cloned();
    let nid = |one: &serde_json::Value| one["nid"].as_str().unwrap().to_owned();
    nids.unwrap_or_default().iter().map(nid).collect()
}

fn await_known(admin: &Admin, name: &str, nids: &[String]) {
    admin.await_answer(&["peers"], |_| known(admin, name) == nids);
}

fn counter(admin: &Admin, name: &str) -> u64 {
    let stats = admin.json(&["stats"]);
    let parts = stats.as_object().unwrap().values();
    let found = parts.filter_map(|part| part.get(name)?.as_u64()).next();
    found.unwrap_or_else(|| panic!("{name}: {stats}"))
}

/// dyn-020, dyn-025, dyn-035, dyn-040, dyn-045, dyn-055; cfg-085; bck-025, bck-030; snd-065 for discovered
/// interfaces.
#[test]
fn all_addresses_are_learned_from_one_and_changes_are_pushed() {
    let directory = tempfile::tempdir().unwrap();
    let first = start(directory.path(), 1, 2, &[]);
    let one = Admin::of(directory.path(), "n1");
    one.await_answer(&["rails"], |rails| rails.contains("udp1"));
    // A member without seeds is passive: it sends nothing.
    assert_eq!(counter(&one, "rail_sends"), 0);
    let seed = &rails(1, 1)[0];
    let _second = start(directory.path(), 2, 2, &["--seed", seed]);
    let _third = start(directory.path(), 3, 1, &["--seed", seed]);
    first.wait_for(&["UP n2".into(), "UP n3".into()]);
    let (two, three) = (
        Admin::of(directory.path(), "n2"),
        Admin::of(directory.path(), "n3"),
    );
    // Both sides know all NIDs of each other, whichever side sent the request; one has a single rail.
    await_known(&one, "n2", &rails(2, 2));
    await_known(&two, "n1", &rails(1, 2));
    await_known(&one, "n3", &rails(3, 1));
    // New rails are pushed, and so are removed ones.
    let new = rails(3, 2)[1].clone();
    three.ask(&["rails", "add", &new]);
    await_known(&one, "n3", &rails(3, 2));
    await_known(&two, "n3", &rails(3, 2));
    one.ask(&["rails", "del", &rails(1, 2)[1]]);
    await_known(&two, "n1", &rails(1, 1));
    for admin in [&one, &two, &three] {
        assert_eq!(counter(admin, "addresses_contradict"), 0);
    }
}

/// dyn-060: the configured addresses are compared with those that a member states itself.
#[test]
fn an_interface_that_a_member_does_not_have_is_flagged() {
    let directory = tempfile::tempdir().unwrap();
    let first = start(directory.path(), 4, 2, &[]);
    let config = directory.path().join("rails.yaml");
    let [right, _] = &rails(4, 2)[..] else {
        unreachable!()
    };
    let document = format!("version: 1\npeers:\n  - nids: [\"{right}\", \"127.67.1.99@udp1\"]\n");
    fs::write(&config, document).unwrap();
    let config = config.to_str().unwrap();
    let _second = start(directory.path(), 5, 2, &["--config", config]);
    first.wait_for(&["UP n5".into()]);
    let two = Admin::of(directory.path(), "n5");
    // The member's own statement counts.
    await_known(&two, "n4", &rails(4, 2));
    assert_eq!(counter(&two, "addresses_contradict"), 1);
}

/// dyn-065: an address does not identify a member. A member that answers at the addresses of a dead one is
/// another member.
#[test]
fn an_answer_at_a_dead_members_address_does_not_keep_it_alive() {
    let directory = tempfile::tempdir().unwrap();
    let first = start(directory.path(), 6, 2, &[]);
    let seed = &rails(6, 1)[0];
    let second = start(directory.path(), 7, 2, &["--seed", seed]);
    first.wait_for(&["UP n7".into()]);
    second.kill();
    let rails = rails(7, 2);
    let arguments = ["--rail", &rails[0], "--rail", &rails[1], "--seed", seed];
    let _other = Member::start(directory.path(), "n8", &arguments);
    first.wait_for(&["DOWN n7".into(), "UP n8".into()]);
    await_known(&Admin::of(directory.path(), "n6"), "n8", &rails);
}
