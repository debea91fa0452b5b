//! The work for an input, in members, links and requests that are looked at. It is the same in any view.

use super::*;
use crate::config::Profile;
use crate::frame::{FRAME_OVERHEAD, Header, Kind, Receiver, seal};
use crate::member_info::MemberInfo;
use crate::overlay::topology::OBSERVED_MAX;
use crate::wire::ROLE_NEIGHBOUR;
use crate::work::visits;

const KEY: [u8; 32] = [5; 32];
/// Sizes of the view without the local member.
const SIZES: [usize; 3] = [63, 511, 2047];
/// Neighbours in a zone at work, and the most that a member has.
const FEW_LINKS: usize = 12;
const LINKS_MAX: usize = 1022;
/// The most looked at for a frame sent.
const FRAME_WORK_MAX: usize = 40;

fn name(number: usize) -> String {
    format!("n{number}")
}

fn id(number: usize) -> MemberId {
    MemberId::of(&name(number))
}

/// The members that the local member may observe.
fn near(engine: &Overlay) -> Vec<MemberId> {
    let near = engine.table.successors(engine.own).take(OBSERVED_MAX);
    near.map(|member| member.id).collect()
}

/// An engine with `size` other members in groups of 16, that has neighbours and observes others, with nothing
/// to send.
fn engine(size: usize, neighbours: usize) -> Overlay {
    let mut config = Config::new("own", b"own", Profile::Standard);
    config.key = Some(KEY);
    let mut engine = Overlay::new(config).unwrap();
    let now = Instant(1_000_000);
    for number in 0..size {
        let (name, group) = (name(number), format!("g{}", number / 16));
        let info = MemberInfo::new(&name, &group, name.as_bytes());
        let member = Member::new(id(number), info, Version::first(1));
        engine.table.insert(member);
    }
    let near = near(&engine);
    let others = (0..size).map(id).filter(|id| !near.contains(id));
    for id in others.take(neighbours) {
        let link = engine.links.open(id, now);
        (link.observed, link.chose, link.fresh) = (true, true, false);
        (link.chose_among, link.confirmed) = (size + 1, Some(ROLE_NEIGHBOUR));
    }
    engine.handle(now, Input::Wake).unwrap();
    send_all(&mut engine);
    engine
}

/// The number of frames sent until there are none.
fn send_all(engine: &mut Overlay) -> usize {
    let mut buffer = [0; 1472];
    let now = engine.now;
    core::iter::from_fn(|| engine.poll_transmit(now, &mut buffer)).count()
}

/// A frame of a member with a body of zeros.
fn frame(engine: &Overlay, from: MemberId, kind: Kind, size: usize, sequence: u64) -> Vec<u8> {
    let header = Header {
        kind,
        sender: from,
        incarnation: 1,
        sequence,
        zone: 0,
    };
    let mut bytes = vec![0; FRAME_OVERHEAD + size];
    let to = Receiver::Member(engine.own, engine.own_version().incarnation);
    let size = seal(&KEY, header, to, &mut bytes, size);
    assert_eq!(size, bytes.len());
    bytes
}

/// What is looked at for one input and its results, without frames.
fn work(engine: &mut Overlay, input: Input<'_>) -> usize {
    let now = engine.now;
    let before = visits();
    engine.handle(now, input).unwrap();
    assert_eq!(send_all(engine), 0);
    assert!(engine.poll_timeout() > now);
    visits() - before
}

/// The least and the most that is looked at for the answer of a member to a probe.
fn work_for_a_datagram(engine: &mut Overlay, size: usize) -> (usize, usize) {
    let work = (0..size).map(|number| {
        let bytes = frame(engine, id(number), Kind::ProbeReply, 0, 1);
        work(engine, Input::Datagram { bytes: &bytes })
    });
    let work: Vec<usize> = work.collect();
    (*work.iter().min().unwrap(), *work.iter().max().unwrap())
}

#[test]
fn a_datagram_is_as_much_work_in_any_view() {
    let expected = work_for_a_datagram(&mut engine(SIZES[0], FEW_LINKS), SIZES[0]);
    assert!(expected.0 > 0);
    for size in SIZES {
        let few = work_for_a_datagram(&mut engine(size, FEW_LINKS), size);
        assert_eq!(few, expected, "with {size} members");
        let most = work_for_a_datagram(&mut engine(size, LINKS_MAX), size);
        assert_eq!(most.1, expected.1, "with {size} members and most links");
    }
}

/// Each member has written attributes, and the requests for them are not answered yet.
#[test]
fn a_datagram_is_as_much_work_with_any_number_of_requests() {
    let works = SIZES.map(|size| {
        let mut engine = engine(size, FEW_LINKS);
        let due = engine.now.after(5_000);
        let linked: Vec<MemberId> = engine.links.ids().collect();
        for number in 0..size {
            engine.attributes.open(id(number), 1);
            let target = linked[number % linked.len()];
            engine.attributes.request(id(number), 1, target, due);
        }
        engine.timeout = None;
        send_all(&mut engine);
        assert_eq!(engine.attributes.pending.next(), due);
        let probe = work_for_a_datagram(&mut engine, size);
        // The first reply of a member moves the deadline of all requests to it.
        let replies = [5000, 5001].map(|sequence| {
            let replies = linked.iter().map(|from| {
                let bytes = frame(&engine, *from, Kind::Reply, 3, sequence);
                work(&mut engine, Input::Datagram { bytes: &bytes })
            });
            replies.max().unwrap()
        });
        assert!(replies[0] > size / linked.len());
        assert!(engine.attributes.pending.next() > due);
        (probe, replies[1])
    });
    assert_eq!(works, [works[0]; SIZES.len()]);
}

/// Members fail that have no links, some of them with all of their group.
#[test]
fn a_failure_is_as_much_work_in_any_view() {
    let works = SIZES.map(|size| {
        let mut engine = engine(size, FEW_LINKS);
        let reporters = Reporters::from_iter([engine.own]);
        // The strength of the view is that of its first member.
        let first = engine.table.ids().next();
        let unlinked = (0..size).map(id).filter(|id| !engine.is_linked(*id));
        let far: Vec<MemberId> = unlinked.filter(|id| Some(*id) != first).collect();
        let works = far.into_iter().take(24).map(|id| {
            let before = visits();
            engine.fail(id, CauseKind::Silence, reporters, 0, None);
            visits() - before
        });
        works.max().unwrap()
    });
    assert!(works[0] > 0);
    assert_eq!(works, [works[0]; SIZES.len()]);
}

/// The seeds outside of the view are found by a walk once, and again after a change of the view or of the seeds.
#[test]
fn join_requests_of_a_job_at_rest_look_at_no_member() {
    for size in SIZES {
        let mut engine = engine(size, FEW_LINKS);
        let (now, inside) = (engine.now, name(0));
        for seed in ["elsewhere", &inside] {
            let address = seed.as_bytes();
            engine.handle(now, Input::Seed { address }).unwrap();
        }
        let walk = |engine: &mut Overlay| {
            let before = visits();
            engine.run_join();
            let seeds = engine.seeds_out_of_view().to_vec();
            (seeds, visits() - before)
        };
        engine.join.seeds_out_of_view = None;
        assert_eq!(walk(&mut engine), (vec![0], size + 1));
        assert_eq!(walk(&mut engine), (vec![0], 0));
        engine
            .table
            .change(id(0), |member| member.state = NodeState::Left);
        let (seeds, visits) = walk(&mut engine);
        assert_eq!(seeds, [0, 1]);
        assert!(visits > size);
        let address = "elsewhere".as_bytes();
        engine.handle(now, Input::Unseed { address }).unwrap();
        assert_eq!(engine.seeds_out_of_view(), [0]);
        assert_eq!(walk(&mut engine), (vec![0], 1), "the removed member");
    }
}

/// One change for all links: a frame for each.
#[test]
fn a_frame_is_as_much_work_with_any_number_of_links() {
    for size in SIZES {
        let mut engine = engine(size, LINKS_MAX);
        engine.spread(Subject::Node(engine.own), None);
        engine.timeout = None;
        let before = visits();
        let frames = send_all(&mut engine);
        let work = visits() - before;
        assert!(
            frames >= LINKS_MAX.min(size - OBSERVED_MAX),
            "{frames} frames"
        );
        let most = FRAME_WORK_MAX * frames;
        assert!(work <= most, "{work} for {frames} frames");
    }
}

/// The timers are those that a walk over all links finds, in a world of changes.
#[test]
fn the_timers_are_those_of_a_walk_over_all_links() {
    let mut engine = engine(40, 24);
    for step in 0..400_usize {
        let (now, peer) = (engine.now.after(step as u64 % 5 * 300), id(step * 11 % 40));
        match step % 4 {
            0 => engine.spread(Subject::Node(id(step % 40)), Some(peer)),
            1 => {
                if let Some(link) = engine.links.get_mut(&peer) {
                    let sequence = engine.news.sequence;
                    for back in 0..8 {
                        link.acked(now, sequence - back, step % 8 > 4);
                    }
                    engine.news.ack_rtt.sample(step as u64 % 7 * 3_000);
                }
            }
            2 => {
                let bytes = frame(&engine, id(step % 40), Kind::ProbeReply, 0, step as u64);
                _ = engine.handle(now, Input::Datagram { bytes: &bytes });
            }
            _ => _ = engine.handle(now, Input::Wake),
        }
        engine.links.settle(engine.now);
        check(&engine);
        if step % 3 == 0 {
            engine.timeout = None;
            let mut buffer = [0; 1472];
            while engine.poll_transmit(now, &mut buffer).is_some() {
                check(&engine);
            }
        }
    }
    assert!(engine.counters.news_resent > 0 && engine.counters.hints_sent > 0);
}

fn check(engine: &Overlay) {
    let (now, wait) = (engine.now, engine.ack_wait());
    let news = engine.links.values().map(|link| {
        let news_at = link.send_at().min(link.hint_at());
        link.resend_at(wait).min(news_at)
    });
    let never = Instant::NEVER;
    assert_eq!(engine.links.next_news(wait), news.min().unwrap_or(never));
    let is_lost = |link: &Link| now >= link.resend_at(wait);
    let lost = engine.links.iter().filter(|(_, link)| is_lost(link));
    let mut due = engine.links.due_resends(now, wait);
    due.sort_unstable();
    assert!(lost.map(|(id, _)| id).eq(due));
    let requests = engine.links.values().map(Link::wanted_request_at);
    assert_eq!(engine.links.next_request(), requests.min().unwrap_or(never));
    let first = |is_due: &dyn Fn(&Link) -> bool| {
        let mut links = engine.links.iter();
        links.find(|(_, link)| is_due(link)).map(|(id, _)| id)
    };
    assert_eq!(engine.links.first_news(), first(&|link| link.can_send(now)));
    assert_eq!(
        engine.links.first_hints(),
        first(&|link| now >= link.hint_at())
    );
    let watched = engine.links.iter().filter(|(_, link)| link.watches(false));
    let watched = watched.map(|(id, _)| id);
    assert!(engine.links.watched().map(|(id, _)| id).eq(watched));
}
