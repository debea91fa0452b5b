//! The data model: nets, rails, peers and NIDs are added, removed, preferred and counted while messages flow.
//! The tests use UDP on loopback addresses.

use crate::common::{Node, config, on_the_wheel, text};
use muster_fabric::{
    Class, Counters, DropReason, Fabric, Finding, HealthState, Nid, NidList, Pace, PathState,
    PeerError, PeerHandle, Policy, Route, Rule, Sent, Subject, Transport,
};

fn nid(text: &str) -> Nid {
    text.parse().unwrap()
}

/// The same rail with any port: another process may have taken its former port.
fn with_any_port(nid: &Nid) -> Nid {
    Nid {
        port: 0,
        ..nid.clone()
    }
}

fn send(node: &mut Node, to: PeerHandle, bytes: &[u8]) -> Sent {
    node.fabric.send(1, to, Class::News, Route::Next, bytes)
}

/// The paths that this many messages use, as pairs of a local rail and the index of the remote NID.
fn used_pairs(
    node: &mut Node,
    to: PeerHandle,
    remote: &NidList,
    count: usize,
) -> Vec<(usize, usize)> {
    let position = |nid: &Nid| remote.iter().position(|one| one == nid).unwrap();
    let sends = |node: &Node| -> Vec<((usize, usize), u64)> {
        let paths = node.fabric.paths(to).into_iter();
        paths
            .map(|path| ((path.rail, position(&path.nid)), path.counters.sends))
            .collect()
    };
    let mut used = Vec::new();
    for _ in 0..count {
        let before = sends(node);
        assert_eq!(send(node, to, b"x").copies, 1);
        let known = |pair| {
            before
                .iter()
                .find(|(other, _)| *other == pair)
                .map_or(0, |(_, count)| *count)
        };
        let changed = sends(node)
            .into_iter()
            .find(|(pair, count)| *count > known(*pair));
        used.push(changed.unwrap().0);
    }
    used
}

/// cfg-020, cfg-055: several rails on one net, added and removed while messages flow.
#[test]
fn peers_are_paired_again_when_rails_are_added_and_removed() {
    let mut a = Node::open("127.44.1.1:0@udp");
    let mut b = Node::open("127.44.2.1:0@udp,127.44.2.2:0@udp");
    let to_b = a.add_peer(&b);
    let nids = b.nids();
    assert_eq!(
        used_pairs(&mut a, to_b, &nids, 4),
        [(0, 0), (0, 1), (0, 0), (0, 1)]
    );
    let added = a.fabric.add_rail(&nid("127.44.1.2:0@udp")).unwrap();
    assert_eq!(added, 1);
    let used = used_pairs(&mut a, to_b, &nids, 4);
    assert!(used.contains(&(0, 0)) && used.contains(&(1, 1)), "{used:?}");
    let nets = a.fabric.nets();
    assert_eq!((nets.len(), nets[0].rails.len()), (1, 2));
    assert_eq!(nets[0].counters.sends, 8);

    let first = a.fabric.rails()[0].nid.clone();
    a.fabric.remove_rail(&first).unwrap();
    let nids_left: Vec<String> = a
        .nids()
        .iter()
        .map(|nid| nid.socket_address().unwrap().ip().to_string())
        .collect();
    assert_eq!(nids_left, ["127.44.1.2"]);
    assert_eq!(
        used_pairs(&mut a, to_b, &nids, 2)
            .iter()
            .filter(|(rail, _)| *rail == 1)
            .count(),
        2
    );
    assert_eq!(b.receive(10).len(), 10);
    // The index of the removed rail is used again, with new counters.
    assert_eq!(a.fabric.add_rail(&with_any_port(&first)).unwrap(), 0);
    assert_eq!(a.fabric.rails()[0].counters.sends, 0);
}

#[test]
fn the_last_rail_cannot_be_removed_and_errors_change_nothing() {
    let mut a = Node::open("127.44.3.1:0@udp,127.44.3.2:0@udp1");
    let mut b = Node::open("127.44.4.1:0@udp");
    let to_b = a.add_peer(&b);
    let before = a.fabric.rails();
    let local = a.nids();
    let error = a.fabric.remove_rail(&nid("127.44.3.9@udp")).unwrap_err();
    assert_eq!(
        error.to_string(),
        format!("127.44.3.9@udp0 is no rail of this node; its rails are {local}")
    );
    let error = a.fabric.add_rail(&nid("127.44.3.1:0@udp1")).unwrap_err();
    assert!(
        error
            .to_string()
            .contains("the same interface (127.44.3.1)"),
        "{error}"
    );
    let error = a.fabric.add_rail(&nid("203.0.113.5:0@udp")).unwrap_err();
    assert!(
        error.to_string().contains("no interface of this node"),
        "{error}"
    );
    assert_eq!(a.fabric.rails(), before);
    // The rail that leads to the peer is removed: the peer stays known, and sends to it fail with NoPath.
    let [first, last] = [0, 1].map(|index: usize| local.as_slice()[index].clone());
    a.fabric.remove_rail(&first).unwrap();
    let nothing = Sent {
        copies: 0,
        dropped: Some(DropReason::NoPath),
        ..Sent::default()
    };
    assert_eq!(send(&mut a, to_b, b"x"), nothing);
    assert_eq!(
        (a.fabric.no_path_drops(), a.fabric.unknown_peer_drops()),
        (1, 0)
    );
    let error = a.fabric.remove_rail(&last).unwrap_err();
    assert_eq!(
        error.to_string(),
        format!("{last} is the last rail of this node; add another before it is removed")
    );
    a.fabric.add_rail(&with_any_port(&first)).unwrap();
    assert_eq!(send(&mut a, to_b, b"again").copies, 1);
    assert_eq!(text(&b.receive(1)), ["again"]);
}

/// cfg-075: a peer's NIDs on several nets, changed while messages flow.
#[test]
fn a_renewed_peer_keeps_the_counters_of_its_remaining_paths() {
    let mut a = Node::open("127.44.5.1:0@udp,127.44.5.2:0@udp1");
    let mut b = Node::open("127.44.6.1:0@udp,127.44.6.2:0@udp1");
    let other = Node::open("127.44.7.1:0@udp");
    let to_other = a.add_peer(&other);
    let all = b.nids();
    let first = NidList::new(vec![all.as_slice()[0].clone()]).unwrap();
    let to_b = a.fabric.peer(&first).unwrap();
    assert_eq!(send(&mut a, to_b, b"one").copies, 1);
    a.fabric.renew(to_b, &all).unwrap();
    let paths = a.fabric.paths(to_b);
    assert_eq!((paths.len(), paths[0].counters.sends), (2, 1), "{paths:?}");
    assert_eq!(used_pairs(&mut a, to_b, &all, 2), [(1, 1), (0, 0)]);
    // A NID of another peer, and one that cannot be sent to, are refused and change nothing.
    let foreign: NidList = format!("{all},{}", other.nids()).parse().unwrap();
    let error = a.fabric.renew(to_b, &foreign).unwrap_err();
    assert!(
        error.to_string().contains("belongs to another peer"),
        "{error}"
    );
    let error = a
        .fabric
        .renew(to_b, &"eth9@udp".parse().unwrap())
        .unwrap_err();
    assert!(error.to_string().contains("has no address"), "{error}");
    let nowhere = "127.44.6.1@udp7".parse().unwrap();
    // The peer has no net in common, so this is refused only if relaying is off.
    a.fabric.set_relay(false);
    let error = a.fabric.renew(to_b, &nowhere).unwrap_err();
    assert!(matches!(error, PeerError::NoCommonNet { .. }), "{error}");
    a.fabric.set_relay(true);
    assert_eq!(a.fabric.nids(to_b), Some(all.clone()));
    assert_eq!(used_pairs(&mut a, to_b, &all, 2), [(1, 1), (0, 0)]);
    // NIDs that the peer no longer has can be used for other peers.
    a.fabric.renew(to_b, &first).unwrap();
    assert_eq!(a.fabric.paths(to_b).len(), 1);
    let second = NidList::new(vec![all.as_slice()[1].clone()]).unwrap();
    a.fabric.peer(&second).unwrap();
    assert_eq!(b.receive(5).len(), 5);
    a.fabric.forget(to_other);
    assert!(a.fabric.renew(to_other, &other.nids()).is_err());
}

/// cfg-110, cfg-120, cfg-145: one policy, changed while messages flow.
#[test]
fn a_policy_decides_among_working_paths() {
    let mut a = Node::open("127.44.8.1:0@udp,127.44.8.2:0@udp,127.44.8.3:0@udp1");
    let b = Node::open("127.44.9.1:0@udp,127.44.9.2:0@udp,127.44.9.3:0@udp1");
    let to_b = a.add_peer(&b);
    let nids = b.nids();
    assert_eq!(used_pairs(&mut a, to_b, &nids, 3), [(0, 0), (1, 1), (2, 2)]);
    let net = Rule::new(Subject::Net(nid("x@udp1").net));
    a.fabric.set_policy(Policy::new(vec![net.clone()]).unwrap());
    assert_eq!(used_pairs(&mut a, to_b, &nids, 3), [(2, 2); 3]);
    let cross = Rule {
        messages: Some(2),
        ..Rule::new(Subject::Pairs {
            local: vec!["127.44.8.1@udp".parse().unwrap()],
            remote: vec!["127.44.9.[2-9]@udp".parse().unwrap()],
        })
    };
    a.fabric.set_policy(Policy::new(vec![cross]).unwrap());
    assert_eq!(
        used_pairs(&mut a, to_b, &nids, 3),
        [(0, 1); 3],
        "a pair that is no home pair"
    );
    // Failover: the preferred net is removed and the others carry the messages; when it returns, so do the
    // messages.
    a.fabric.set_policy(Policy::new(vec![net]).unwrap());
    let preferred = a.nids().as_slice()[2].clone();
    a.fabric.remove_rail(&preferred).unwrap();
    let used = used_pairs(&mut a, to_b, &nids, 4);
    assert!(used.iter().all(|(rail, _)| *rail < 2), "{used:?}");
    a.fabric.add_rail(&with_any_port(&preferred)).unwrap();
    assert_eq!(used_pairs(&mut a, to_b, &nids, 2), [(2, 2); 2]);
    a.fabric.set_policy(Policy::default());
    assert_eq!(
        used_pairs(&mut a, to_b, &nids, 6)
            .iter()
            .filter(|pair| **pair == (2, 2))
            .count(),
        2
    );
}

/// snd-050: spare pairs are used if the home pairs refuse.
#[test]
fn spare_pairs_carry_messages_that_home_pairs_refuse() {
    let mut a = Node::open("127.44.10.1:0@udp,127.44.10.2:0@udp");
    let mut b = Node::open("127.44.11.1:0@udp,127.44.11.2:0@udp");
    let (to_b, all) = (a.add_peer(&b), b.nids());
    assert_eq!(used_pairs(&mut a, to_b, &all, 2), [(0, 0), (1, 1)]);
    assert_eq!(b.receive(2).len(), 2);
    // A send from a loopback address to another network fails at once.
    let good = Node::open("127.44.12.1:0@udp");
    let half: NidList = format!("{},203.0.113.77@udp", good.nids()).parse().unwrap();
    let to_half = a.fabric.peer(&half).unwrap();
    let used = used_pairs(&mut a, to_half, &half, 12);
    assert!(used.iter().all(|(_, remote)| *remote == 0), "{used:?}");
    let failed = a
        .fabric
        .paths(to_half)
        .into_iter()
        .find(|path| path.nid == half.as_slice()[1]);
    assert_eq!(failed.unwrap().state, PathState::Failed);
    assert_eq!(
        a.fabric.rails()[1].state,
        HealthState::Active,
        "one peer's bad NID does not count against the rail"
    );
}

/// snd-055: every pair is tried once, then the message is dropped and the reason is reported.
#[test]
fn a_message_that_no_pair_can_carry_is_dropped_with_its_reason() {
    let mut a = Node::open("127.44.13.1:0@udp,127.44.13.2:0@udp");
    let unreachable: NidList = "203.0.113.1@udp,203.0.113.2@udp".parse().unwrap();
    let peer = a.fabric.peer(&unreachable).unwrap();
    let sent = send(&mut a, peer, b"x");
    assert_eq!(
        (sent.copies, sent.dropped),
        (0, Some(DropReason::ProviderError))
    );
    let tries: Vec<u64> = a
        .fabric
        .paths(peer)
        .iter()
        .map(|path| path.counters.dropped(DropReason::ProviderError))
        .collect();
    assert_eq!(tries, [1, 1, 1, 1]);
}

/// dbg-010, dbg-015, dbg-025, dbg-035, dbg-050, dbg-055, dbg-060, dbg-085, dbg-090, dbg-095, dbg-100,
/// dbg-120.
#[test]
fn counters_are_kept_per_rail_and_peer_summed_per_net_and_reset() {
    let mut config = config("127.44.14.1:0@udp,127.44.14.2:0@udp");
    config.inject = false;
    config.peer_sends_max = 3;
    config.send_slots = 16;
    let mut a = Node::around(Fabric::open(&config).unwrap());
    let mut b = Node::open("127.44.15.1:0@udp,127.44.15.2:0@udp");
    let (to_b, to_a) = (a.add_peer(&b), b.add_peer(&a));
    for _ in 0..4 {
        assert_eq!(send(&mut a, to_b, b"four").copies, 1);
    }
    let rail = a.fabric.rails().remove(0);
    assert_eq!(
        (rail.credits.now, rail.credits.least, rail.credits.most),
        (30, 30, 32)
    );
    assert_eq!(
        (rail.queued_bytes, rail.counters.sends, rail.usage),
        (8, 2, 2)
    );
    let view = a.fabric.peer_view(to_b).unwrap();
    assert_eq!(
        (
            view.nids.len(),
            view.counters.sends,
            view.counters.send_bytes
        ),
        (2, 4, 16)
    );
    let nid = &view.nids[0];
    assert_eq!(
        (nid.rails.as_slice(), nid.queued_bytes, nid.counters.sends),
        (&[0][..], 8, 2)
    );
    assert_eq!((nid.credits.now, nid.credits.most), (4, 6));
    // Completed sends free their credits; the minimum is kept.
    for (rail, _) in b.receive(4) {
        b.fabric.heard(2, to_a, rail);
    }
    a.drain(2, &mut Vec::new());
    let rail = a.fabric.rails().remove(0);
    assert_eq!(
        (rail.credits.now, rail.credits.least, rail.queued_bytes),
        (32, 30, 0)
    );
    assert_eq!(b.fabric.peer_view(to_a).unwrap().counters.receives, 4);
    for _ in 0..8 {
        send(&mut a, to_b, b"four");
    }
    let dropped = |a: &Node| a.fabric.nets()[0].counters.dropped(DropReason::PeerBusy);
    assert!(dropped(&a) > 0);
    // The counters of a net are the sums of its rails' counters.
    let (net, rails) = (a.fabric.nets().remove(0), a.fabric.rails());
    let sum = |of: fn(&Counters) -> u64| rails.iter().map(|rail| of(&rail.counters)).sum::<u64>();
    let counters: [fn(&Counters) -> u64; 4] = [
        |one| one.sends,
        |one| one.send_bytes,
        |one| one.receives,
        |one| one.dropped(DropReason::PeerBusy),
    ];
    for counter in counters {
        assert_eq!(counter(&net.counters), sum(counter), "{net:?}");
    }
    assert!(
        rails.iter().all(|rail| rail.counters.sends > 0),
        "{rails:?}"
    );
    a.drain(3, &mut Vec::new());
    a.fabric.zero_stats();
    let rail = a.fabric.rails().remove(0);
    assert_eq!(
        (
            rail.counters.sends,
            rail.usage,
            rail.credits.least,
            dropped(&a)
        ),
        (0, 0, 32, 0)
    );
    assert_eq!(a.fabric.peer_view(to_b).unwrap().counters.sends, 0);
    // Peers are listed in parts.
    let peers: Vec<PeerHandle> = (1..=5)
        .map(|host| {
            a.fabric
                .peer(&format!("127.44.16.{host}@udp").parse().unwrap())
                .unwrap()
        })
        .collect();
    let first = a.fabric.peers(None, 4);
    let second = a.fabric.peers(first.last().copied(), 4);
    assert_eq!((first.len(), second.len()), (4, 2));
    assert!(first[0] == to_b && second[1] == peers[4]);
}

/// RS-04: several peers are silent on one rail and are heard on another, so the rail is at fault.
#[test]
fn a_rail_on_which_several_peers_are_silent_is_avoided_for_all_peers() {
    let mut a = Node::open("127.44.17.1:0@udp,127.44.17.2:0@udp");
    let others: Vec<Node> = [18, 19, 20]
        .iter()
        .map(|net| Node::open(&format!("127.44.{net}.1:0@udp,127.44.{net}.2:0@udp")))
        .collect();
    let peers: Vec<PeerHandle> = others.iter().map(|other| a.add_peer(other)).collect();
    let events = |a: &mut Node| std::iter::from_fn(|| a.fabric.poll_event()).count();
    for peer in &peers[..2] {
        a.fabric.watch(0, *peer, Pace::without_requests(100));
    }
    for (now_us, rail) in [(50, 0), (50, 1), (120, 0), (200, 0)] {
        for peer in &peers[..2] {
            a.fabric.heard(now_us, *peer, rail);
        }
    }
    assert_eq!(events(&mut a), 3, "two silent pairs, and the degraded rail");
    assert_eq!(a.fabric.findings(), [Finding::Local { rail: 1 }]);
    let rail = &a.nids().as_slice()[1].clone();
    let told = format!("no pair of {rail} works, while other rails of its net work");
    assert_eq!(a.fabric.findings_in_words(), [told]);
    assert_eq!(a.fabric.rails()[1].state, HealthState::Degraded);
    // Nothing is known about the third peer; its messages avoid the rail, too.
    let nids = others[2].nids();
    let used = used_pairs(&mut a, peers[2], &nids, 4);
    assert!(used.iter().all(|(rail, _)| *rail == 0), "{used:?}");
    let why = a.fabric.why(peers[2]).to_string();
    assert!(
        why.contains(": not taken, since it is silent or failed"),
        "{why}"
    );
    a.fabric.heard(300, peers[0], 1);
    assert!(events(&mut a) > 0);
    assert_eq!(a.fabric.rails()[1].state, HealthState::Active);
    let used = used_pairs(&mut a, peers[2], &nids, 4);
    assert!(used.contains(&(1, 1)), "{used:?}");
}

#[test]
fn why_gives_the_reason_against_each_other_pair() {
    let mut a = Node::open("127.44.21.1:0@udp,127.44.21.2:0@udp");
    let b = Node::open("127.44.22.1:0@udp,127.44.22.2:0@udp");
    let to_b = a.add_peer(&b);
    send(&mut a, to_b, b"x");
    let (own, remote) = (a.nids(), b.nids());
    let why = a.fabric.why(to_b).to_string();
    let [own_0, own_1] = [0, 1].map(|index: usize| own.as_slice()[index].to_string());
    let [remote_0, remote_1] = [0, 1].map(|index: usize| remote.as_slice()[index].to_string());
    let expected = format!(
        "{own_1} -> {remote_1}\n\
         \x20 local {own_0}: not taken, since another was used longer ago\n\
         \x20 local {own_1}: taken\n\
         \x20 remote {remote_1}: taken\n\
         \x20 remote {remote_0}: not taken, since it is a spare pair, and a home pair works\n"
    );
    assert_eq!(why, expected);
    let used = used_pairs(&mut a, to_b, &remote, 1);
    assert_eq!(used, [(1, 1)], "why() changes nothing");
}

#[test]
fn these_tests_pass_with_the_wheels_libfabric() {
    on_the_wheel(module_path!());
}
