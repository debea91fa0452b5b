//! Messages over the datagram limit, on libfabric connections over loopback addresses.

use crate::common::{Node, Received, config, library, on_the_wheel};
use muster_fabric::{
    BULK_MESSAGE_MAX, Class, DropReason, Fabric, FabricEvent, Nid, NidList, PathState, PeerHandle,
    Policy, PutOptions, QUESTION_MAX, Question, RailView, Route, Rule, Subject, Timeouts,
    Transport,
};
use std::cell::Cell;
use std::time::{Duration, Instant};

const DEADLINE: Duration = Duration::from_secs(120);
/// The longest step of the test's clock between two reads.
const STEP_US: u64 = 5_000;

fn open(rails: &str) -> Node {
    with_bulk(Fabric::open(&config(rails)).unwrap())
}

fn with_bulk(mut fabric: Fabric) -> Node {
    fabric.open_bulk().unwrap();
    fabric.open_bulk().expect("a second call changes nothing");
    Node::around(fabric)
}

/// A clock, and the messages and events of the nodes.
struct World {
    start: Instant,
    /// The clock's value, and when it was last read.
    clock: Cell<(u64, Instant)>,
    received: Vec<Vec<Received>>,
    events: Vec<Vec<FabricEvent>>,
}

impl World {
    fn new(nodes: usize) -> World {
        World {
            start: Instant::now(),
            clock: Cell::new((1, Instant::now())),
            received: vec![Vec::new(); nodes],
            events: vec![Vec::new(); nodes],
        }
    }

    /// The test's clock. It advances by a bounded step between two reads: while a busy machine suspends the
    /// test, nothing times out.
    fn now_us(&self) -> u64 {
        let (shown_us, seen) = self.clock.get();
        let now = Instant::now();
        let passed_us = (now - seen).as_micros() as u64;
        if passed_us > 0 {
            self.clock.set((shown_us + passed_us.min(STEP_US), now));
        }
        self.clock.get().0
    }

    /// Drives all nodes until the condition holds.
    fn run(&mut self, nodes: &mut [&mut Node], until: impl Fn(&World) -> bool) {
        while !until(self) {
            assert!(self.start.elapsed() < DEADLINE, "{:?}", self.events);
            let mut may_sleep = true;
            for (index, node) in nodes.iter_mut().enumerate() {
                let now_us = self.now_us();
                node.drain(now_us, &mut self.received[index]);
                self.events[index].extend(std::iter::from_fn(|| node.fabric.poll_event()));
                may_sleep &= node.fabric.may_sleep();
            }
            if may_sleep {
                let timeouts = nodes.iter().filter_map(|node| node.fabric.next_timeout());
                let wait_us = timeouts
                    .min()
                    .map_or(5_000, |due| due.saturating_sub(self.now_us()));
                // One node's descriptors are enough, since the others are polled soon anyway.
                nodes[0].wait(Duration::from_micros(wait_us.clamp(1, 2_000)));
            }
        }
    }
}

fn done(peer: PeerHandle, message: u64) -> FabricEvent {
    FabricEvent::BulkDone { peer, message }
}

#[test]
fn messages_of_all_sizes_arrive_once_and_are_acknowledged() {
    let (mut a, mut b) = (open("127.46.1.1:0@udp"), open("127.46.2.1:0@udp"));
    let (to_b, to_a) = (a.add_peer(&b), b.add_peer(&a));
    let messages: Vec<Vec<u8>> = [0, 1, 1473, 16 << 10, 100_000, BULK_MESSAGE_MAX]
        .iter()
        .map(|length| (0..*length).map(|at| (at % 251) as u8).collect())
        .collect();
    let mut world = World::new(2);
    for message in &messages {
        a.fabric.send_bulk(world.now_us(), to_b, message).unwrap();
    }
    b.fabric
        .send_bulk(world.now_us(), to_a, b"the other way")
        .unwrap();
    let count = messages.len();
    world.run(&mut [&mut a, &mut b], |world| {
        world.events[0].len() == count && !world.events[1].is_empty()
    });
    let arrived: Vec<&Vec<u8>> = world.received[1].iter().map(|(_, bytes)| bytes).collect();
    assert!(
        arrived.iter().eq(&messages.iter().collect::<Vec<_>>()),
        "messages arrive in order and unchanged"
    );
    assert_eq!(world.received[0], [(0, b"the other way".to_vec())]);
    let ends: Vec<FabricEvent> = (1..=count as u64).map(|id| done(to_b, id)).collect();
    assert_eq!(world.events[0], ends);
    // Datagrams can be sent at the same time.
    a.fabric
        .send(world.now_us(), to_b, Class::News, Route::Next, b"news");
    world.run(&mut [&mut a, &mut b], |world| {
        world.received[1].len() == count + 1
    });
    assert_eq!(a.fabric.next_timeout(), None, "no timeout is pending");
}

#[test]
fn messages_to_a_peer_that_never_answers_fail_and_delay_no_others() {
    let (mut a, mut b) = (open("127.46.3.1:0@udp"), open("127.46.4.1:0@udp"));
    let to_b = a.add_peer(&b);
    b.add_peer(&a);
    let absent = a
        .fabric
        .peer(&"127.46.5.1:7741@udp".parse().unwrap())
        .unwrap();
    let mut world = World::new(2);
    let long = vec![5; 200_000];
    a.fabric.send_bulk(world.now_us(), absent, &long).unwrap();
    for _ in 0..3 {
        a.fabric.send_bulk(world.now_us(), to_b, &long).unwrap();
    }
    let arrived = |world: &World| {
        world.events[0]
            .iter()
            .filter(|event| matches!(event, FabricEvent::BulkDone { .. }))
            .count()
    };
    world.run(&mut [&mut a, &mut b], |world| arrived(world) == 3);
    assert_eq!(world.received[1].len(), 3);
    assert!(
        !world.events[0]
            .iter()
            .any(|event| matches!(event, FabricEvent::BulkFailed { .. }))
    );
    // The paths that were tried are reported, once.
    let remote = "127.46.5.1:7741@udp".parse().unwrap();
    let failed = FabricEvent::BulkFailed {
        peer: absent,
        message: 1,
        tried: vec![(a.nids().as_slice()[0].clone(), remote)],
        through: vec![b.nids().as_slice()[0].clone()],
    };
    world.run(&mut [&mut a, &mut b], |world| {
        world.events[0].contains(&failed)
    });
    let count = world.events[0]
        .iter()
        .filter(|event| **event == failed)
        .count();
    assert_eq!(count, 1);
    // RS-07: the peer is probed for a while.
    assert!(a.fabric.next_timeout().is_some());
    a.fabric.forget(absent);
    assert_eq!(a.fabric.next_timeout(), None);
}

/// RS-05: a message that is not acknowledged on one path is sent again on another. RS-07: a path on which
/// several messages failed is avoided, and probed now and then.
#[test]
fn a_message_is_sent_again_on_the_path_that_works() {
    let mut a = open_with("127.46.6.1:0@udp", long_timeouts());
    let mut b = open_with("127.46.7.1:0@udp", long_timeouts());
    // The first of the peer's NIDs has no receiver.
    let half: NidList = format!("127.46.8.1:7741@udp,{}", b.nids()).parse().unwrap();
    let to_b = a.fabric.peer(&half).unwrap();
    b.add_peer(&a);
    let mut world = World::new(2);
    for _ in 0..8 {
        a.fabric
            .send_bulk(world.now_us(), to_b, &[3; 50_000])
            .unwrap();
    }
    let is_done = |event: &&FabricEvent| matches!(event, FabricEvent::BulkDone { .. });
    world.run(&mut [&mut a, &mut b], |world| {
        world.events[0].iter().filter(is_done).count() == 8
    });
    let ends: Vec<FabricEvent> = (1..=8).map(|id| done(to_b, id)).collect();
    let is_moved = |event: &&FabricEvent| matches!(event, FabricEvent::Moved { .. });
    let (moved, ended): (Vec<&FabricEvent>, Vec<_>) = world.events[0].iter().partition(is_moved);
    assert!(ended.into_iter().eq(&ends));
    // dbg-115: for each message that left the bad path, an event names this path and the one used instead.
    assert!(!moved.is_empty());
    let own = a.nids().as_slice()[0].clone();
    let [from, to] = [0, 1].map(|at| (own.clone(), half.as_slice()[at].clone()));
    let pairs = |event: &FabricEvent| match event {
        FabricEvent::Moved { peer, from, to, .. } => Some((*peer, from.clone(), to.clone())),
        _ => None,
    };
    let expected = Some((to_b, from, to));
    assert!(
        moved.iter().all(|event| pairs(event) == expected),
        "{moved:?}"
    );
    assert_eq!(world.received[1].len(), 8, "each arrives once");
    let paths = a.fabric.paths(to_b);
    assert_eq!(
        (paths[0].state, paths[0].counters.timeouts),
        (PathState::Failed, 3)
    );
    assert_eq!(
        (paths[1].state, paths[1].counters.timeouts),
        (PathState::Active, 0)
    );
}

fn open_with(rails: &str, timeouts: Timeouts) -> Node {
    let mut config = config(rails);
    config.timeouts = timeouts;
    with_bulk(Fabric::open(&config).unwrap())
}

/// Time-outs that no working path exceeds, even on a busy machine.
fn long_timeouts() -> Timeouts {
    Timeouts {
        transport_us: 500_000,
        ..Timeouts::default()
    }
}

/// Time-outs short enough for a test to wait for them.
const SHORT: Timeouts = Timeouts {
    transport_us: 50_000,
    retry_us: 1_000_000,
    reply_us: 1_500_000,
    upper_us: None,
    retries_max: 3,
};

/// RS-01, RS-08: without an acknowledgement, the event only states that the message was sent.
#[test]
fn a_put_without_acknowledgement_ends_when_it_was_sent() {
    let (mut a, mut b) = (open("127.46.20.1:0@udp"), open("127.46.21.1:0@udp"));
    let (to_b, _) = (a.add_peer(&b), b.add_peer(&a));
    let mut world = World::new(2);
    let put_options = PutOptions {
        acked: false,
        ..PutOptions::default()
    };
    let long = vec![7; 300_000];
    let message = a
        .fabric
        .put(world.now_us(), to_b, put_options, &long)
        .unwrap();
    world.run(&mut [&mut a, &mut b], |world| {
        !world.received[1].is_empty() && !world.events[0].is_empty()
    });
    let sent = FabricEvent::BulkSent {
        peer: to_b,
        message,
    };
    assert_eq!(world.events[0], [sent]);
    assert_eq!(world.received[1], [(0, long)]);
    assert_eq!(a.fabric.next_timeout(), None, "no timeout is pending");
}

/// RS-08: a lost message is not reported. So no message may be dropped because a later one arrived earlier on
/// another rail; and when the rail must change, the following messages arrive.
#[test]
fn puts_without_acknowledgement_stay_in_order_over_two_rails() {
    let mut a = open("127.46.31.1:0@udp,127.46.31.2:0@udp");
    let mut b = open("127.46.32.1:0@udp,127.46.32.2:0@udp");
    let (to_b, _) = (a.add_peer(&b), b.add_peer(&a));
    let mut world = World::new(2);
    // Both rails have their connections, so neither is slower because of that.
    for _ in 0..4 {
        a.fabric.send_bulk(world.now_us(), to_b, b"first").unwrap();
    }
    world.run(&mut [&mut a, &mut b], |world| world.events[0].len() == 4);
    let used = |a: &Node| -> Vec<usize> {
        let paths = a.fabric.paths(to_b).into_iter();
        let paths = paths.filter(|path| path.counters.sends > 0);
        paths.map(|path| path.rail).collect()
    };
    assert_eq!(used(&a).len(), 2);
    a.fabric.zero_stats();
    world.received[1].clear();
    world.events[0].clear();
    let put_options = PutOptions {
        acked: false,
        ..PutOptions::default()
    };
    let put = |world: &mut World, a: &mut Node, mark: u8| {
        let now_us = world.now_us();
        a.fabric.put(now_us, to_b, put_options, &[mark]).unwrap();
    };
    // The peer polls later: it would read all messages of its first rail first.
    for mark in 0..8 {
        put(&mut world, &mut a, mark);
    }
    world.run(&mut [&mut a], |world| world.events[0].len() == 8);
    world.run(&mut [&mut a, &mut b], |world| world.received[1].len() == 8);
    let rail = used(&a)[0];
    assert_eq!(used(&a), [rail], "all used the same rail");
    a.fabric
        .remove_rail(&a.nids().as_slice()[rail].clone())
        .unwrap();
    put(&mut world, &mut a, 8);
    world.run(&mut [&mut a, &mut b], |world| world.received[1].len() == 9);
    let marks: Vec<u8> = world.received[1]
        .iter()
        .map(|(_, bytes)| bytes[0])
        .collect();
    assert_eq!(marks, (0..9).collect::<Vec<u8>>());
    let refused = |rail: &RailView| rail.counters.dropped(DropReason::BulkRefused);
    assert_eq!(b.fabric.rails().iter().map(refused).sum::<u64>(), 0);
}

/// RS-05: a working pair is found although more pairs fail than the number of retries.
#[test]
fn a_message_does_not_fail_before_all_pairs_were_tried() {
    let mut a = open("127.46.20.1:0@udp");
    // This peer accepts connections, and does not answer, because it does not know the sender.
    let rails: Vec<String> = (1..8).map(|n| format!("127.46.21.{n}:0@udp")).collect();
    let (mut silent, mut b) = (open(&rails.join(",")), open("127.46.22.1:0@udp"));
    let nids: NidList = format!("{},{}", silent.nids(), b.nids()).parse().unwrap();
    let to_b = a.fabric.peer(&nids).unwrap();
    b.add_peer(&a);
    let mut world = World::new(3);
    a.fabric
        .send_bulk(world.now_us(), to_b, b"at last")
        .unwrap();
    world.run(&mut [&mut a, &mut b, &mut silent], |world| {
        world.events[0].contains(&done(to_b, 1))
    });
    assert_eq!(world.received[1], [(0, b"at last".to_vec())]);
    let next = |event: &FabricEvent| match event {
        FabricEvent::Moved { to, .. } => Some(to.1.to_string()),
        _ => None,
    };
    // On a busy machine the message may also leave the last pair, and return to it.
    let moved: Vec<String> = world.events[0].iter().filter_map(next).take(7).collect();
    let one_after_the_other: Vec<String> = nids.iter().skip(1).map(Nid::to_string).collect();
    assert_eq!(moved, one_after_the_other);
    assert!(moved.len() as u32 > Timeouts::default().retries_max);
}

/// The questions among these events, with their bytes.
fn questions(events: &[FabricEvent]) -> Vec<(Question, Vec<u8>)> {
    let question = |event: &FabricEvent| match event {
        FabricEvent::Asked {
            question, bytes, ..
        } => Some((*question, bytes.clone())),
        _ => None,
    };
    events.iter().filter_map(question).collect()
}

/// RS-01, AG-13: a question is distinguished from other messages by its frame. It is answered, or its failure
/// is reported if the answer is late or the question was not delivered.
#[test]
fn a_question_is_answered_once_or_reported_as_failed() {
    let (mut a, mut b) = (
        open_with("127.46.22.1:0@udp", SHORT),
        open_with("127.46.23.1:0@udp", SHORT),
    );
    let (to_b, to_a) = (a.add_peer(&b), b.add_peer(&a));
    let absent = a
        .fabric
        .peer(&"127.46.24.1:7741@udp".parse().unwrap())
        .unwrap();
    let mut world = World::new(2);
    let now_us = world.now_us();
    let first = a.fabric.get(now_us, to_b, false, b"how are you?").unwrap();
    let second = a.fabric.get(now_us, to_b, true, b"and now?").unwrap();
    let lost = a.fabric.get(now_us, absent, false, b"hello?").unwrap();
    world.run(&mut [&mut a, &mut b], |world| {
        questions(&world.events[1]).len() == 2
    });
    let mut asked = questions(&world.events[1]);
    asked.sort_by_key(|(question, _)| question.urgent);
    let received = |at: usize| (asked[at].0.number, asked[at].0.urgent, &asked[at].1[..]);
    assert_eq!(received(0), (first, false, &b"how are you?"[..]));
    assert_eq!(received(1), (second, true, &b"and now?"[..]));
    let answer = vec![9; 100_000];
    b.fabric
        .answer(world.now_us(), to_a, asked[0].0, &answer)
        .unwrap();
    let answered = |peer, question, answer| FabricEvent::Answered {
        peer,
        question,
        answer,
    };
    world.run(&mut [&mut a, &mut b], |world| {
        let over = world.events[0].contains(&answered(to_b, second, None));
        let is_failed = |event: &FabricEvent| {
            matches!(event, FabricEvent::BulkFailed { message, .. } if *message == lost)
        };
        over && world.events[0].iter().any(is_failed)
    });
    let events = &world.events[0];
    assert!(events.contains(&answered(to_b, first, Some(answer))));
    assert!(events.contains(&done(to_b, first)) && events.contains(&done(to_b, second)));
    // A late answer is dropped and counted, and a failed question gets no answer.
    b.fabric
        .answer(world.now_us(), to_a, asked[1].0, b"late")
        .unwrap();
    world.run(&mut [&mut a, &mut b], |world| {
        let is_done = |event: &&FabricEvent| matches!(event, FabricEvent::BulkDone { .. });
        world.events[1].iter().filter(is_done).count() == 2
    });
    let is_answer = |event: &&FabricEvent| matches!(event, FabricEvent::Answered { .. });
    assert_eq!(world.events[0].iter().filter(is_answer).count(), 2);
    let refused = a.fabric.rails()[0]
        .counters
        .dropped(DropReason::BulkRefused);
    assert_eq!(refused, 1);
    let long = vec![0; QUESTION_MAX + 1];
    assert_eq!(
        a.fabric.get(1, to_b, false, &long),
        Err(DropReason::Oversize)
    );
}

/// RS-01: each incarnation of a node numbers its messages from the start. An answer to the first question of
/// one incarnation is no answer to the first of the next.
#[test]
fn an_answer_to_an_earlier_incarnation_is_dropped() {
    // A port that depends on the libfabric version, because the same tests may run on another version at the
    // same time.
    let rail = format!("127.46.29.1:{}@udp", 7740 + 10 * library().version().0);
    let (mut a, mut b) = (open(&rail), open("127.46.30.1:0@udp"));
    let (mut to_b, to_a) = (a.add_peer(&b), b.add_peer(&a));
    let mut world = World::new(2);
    let mut asked = Vec::new();
    for text in [&b"the first?"[..], b"the next?"] {
        if !asked.is_empty() {
            drop(a);
            // A process that another test has just started may hold the port for a moment.
            a = loop {
                match Fabric::open(&config(&rail)) {
                    Ok(fabric) => break with_bulk(fabric),
                    Err(error) => assert!(world.start.elapsed() < DEADLINE, "{error}"),
                }
                std::thread::yield_now();
            };
            to_b = a.add_peer(&b);
        }
        let number = a.fabric.get(world.now_us(), to_b, false, text).unwrap();
        assert_eq!(number, 1, "both incarnations use the same number");
        world.run(&mut [&mut a, &mut b], |world| {
            let received = questions(&world.events[1]);
            received.iter().any(|(_, bytes)| bytes == text)
        });
        asked.push(questions(&world.events[1]).pop().unwrap().0);
    }
    assert_eq!(asked[0].number, asked[1].number);
    let refused = |a: &Node| {
        let rails = a.fabric.rails();
        rails[0].counters.dropped(DropReason::BulkRefused)
    };
    for (question, answer) in [(asked[0], &b"the old"[..]), (asked[1], b"the new")] {
        let now_us = world.now_us();
        b.fabric.answer(now_us, to_a, question, answer).unwrap();
    }
    let is_answer = |event: &FabricEvent| matches!(event, FabricEvent::Answered { .. });
    world.run(&mut [&mut a, &mut b], |world| {
        world.events[0].iter().any(is_answer)
    });
    let answered = FabricEvent::Answered {
        peer: to_b,
        question: 1,
        answer: Some(b"the new".to_vec()),
    };
    let answers: Vec<&FabricEvent> = world.events[0]
        .iter()
        .filter(|event| is_answer(event))
        .collect();
    assert_eq!(answers, [&answered]);
    assert_eq!(refused(&a), 1, "the old answer arrived and was counted");
}

/// snd-045: an answer goes from the NID that received the question to the NID that sent it, although other
/// paths would be chosen; if this path does not work, it uses another.
#[test]
fn an_answer_takes_the_path_of_the_question() {
    let mut a = open_with("127.46.27.1:0@udp,127.46.27.2:0@udp", long_timeouts());
    let mut b = open_with("127.46.28.1:0@udp,127.46.28.2:0@udp", long_timeouts());
    let (to_b, to_a) = (a.add_peer(&b), b.add_peer(&a));
    let mut world = World::new(2);
    // From the first rail to the second NID, for a reason that the peer does not know.
    let pair = |local: &str, remote: &str| {
        let (local, remote) = (vec![local.parse().unwrap()], vec![remote.parse().unwrap()]);
        Rule::new(Subject::Pairs { local, remote })
    };
    let cross = pair("127.46.27.1@udp", "127.46.28.2@udp");
    a.fabric.set_policy(Policy::new(vec![cross]).unwrap());
    let used = |b: &Node, a: &Node| -> Vec<(usize, usize)> {
        let paths = b.fabric.paths(to_a).into_iter();
        let paths = paths.filter(|path| path.counters.sends > 0);
        let position = |nid: &Nid| a.nids().iter().position(|one| one == nid).unwrap();
        paths.map(|path| (path.rail, position(&path.nid))).collect()
    };
    for failing in [false, true] {
        b.fabric.zero_stats();
        for round in 1..=4 {
            let now_us = world.now_us();
            a.fabric.get(now_us, to_b, false, b"which way?").unwrap();
            world.run(&mut [&mut a, &mut b], |world| {
                !questions(&world.events[1]).is_empty()
            });
            let question = questions(&world.events[1])[0].0;
            if failing && round == 1 {
                b.fabric.told_failing(to_a, &a.nids().as_slice()[..1]);
            }
            b.fabric
                .answer(world.now_us(), to_a, question, b"this one")
                .unwrap();
            world.run(&mut [&mut a, &mut b], |world| {
                let is_answer = |event: &FabricEvent| {
                    matches!(
                        event,
                        FabricEvent::Answered {
                            answer: Some(_),
                            ..
                        }
                    )
                };
                world.events[0].iter().any(is_answer)
                    && world.events[1]
                        .iter()
                        .any(|event| matches!(event, FabricEvent::BulkDone { .. }))
            });
            world.events.iter_mut().for_each(Vec::clear);
        }
        match failing {
            false => assert_eq!(used(&b, &a), [(1, 0)]),
            true => assert!(used(&b, &a).iter().all(|(_, remote)| *remote == 1)),
        }
    }
}

/// AG-16: urgent messages overtake other messages, but not each other.
#[test]
fn urgent_messages_overtake_others_and_not_each_other() {
    let (mut a, mut b) = (open("127.46.25.1:0@udp"), open("127.46.26.1:0@udp"));
    let (to_b, _) = (a.add_peer(&b), b.add_peer(&a));
    let mut world = World::new(2);
    let urgent = PutOptions {
        urgent: true,
        ..PutOptions::default()
    };
    for mark in 0..6u8 {
        a.fabric
            .send_bulk(world.now_us(), to_b, &[mark; 500_000])
            .unwrap();
    }
    for mark in 100..106u8 {
        a.fabric
            .put(world.now_us(), to_b, urgent, &[mark; 100])
            .unwrap();
    }
    world.run(&mut [&mut a, &mut b], |world| world.received[1].len() == 12);
    let marks: Vec<u8> = world.received[1]
        .iter()
        .map(|(_, bytes)| bytes[0])
        .collect();
    let (first, second): (Vec<u8>, Vec<u8>) = marks.iter().partition(|mark| **mark >= 100);
    assert_eq!(first, (100..106).collect::<Vec<u8>>());
    assert_eq!(second, (0..6).collect::<Vec<u8>>());
    let last_urgent = marks.iter().position(|mark| *mark == 105);
    assert!(
        last_urgent < marks.iter().position(|mark| *mark == 5),
        "{marks:?}"
    );
}

#[test]
fn a_refused_message_has_a_reason() {
    let (mut a, b) = (open("127.46.9.1:0@udp"), open("127.46.10.1:0@udp"));
    let to_b = a.add_peer(&b);
    let too_long = vec![0; BULK_MESSAGE_MAX + 1];
    assert_eq!(
        a.fabric.send_bulk(1, to_b, &too_long),
        Err(DropReason::Oversize)
    );
    let accepted = (0..100)
        .map(|_| a.fabric.send_bulk(1, to_b, b"x"))
        .filter(Result::is_ok)
        .count();
    assert_eq!(accepted, 8);
    assert_eq!(a.fabric.send_bulk(1, to_b, b"x"), Err(DropReason::PeerBusy));
    a.fabric.forget(to_b);
    assert_eq!(
        a.fabric.send_bulk(1, to_b, b"x"),
        Err(DropReason::UnknownPeer)
    );
    let mut without = Node::open("127.46.11.1:0@udp");
    let to_b = without.add_peer(&b);
    assert_eq!(
        without.fabric.send_bulk(1, to_b, b"x"),
        Err(DropReason::NoPath)
    );
}

/// RS-05: a peer that was forgotten and added again receives new messages, and the messages that were forgotten
/// with it are reported as failed.
#[test]
fn a_forgotten_peer_that_is_added_again_receives_new_messages() {
    let (mut a, mut b) = (open("127.46.12.1:0@udp"), open("127.46.13.1:0@udp"));
    let mut to_b = a.add_peer(&b);
    b.add_peer(&a);
    let mut world = World::new(2);
    for text in ["first", "second", "third"] {
        let id = a
            .fabric
            .send_bulk(world.now_us(), to_b, text.as_bytes())
            .unwrap();
        let end = done(to_b, id);
        world.run(&mut [&mut a, &mut b], |world| {
            world.events[0].contains(&end)
        });
        assert_eq!(world.received[1].pop().unwrap().1, text.as_bytes());
        a.fabric.forget(to_b);
        to_b = a.add_peer(&b);
    }
    let ids: Vec<u64> = (0..3)
        .map(|_| {
            a.fabric
                .send_bulk(world.now_us(), to_b, b"too late")
                .unwrap()
        })
        .collect();
    a.fabric.forget(to_b);
    let events: Vec<FabricEvent> = std::iter::from_fn(|| a.fabric.poll_event()).collect();
    let failed = |message| FabricEvent::BulkFailed {
        peer: to_b,
        message,
        tried: Vec::new(),
        through: Vec::new(),
    };
    assert_eq!(events, ids.into_iter().map(failed).collect::<Vec<_>>());
}

/// Design 8: a frame without a valid key is dropped, whatever its sender.
#[test]
fn frames_with_another_key_are_dropped_and_counted() {
    let (mut a, mut b) = (open("127.46.14.1:0@udp"), open("127.46.15.1:0@udp"));
    let to_b = a.add_peer(&b);
    b.add_peer(&a);
    let mut world = World::new(2);
    a.fabric.set_key([1; 32]);
    a.fabric.send_bulk(world.now_us(), to_b, b"forged").unwrap();
    let refused = |b: &Node| {
        b.fabric.rails()[0]
            .counters
            .dropped(DropReason::BulkRefused)
    };
    while refused(&b) == 0 {
        world.run(&mut [&mut a, &mut b], |_| true);
        let now_us = world.now_us();
        a.drain(now_us, &mut world.received[0]);
        b.drain(now_us, &mut world.received[1]);
        assert!(world.start.elapsed() < DEADLINE);
    }
    assert_eq!(world.received[1], []);
    // The same message, sent again with the right key, is the first that is accepted.
    a.fabric.set_key([9; 32]);
    world.run(&mut [&mut a, &mut b], |world| {
        world.events[0] == [done(to_b, 1)]
    });
    assert_eq!(world.received[1], [(0, b"forged".to_vec())]);
    let mut config = config("127.46.16.1:0@udp");
    config.key = None;
    let error = Fabric::open(&config).unwrap().open_bulk().unwrap_err();
    let text =
        "bulk lanes need the key that their messages are proven by; give the fabric one first";
    assert_eq!(error.to_string(), text);
}

#[test]
fn these_tests_pass_with_the_wheels_libfabric() {
    on_the_wheel(module_path!());
}
