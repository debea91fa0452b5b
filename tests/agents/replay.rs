//! An outsider without the key in the network of real agents replays what it recorded.

use muster_tests::admin::Admin;
use muster_tests::hosts::{Fault, Hosts, address};
use muster_tests::outsider::{Outsider, Recorded};
use muster_tests::{Member, program, until};
use rustix::event::poll;
use std::net::Ipv4Addr;
use std::path::Path;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::time::Duration;

/// Recorded datagrams of a member to each of the others. Replayed one per [`PAUSE`], they last many times as
/// long as a member may be silent.
const COUNT: usize = 150;
/// Shorter than the silence after which the standard profile declares a member failed.
const PAUSE: Duration = Duration::from_millis(45);
/// Keeps a burst from overflowing the receiver's buffers.
const BURST_PAUSE: Duration = Duration::from_millis(1);

fn start(hosts: &Hosts, directory: &Path, host: usize) -> Member {
    let rail = |host| format!("{}:7741@udp0", address(host, 0));
    let command = hosts.command(host, &program("musterd"));
    let arguments = ["--rail", &rail(host), "--seed", &rail(1)];
    Member::start_by(command, directory, &format!("n{host}"), &arguments)
}

fn ip(host: usize) -> Ipv4Addr {
    address(host, 0).parse().expect("an address")
}

fn pause(time: Duration) {
    let time = time.try_into().expect("a short time");
    // Polls no descriptor: a signal only shortens the pause.
    let _ = poll(&mut [], Some(&time));
}

/// Number of datagrams that a member has refused for this reason.
fn refused(directory: &Path, member: &str, reason: &str) -> u64 {
    let stats = Admin::of(directory, member).json(&["stats"]);
    let name = format!("rejected_{reason}");
    find(&stats, &name).unwrap_or_else(|| panic!("no {name} in {stats}"))
}

fn find(value: &serde_json::Value, name: &str) -> Option<u64> {
    let fields = value.as_object()?;
    let own = fields.get(name).and_then(serde_json::Value::as_u64);
    own.or_else(|| fields.values().find_map(|inner| find(inner, name)))
}

/// The datagrams of a recording to this host.
fn to(recording: &[Recorded], host: usize) -> Vec<&Recorded> {
    let meant = recording.iter().filter(|one| one.to() == ip(host));
    meant.collect()
}

/// ZM-06: datagrams of a member whose network is cut are replayed to their receivers and to others, in
/// ascending order and often enough. The member is still declared failed meanwhile, and stays so.
#[test]
fn recordings_keep_no_gone_member_alive() {
    let Some(hosts) = Hosts::open(3, 1) else {
        return;
    };
    let directory = tempfile::tempdir().unwrap();
    let members: Vec<Member> = (1..=3)
        .map(|host| start(&hosts, directory.path(), host))
        .collect();
    assert_eq!(Member::await_all_up(&members), [""; 0]);
    let mut outsider = Outsider::at(&hosts);
    let enough = |recording: &[Recorded]| [1, 2].iter().all(|h| to(recording, *h).len() >= COUNT);
    let recording = outsider.record(|one| one.from() == ip(3), enough);
    let (first, second) = (to(&recording, 1), to(&recording, 2));
    let turns: Vec<_> = first.iter().zip(&second).collect();

    let (played, is_found) = (AtomicUsize::new(0), AtomicBool::new(false));
    let play = || {
        for (to_first, to_second) in &turns {
            for (datagram, host) in [(to_first, 2), (to_second, 1), (to_first, 1), (to_second, 2)] {
                outsider.replay(datagram, ip(host));
            }
            played.fetch_add(1, Ordering::Relaxed);
            pause(match is_found.load(Ordering::Relaxed) {
                true => BURST_PAUSE,
                false => PAUSE,
            });
        }
    };
    let at_failure = std::thread::scope(|scope| {
        scope.spawn(play);
        hosts.break_rail(3, 0, Fault::Black);
        members[..2]
            .iter()
            .for_each(|member| member.expect_down("n3"));
        is_found.store(true, Ordering::Relaxed);
        played.load(Ordering::Relaxed)
    });
    assert!(
        at_failure < turns.len(),
        "detected only when the recording was over"
    );
    println!("detected after {at_failure} of {} datagrams", turns.len());
    for name in ["n1", "n2"] {
        for reason in ["misdirected", "repeated"] {
            let came = || refused(directory.path(), name, reason);
            let what = || format!("{reason} at {name}: {}", came());
            until(what, || (came() > 0).then_some(()));
        }
    }
    for member in &members[..2] {
        assert_eq!(member.pending_lines(), [""; 0], "at {}", member.name);
    }
}

/// ZM-01: all datagrams of a run are replayed to their receivers in a later run with the same key. No member
/// reports a member that is not there, or another incarnation of a present one.
#[test]
fn recordings_of_an_earlier_run_revive_no_member() {
    let Some(hosts) = Hosts::open(3, 1) else {
        return;
    };
    let directory = tempfile::tempdir().unwrap();
    let mut outsider = Outsider::at(&hosts);
    let start = |host| start(&hosts, directory.path(), host);
    let members: Vec<Member> = (1..=3).map(start).collect();
    let of_third = |recording: &[Recorded], host| {
        let sent = to(recording, host).into_iter();
        sent.filter(|one| one.from() == ip(3)).count()
    };
    // From its first datagram on.
    let enough = |recording: &[Recorded]| [1, 2].iter().all(|h| of_third(recording, *h) >= COUNT);
    let recording = outsider.record(|_| true, enough);
    assert_eq!(Member::await_all_up(&members), [""; 0]);
    members.into_iter().for_each(Member::kill);

    let mut members: Vec<Member> = (1..=2).map(start).collect();
    assert_eq!(Member::await_all_up(&members), [""; 0]);
    for datagram in &recording {
        // That host has no member now.
        if datagram.to() != ip(3) {
            outsider.replay(datagram, datagram.to());
            pause(BURST_PAUSE);
        }
    }
    for member in &members {
        assert_eq!(member.pending_lines(), [""; 0], "at {}", member.name);
    }
    for name in ["n1", "n2"] {
        let came = || refused(directory.path(), name, "misdirected");
        until(
            || format!("at {name}: {}", came()),
            || (came() > 0).then_some(()),
        );
    }
    let second = members.pop().expect("two");
    assert!(second.leave());
    let others = members[0].wait_for(&["LEFT n2".into()]);
    assert_eq!(others, [""; 0]);
}
