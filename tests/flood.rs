//! What comes from an agent's own node, however much at once, does not make it fail: it serves its ranks.
//!
//! Real ranks and real agents, as in `agents.rs`. That nobody was called failed is shown by what comes behind it: the
//! events of a rank have an order. The profile is one whose deadline holds on a busy machine. The price: an agent that
//! accepts without a bound passes, too. With `standard` and 300,000 connections it fails, but so does a good agent
//! beside busy loops at times. The bounds themselves are tested in `runtime/tests/mad_clients.rs`.

use muster::sys::socket::Packets;
use muster_tests::DEADLINE;
use muster_tests::ranks::{Job, Rank};
use std::io::{self, Read, Write};
use std::net::Shutdown;
use std::os::unix::net::UnixStream;
use std::path::Path;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;

const NODES: usize = 3;
/// Connections without a word; an agent takes some ten thousand in a second.
const CONNECTIONS: usize = 60_000;
/// Ranks that come to the flooded node meanwhile, all at once.
const COMERS: u32 = 24;
/// Attributes that its first rank writes meanwhile.
const ATTRIBUTES: usize = 300;
/// Programs that ask its agent meanwhile, and followers of its journal: as many as there may be.
const ASKERS: usize = 4;
const FOLLOWERS: usize = 16;
const LOSSES: [&str; 3] = ["NodeFailed", "Outcast", "LOST"];

fn ask(control: &Path) -> io::Result<String> {
    let mut stream = UnixStream::connect(control)?;
    stream.set_read_timeout(Some(DEADLINE))?;
    stream.write_all(b"muster/1 members\n")?;
    stream.shutdown(Shutdown::Write)?;
    let mut answer = String::new();
    stream.read_to_string(&mut answer).map(|_| answer)
}

fn start(job: &Job, node: usize, rank: u32) -> Rank {
    let mut command = job.command(env!("CARGO_BIN_EXE_muster-test-rank"), node, rank);
    Rank::start(&mut command, &format!("rank {rank}"))
}

#[test]
fn a_node_whose_agent_is_flooded_by_its_own_processes_is_not_called_failed() {
    let job = Job::new(NODES).with_profile("quiet");
    let mut ranks: Vec<Rank> = (1..=NODES)
        .map(|node| {
            let rank = start(&job, node, node as u32 - 1);
            rank.await_words(&["ATTACHED"]);
            rank
        })
        .collect();
    let nodes = (1..=NODES).map(|node| format!("n{node}=Alive"));
    let all = nodes.chain((0..NODES).map(|rank| format!("{rank}=Alive")));
    let all = all.collect::<Vec<_>>().join(" ");
    ranks.iter_mut().for_each(|rank| rank.await_states(&all));
    ranks.iter().for_each(|rank| drop(rank.take_passed()));

    let socket = job.place(1).socket();
    let control = job.place(1).directory().join("control");
    let follow = |_| {
        let mut stream = UnixStream::connect(&control).expect("the control socket");
        let asked = stream.write_all(b"muster/1 events 0 follow\n");
        asked.map(|()| stream).expect("a question")
    };
    // They read nothing.
    let followers: Vec<UnixStream> = (0..FOLLOWERS).map(follow).collect();
    let over = AtomicBool::new(false);
    let comers: Vec<Rank> = thread::scope(|scope| {
        let flood = scope.spawn(|| {
            // One for which there is no room in the queue is none.
            let came = (0..CONNECTIONS).filter(|_| Packets::connect(&socket).is_ok());
            came.count()
        });
        for _ in 0..ASKERS {
            scope.spawn(|| {
                while !over.load(Ordering::Relaxed) {
                    // What is refused for want of time is asked again.
                    let _ = ask(&control);
                }
            });
        }
        for number in 0..ATTRIBUTES {
            ranks[0].tell(&format!("publish key{} {number}", number % 8));
        }
        let comers = (0..COMERS).map(|comer| start(&job, 1, NODES as u32 + comer));
        let comers: Vec<Rank> = comers.collect();
        let came = flood.join().expect("a flood");
        assert!(came > CONNECTIONS / 100, "{came} connections");
        // Ranks that found no room connect again.
        comers
            .iter()
            .for_each(|comer| drop(comer.await_words(&["ATTACHED"])));
        over.store(true, Ordering::Relaxed);
        comers
    });
    ranks.remove(0).kill();
    for rank in &ranks {
        rank.await_words(&["EVENT", "RankFailed", "rank=0"]);
        let passed = rank.take_passed();
        let is_loss = |line: &&String| LOSSES.iter().any(|loss| line.contains(loss));
        let losses: Vec<_> = passed.iter().filter(is_loss).collect();
        assert!(losses.is_empty(), "{losses:?}");
    }
    drop((comers, followers));
}
