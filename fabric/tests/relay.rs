//! Relay: messages between members that cannot reach each other directly, and envelopes that a carrier refuses.
//!
//! The tests use UDP on loopback addresses and a clock that the test sets. The nets of the members decide which
//! of them can reach each other: for the fabric, udp0 and udp1 are two networks.

use crate::common::{config, on_the_wheel};
use muster_fabric::{
    Arrival, BULK_MESSAGE_MAX, Class, DropReason, ENVELOPE_BYTES, Fabric, FabricEvent, Nid, Pace,
    PeerError, PeerHandle, Relayed, Route, Sent, Tally, Transport,
};
use std::collections::BTreeMap;
use std::time::{Duration, Instant};

const DEADLINE: Duration = Duration::from_secs(30);

/// A received message, and its carrier.
type Got = (Vec<u8>, Option<Relayed>);

/// Members by name, each of which knows all others.
struct World {
    members: BTreeMap<char, Fabric>,
    /// The handle that the first member has for the second.
    handles: BTreeMap<(char, char), PeerHandle>,
    now_us: u64,
}

impl World {
    fn open(rails: &[(char, &str)]) -> World {
        let open = |(name, rails): &(char, &str)| {
            let mut config = config(rails);
            config.incarnation = 1;
            (*name, Fabric::open(&config).unwrap())
        };
        let mut world = World {
            members: rails.iter().map(open).collect(),
            handles: BTreeMap::new(),
            now_us: 1_000_000,
        };
        let nids: Vec<_> = world
            .members
            .iter()
            .map(|(name, member)| (*name, member.local_nids()))
            .collect();
        for (name, member) in &mut world.members {
            for (other, nids) in nids.iter().filter(|(other, _)| other != name) {
                let handle = member.peer(nids).unwrap();
                world.handles.insert((*name, *other), handle);
            }
        }
        world
    }

    fn of(&mut self, name: char) -> &mut Fabric {
        self.members.get_mut(&name).unwrap()
    }

    fn to(&self, from: char, to: char) -> PeerHandle {
        self.handles[&(from, to)]
    }

    fn send(&mut self, from: char, to: char, text: &str) -> Sent {
        let (now_us, to) = (self.now_us, self.to(from, to));
        let bytes = text.as_bytes();
        self.of(from)
            .send(now_us, to, Class::News, Route::Next, bytes)
    }

    /// Reads what a member has received. On loopback, a message has arrived when its send returns.
    fn take(&mut self, name: char) -> Vec<Got> {
        let now_us = self.now_us;
        let mut got = Vec::new();
        let mut keep = |arrival: Arrival<'_>| got.push((arrival.bytes.to_vec(), arrival.relayed));
        while self.of(name).poll(now_us, &mut keep) {}
        got
    }

    /// As `take`, and reports all messages as coming from one peer.
    fn take_and_report(&mut self, name: char, from: char) -> Vec<Got> {
        let got = self.take(name);
        let (now_us, from) = (self.now_us, self.to(name, from));
        for (_, relayed) in &got {
            match relayed {
                None => self.of(name).heard(now_us, from, 0),
                Some(relayed) => self.of(name).heard_through(now_us, from, *relayed),
            }
        }
        got
    }

    fn events(&mut self, name: char) -> Vec<FabricEvent> {
        self.take(name);
        let fabric = self.of(name);
        std::iter::from_fn(|| fabric.poll_event()).collect()
    }

    fn drops(&mut self, name: char, reason: DropReason) -> u64 {
        let rails = self.of(name).rails();
        rails.iter().map(|rail| rail.counters.dropped(reason)).sum()
    }

    fn sends(&mut self, name: char) -> u64 {
        let rails = self.of(name).rails();
        rails.iter().map(|rail| rail.counters.sends).sum()
    }

    /// The traffic from one member through another to a third, as the member `at` counts it.
    fn relayed(&mut self, at: char, ends: [Option<char>; 3]) -> Tally {
        let nid = |name: char| self.members[&name].local_nids().as_slice()[0].clone();
        let ends = ends.map(|end| end.map(nid));
        let view = self.of(at).relayed();
        let found = view.pairs.into_iter().find(|(pair, _)| *pair == ends);
        found.map_or_else(Tally::default, |(_, tally)| tally)
    }

    /// Drives all members on the real clock until the condition holds.
    fn run_bulk(&mut self, until: impl Fn(&BTreeMap<char, (Vec<Got>, Vec<FabricEvent>)>) -> bool) {
        let start = Instant::now();
        let begin_us = self.now_us;
        let mut seen: BTreeMap<char, (Vec<Got>, Vec<FabricEvent>)> = BTreeMap::new();
        let names: Vec<char> = self.members.keys().copied().collect();
        while !until(&seen) {
            assert!(start.elapsed() < DEADLINE, "{:?}", self.of(names[0]));
            self.now_us = begin_us + start.elapsed().as_micros() as u64;
            for name in &names {
                let got = self.take(*name);
                let fabric = self.of(*name);
                let events = std::iter::from_fn(|| fabric.poll_event());
                let entry = seen.entry(*name).or_default();
                entry.1.extend(events);
                entry.0.extend(got);
            }
            std::thread::yield_now();
        }
    }
}

/// A world in which a is on udp0, b on udp1, and each carrier on both.
fn on_two_nets(net: u8, carriers: &str) -> World {
    let rails = |at: u8, nets: &[u8]| -> String {
        let nid = |one: &u8| format!("127.47.{net}.{}:0@udp{one}", 10 * at + one);
        nets.iter().map(nid).collect::<Vec<_>>().join(",")
    };
    let mut members = vec![('a', rails(1, &[0])), ('b', rails(2, &[1]))];
    let carriers = (3..).zip(carriers.chars());
    members.extend(carriers.map(|(at, name)| (name, rails(at, &[0, 1]))));
    let members: Vec<(char, &str)> = members.iter().map(|(n, r)| (*n, r.as_str())).collect();
    World::open(&members)
}

fn through(world: &World, at: char, by: char, no_direct_contact: bool) -> Option<Relayed> {
    Some(Relayed {
        by: world.to(at, by),
        no_direct_contact,
    })
}

/// snd-060 with its router NIDs; BG-06: failover to a node that still has both kinds of network.
#[test]
fn a_member_without_a_common_net_is_reached_through_a_carrier() {
    let mut world = on_two_nets(1, "c");
    assert_eq!(world.send('a', 'b', "there").copies, 1);
    assert_eq!(world.take('c'), [], "the message is not for the carrier");
    let got = [(b"there".to_vec(), through(&world, 'b', 'c', true))];
    assert_eq!(world.take_and_report('b', 'a'), got);
    world.send('b', 'a', "and back");
    world.take('c');
    let got = [(b"and back".to_vec(), through(&world, 'a', 'c', true))];
    assert_eq!(world.take_and_report('a', 'b'), got);
    // Each of the three counts the sender, the carrier, the receiver and the bytes.
    let one = |bytes| Tally { messages: 1, bytes };
    assert_eq!(world.relayed('a', [None, Some('c'), Some('b')]), one(5));
    assert_eq!(world.relayed('c', [Some('a'), None, Some('b')]), one(5));
    assert_eq!(world.relayed('b', [Some('a'), Some('c'), None]), one(5));
    assert_eq!(world.relayed('c', [Some('b'), None, Some('a')]), one(8));
    // The explanation.
    let to_b = world.to('a', 'b');
    let why = world.of('a').why(to_b).to_string();
    assert!(
        why.contains("no path") && why.contains("no rail of this node is on a net"),
        "{why}"
    );
    assert!(why.contains("@udp0: taken"), "{why}");
    let to_c = world.to('a', 'c');
    assert_eq!(world.of('a').why(to_c).relay, None);
    // These counters are reset with all others.
    world.of('c').zero_stats();
    assert_eq!(world.of('c').relayed().pairs, []);
}

/// The longest message fits in an envelope; longer ones are refused as without relaying.
#[test]
fn the_longest_message_fits_an_envelope() {
    let mut world = on_two_nets(2, "c");
    let mtu = world.of('a').mtu();
    assert_eq!(mtu, 1472 - ENVELOPE_BYTES);
    let longest = "x".repeat(mtu);
    world.send('a', 'b', &longest);
    world.take('c');
    assert_eq!(world.take('b')[0].0, longest.as_bytes());
    assert_eq!(world.send('a', 'b', &"x".repeat(mtu + 1)).copies, 0);
}

#[test]
fn with_relaying_off_nothing_is_relayed_or_carried() {
    let mut world = on_two_nets(3, "c");
    for (off, drops_at) in [('c', 'c'), ('b', 'b')] {
        world.of(off).set_relay(false);
        assert_eq!(world.send('a', 'b', "there").copies, 1);
        world.take('c');
        assert_eq!(world.take('b'), []);
        assert_eq!(world.drops(drops_at, DropReason::RelayOff), 1);
        world.of(off).set_relay(true);
    }
    world.of('a').set_relay(false);
    let nothing = Sent {
        copies: 0,
        dropped: Some(DropReason::NoPath),
        ..Sent::default()
    };
    assert_eq!(world.send('a', 'b', "there"), nothing);
    let to_b = world.to('a', 'b');
    let why = world.of('a').why(to_b).to_string();
    assert!(why.contains("but relaying is off"), "{why}");
    // Then, a member without a common net cannot be added as a peer.
    let unknown = "127.47.3.99@udp7".parse().unwrap();
    let refused = world.of('a').peer(&unknown);
    assert!(
        matches!(refused, Err(PeerError::NoCommonNet { .. })),
        "{refused:?}"
    );
    world.of('a').set_relay(true);
    world.of('a').peer(&unknown).unwrap();
    let no_address = "eth9@udp7".parse().unwrap();
    assert!(world.of('a').peer(&no_address).is_err());
}

/// Two carriers send until the peer was heard through one; then only this one sends.
#[test]
fn two_members_carry_until_the_peer_was_heard_through_one() {
    let mut world = on_two_nets(4, "cd");
    world.of('c').set_relay(false);
    assert_eq!(world.send('a', 'b', "one").copies, 2);
    world.take('c');
    world.take('d');
    assert_eq!(world.take_and_report('b', 'a').len(), 1);
    assert_eq!(
        world.send('b', 'a', "two").copies,
        1,
        "a was heard through d"
    );
    world.take('d');
    assert_eq!(world.take_and_report('a', 'b').len(), 1);
    for _ in 0..5 {
        assert_eq!(world.send('a', 'b', "more").copies, 1);
    }
    world.take('d');
    assert_eq!(world.take('b').len(), 5);
    // Nothing arrives any more: after a while two carriers are used again.
    world.now_us += 2_000_000;
    assert_eq!(world.send('a', 'b', "again").copies, 2);
}

/// All are on one net, and a does not hear b. a sends through c as well, and b also answers through c as long
/// as a states that it has lost direct contact. All messages go directly once that is possible.
#[test]
fn a_watched_silent_peer_is_sent_to_through_carriers_and_answers_through_them() {
    let rails = [
        ('a', "127.47.5.1:0@udp"),
        ('b', "127.47.5.2:0@udp"),
        ('c', "127.47.5.3:0@udp"),
    ];
    let mut world = World::open(&rails);
    let (to_b, to_a) = (world.to('a', 'b'), world.to('b', 'a'));
    let now_us = world.now_us;
    world
        .of('a')
        .watch(now_us, to_b, Pace::without_requests(100_000));
    world.now_us += 50_000;
    assert_eq!(
        world.send('a', 'b', "well?").copies,
        1,
        "the silence is not long enough yet"
    );
    world.now_us += 1;
    assert_eq!(world.send('a', 'b', "well?").copies, 2);
    world.take('c');
    let got = world.take_and_report('b', 'a');
    assert_eq!(got.len(), 3, "two of them directly");
    assert_eq!(got[2].1, through(&world, 'b', 'c', true));
    // b hears a directly, but a states that it does not hear b.
    assert_eq!(world.send('b', 'a', "here").copies, 2);
    world.take('c');
    let got = world.take('a');
    let direct = [(b"here".to_vec(), None)];
    assert_eq!(got[..1], direct);
    assert_eq!(got[1].1, through(&world, 'a', 'c', false));
    // In this test, only the relayed message counts as arrived.
    world.now_us += 60_000;
    let (now_us, relayed) = (world.now_us, got[1].1.unwrap());
    world.of('a').heard_through(now_us, to_b, relayed);
    let indirect = FabricEvent::PeerIndirect { peer: to_b };
    let events = world.events('a');
    assert_eq!(events[0], indirect, "the silent rail is reported after it");
    assert!(
        matches!(events[1], FabricEvent::RailSilent { rail: 0, .. }),
        "{events:?}"
    );
    let why = world.of('a').why(to_b).to_string();
    assert!(
        why.contains("through other members, since no direct pair works"),
        "{why}"
    );
    // Direct contact is reported, and no message is relayed any more.
    world.now_us += 1;
    let now_us = world.now_us;
    world.of('a').heard(now_us, to_b, 0);
    let back = [
        FabricEvent::PeerDirect { peer: to_b },
        FabricEvent::RailBack {
            peer: to_b,
            rail: 0,
        },
    ];
    assert_eq!(world.events('a'), back);
    assert_eq!(world.send('a', 'b', "fine").copies, 1);
    assert_eq!(world.of('a').why(to_b).relay, None);
    assert_eq!(world.send('b', 'a', "requested lately").copies, 2);
    world.now_us += 1_000_000;
    assert_eq!(world.send('b', 'a', "fine").copies, 1);
    world.take('b');
    assert_eq!(world.of('b').why(to_a).relay, None);
}

/// A peer that is not watched: news without an answer is relayed as well.
#[test]
fn unanswered_news_is_also_relayed() {
    let mut world = World::open(&[
        ('a', "127.47.6.1:0@udp"),
        ('b', "127.47.6.2:0@udp"),
        ('c', "127.47.6.3:0@udp"),
    ]);
    let to_b = world.to('a', 'b');
    let send_late = |world: &mut World| {
        let copies: Vec<u8> = (0..4)
            .map(|_| world.send('a', 'b', "news").copies)
            .collect();
        assert_eq!(copies, [1; 4]);
        world.now_us += 100_001;
        world.send('a', 'b', "news").copies
    };
    assert_eq!(
        send_late(&mut world),
        1,
        "a peer that was never heard, such as a seed, is not relayed to"
    );
    let now_us = world.now_us;
    world.of('a').heard(now_us, to_b, 0);
    assert_eq!(send_late(&mut world), 2);
    let now_us = world.now_us;
    world.of('a').heard(now_us, to_b, 0);
    assert_eq!(world.send('a', 'b', "news").copies, 1);
}

/// AG-15: forged envelopes: none is carried, each is counted, and the host gets at most one event for an
/// unknown NID.
#[test]
fn forged_envelopes_are_dropped_and_counted() {
    let mut world = on_two_nets(7, "c");
    let first = |world: &mut World, name| world.of(name).local_nids().as_slice()[0].clone();
    let (a, b, c) = (
        first(&mut world, 'a'),
        first(&mut world, 'b'),
        first(&mut world, 'c'),
    );
    let nobody: Nid = "10.1.2.3:4@udp0".parse().unwrap();
    let seal = |hops, nids: [&Nid; 3], message: &[u8]| seal(hops, nids, [1, 1], message);
    let changed = |mut bytes: Vec<u8>, at: usize| {
        bytes[at] ^= 1;
        bytes
    };
    let good = seal(1, [&a, &c, &b], b"good");
    let sent = [
        (DropReason::RelayMalformed, good[..20].to_vec()),
        (DropReason::RelayMalformed, b"\xf5MR3".to_vec()),
        // Changed tag, message and receiver: the sender of these has no key.
        (DropReason::RelayMalformed, changed(good.clone(), 56)),
        (DropReason::RelayMalformed, changed(good.clone(), 57)),
        (DropReason::RelayMalformed, changed(good.clone(), 32)),
        (DropReason::RelayMalformed, seal(2, [&a, &c, &b], b"far")),
        (DropReason::RelayMalformed, seal(1, [&a, &c, &b], b"")),
        (DropReason::RelayMalformed, seal(1, [&a, &c, &b], &good)),
        // Carried already, and for another receiver; back to its sender; for another carrier; from the carrier
        // itself; to the carrier itself.
        (DropReason::RelayMalformed, seal(0, [&a, &c, &b], b"twice")),
        (DropReason::RelayMalformed, seal(1, [&a, &c, &a], b"back")),
        (DropReason::RelayMalformed, seal(1, [&a, &b, &b], b"astray")),
        (DropReason::RelayMalformed, seal(1, [&c, &c, &b], b"own")),
        (DropReason::RelayMalformed, seal(1, [&a, &c, &c], b"short")),
        (DropReason::RelayUnknown, seal(1, [&nobody, &c, &b], b"x")),
        (DropReason::RelayUnknown, seal(1, [&a, &c, &nobody], b"x")),
        (DropReason::RelayUnknown, seal(0, [&a, &nobody, &c], b"x")),
    ];
    let socket = std::net::UdpSocket::bind("127.47.7.99:0").unwrap();
    let to = c.socket_address().unwrap();
    let mut counted = BTreeMap::new();
    for (reason, bytes) in &sent {
        socket.send_to(bytes, to).unwrap();
        assert_eq!(world.take('c'), []);
        let count = counted.entry(reason.word()).or_insert(0);
        *count += 1;
        assert_eq!(world.drops('c', *reason), *count, "{bytes:?}");
    }
    assert_eq!(world.sends('c'), 0, "nothing was carried");
    let unknown = FabricEvent::UnknownNid { nid: nobody };
    assert_eq!(world.events('c'), [unknown], "once");
}

/// An envelope with a valid tag; `stamp` is the sender's incarnation and the envelope's number.
fn seal(hops: u8, nids: [&Nid; 3], stamp: [u64; 2], message: &[u8]) -> Vec<u8> {
    let mut bytes = b"\xf5MR3".to_vec();
    bytes.extend([hops, 0]);
    for nid in nids {
        let at = nid.socket_address().unwrap();
        bytes.push(0);
        bytes.extend(nid.net.number.to_le_bytes());
        bytes.extend(at.port().to_le_bytes());
        bytes.extend(at.ip().octets());
    }
    stamp
        .iter()
        .for_each(|number| bytes.extend(number.to_le_bytes()));
    let signed = [&bytes[..4], &bytes[5..], message].concat();
    let tag = blake3::keyed_hash(&[9; 32], &signed);
    bytes.extend(&tag.as_bytes()[..8]);
    bytes.extend(message);
    bytes
}

/// An authenticated envelope is carried once, and delivered once by its receiver, in any order. A repeated one
/// does not use up the sender's allowance.
#[test]
fn an_envelope_is_carried_once_and_delivered_once() {
    let mut world = on_two_nets(11, "c");
    let [a, b, c] = ['a', 'b', 'c'].map(|name| world.of(name).local_nids().as_slice()[0].clone());
    let on_udp1 = world.of('c').local_nids().as_slice()[1].clone();
    let socket = std::net::UdpSocket::bind("127.47.11.99:0").unwrap();
    let send_raw = |at: &Nid, bytes: &[u8]| {
        let to = at.socket_address().unwrap();
        socket.send_to(bytes, to).unwrap();
    };
    for number in [3, 2, 3, 2, 4, 3] {
        send_raw(&c, &seal(1, [&a, &c, &b], [1, number], b"carried"));
        world.take('c');
    }
    assert_eq!(world.take('b').len(), 3);
    assert_eq!(world.drops('c', DropReason::RelayRepeated), 3);
    // The envelope as the carrier has sent it; repeated ones are dropped.
    send_raw(&b, &seal(0, [&a, &on_udp1, &b], [1, 4], b"carried"));
    assert_eq!(world.take('b'), []);
    assert_eq!(world.drops('b', DropReason::RelayRepeated), 1);
    // A later incarnation of the sender; an envelope of the earlier one is too late.
    send_raw(&c, &seal(1, [&a, &c, &b], [2, 1], b"later"));
    send_raw(&c, &seal(1, [&a, &c, &b], [1, 5], b"earlier"));
    world.take('c');
    assert_eq!(world.take('b').len(), 1);
    assert_eq!(world.drops('c', DropReason::RelayRepeated), 4);

    let long = |number| seal(1, [&a, &c, &b], [3, number], &[7; 1400]);
    let length = long(1).len();
    let before = world.sends('c');
    for _ in 0..2 * (2 << 20) / length {
        send_raw(&c, &long(1));
        world.take('c');
        world.take('b');
    }
    assert_eq!(world.sends('c') - before, 1);
    assert_eq!(world.drops('c', DropReason::RelayRate), 0);
    let count = 2 * (2 << 20) / length as u64;
    for number in 1..=count {
        send_raw(&c, &long(1 + number));
        world.take('c');
        world.take('b');
    }
    let dropped = world.drops('c', DropReason::RelayRate);
    let carried = world.sends('c') - before - 1;
    assert_eq!(dropped + carried, count);
    assert!(carried as usize * length <= 2 << 20, "{carried}");
    assert!(dropped > 0);
}

/// A carrier without a path to the receiver drops the message and counts it.
#[test]
fn nothing_is_carried_over_two_carriers() {
    let mut world = on_two_nets(8, "c");
    let second_rail = world.of('c').local_nids().as_slice()[1].clone();
    world.of('c').remove_rail(&second_rail).unwrap();
    assert_eq!(world.send('a', 'b', "there").copies, 1);
    world.take('c');
    assert_eq!(world.take('b'), []);
    assert_eq!(world.drops('c', DropReason::RelayNoPath), 1);
    assert_eq!(world.sends('c'), 0);
}

/// Bulk messages are sent in fragments and acknowledged end to end through the carrier; when the first carrier
/// stops relaying, they go through the other.
#[test]
fn bulk_messages_are_relayed_complete_and_once() {
    let mut world = on_two_nets(9, "cd");
    let names = ['a', 'b', 'c', 'd'];
    for name in names {
        world.of(name).open_bulk().unwrap();
    }
    let (to_b, now_us) = (world.to('a', 'b'), world.now_us);
    let long: Vec<u8> = (0..BULK_MESSAGE_MAX).map(|at| (at % 251) as u8).collect();
    let whole = long.clone();
    world.of('a').send_bulk(now_us, to_b, &long).unwrap();
    let done = |message| FabricEvent::BulkDone {
        peer: to_b,
        message,
    };
    world.run_bulk(|seen| {
        seen.get(&'a')
            .is_some_and(|(_, events)| events == &[done(1)])
    });
    let taken: Vec<Tally> = ['c', 'd']
        .map(|by| world.relayed(by, [Some('a'), None, Some('b')]))
        .to_vec();
    assert!(taken.iter().map(|tally| tally.bytes).sum::<u64>() > whole.len() as u64);
    let carried: u64 = taken.iter().map(|tally| tally.messages).sum();
    assert!(world.sends('c') + world.sends('d') >= carried, "{carried}");
    assert!(world.sends('a') >= carried);
    let by_c = taken[0].messages > 0;
    world.of(if by_c { 'c' } else { 'd' }).set_relay(false);
    let now_us = world.now_us;
    world.of('a').send_bulk(now_us, to_b, b"on").unwrap();
    world.run_bulk(|seen| {
        let arrived = seen
            .get(&'b')
            .is_some_and(|(got, _)| got.len() == 1 && got[0].0 == b"on");
        arrived
            && seen
                .get(&'a')
                .is_some_and(|(_, events)| events == &[done(2)])
    });
}

#[test]
fn these_tests_pass_with_the_wheels_libfabric() {
    on_the_wheel(module_path!());
}
