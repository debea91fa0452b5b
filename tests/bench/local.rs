//! `make bench-local`: whether a node is declared failed when its own processes send its agent everything at
//! once.
//!
//! A job of emulated nodes, busy loops beside it, and on the flooded nodes all requests of [`LocalLoad`].
//! Nothing fails except the ranks that the load kills itself, so every node failure that a rank is notified
//! of is a false failure.

use clap::Parser;
use muster_tests::local_load::{Counts, LocalLoad};
use muster_tests::nodes::Nodes;
use muster_tests::rank::Rank;
use rustix::event::{Timespec, poll};
use std::path::PathBuf;
use std::process::{Child, Command};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

/// Events that have no cause here.
const FALSE: [&str; 3] = ["NodeFailed", "Outcast", "LOST"];
/// An event that is no failure.
const SUSPECTED: &str = "NodeSuspected";

/// Counts the false failures of a job whose nodes flood their own agents.
#[derive(Parser)]
#[command(name = "bench-local")]
struct Options {
    /// Length of the run.
    #[arg(long, default_value_t = 30.0)]
    minutes: f64,
    /// Members of the job.
    #[arg(long, default_value_t = 16)]
    nodes: usize,
    /// How many of them are flooded [default: one for each core]. An agent under this load takes a part of a
    /// core at real-time priority; if the agents of one machine take all of it, the kernel's limits stop
    /// them.
    #[arg(long)]
    flooded: Option<usize>,
    /// Timing profile.
    #[arg(long, default_value = "standard", value_parser = ["fast", "standard", "quiet"])]
    profile: String,
    /// Busy loops beside the job, for each core.
    #[arg(long, default_value_t = 1)]
    busy_per_core: usize,
    /// The program that is a rank [default: in the folder of this one].
    #[arg(long)]
    rank_program: Option<PathBuf>,
}

struct Busy(Vec<Child>);

impl Busy {
    fn start(count: usize) -> Self {
        let one = || {
            let child = Command::new("sh")
                .args(["-c", "while :; do :; done"])
                .spawn();
            child.expect("a busy loop can be started")
        };
        Self((0..count).map(|_| one()).collect())
    }
}

impl Drop for Busy {
    fn drop(&mut self) {
        for child in &mut self.0 {
            let _ = child.kill();
            let _ = child.wait();
        }
    }
}

fn main() {
    let options = Options::parse();
    let cores = std::thread::available_parallelism().map_or(1, usize::from);
    let flooded = options.flooded.unwrap_or(cores).min(options.nodes);
    let profile: &'static str = options.profile.clone().leak();
    let own = std::env::current_exe().expect("a program knows its path");
    let beside = own
        .ancestors()
        .nth(2)
        .map(|path| path.join("muster-test-rank"));
    let program = options.rank_program.or(beside).expect("a program");
    let program = program.to_str().expect("a path of text").to_owned();
    let job = Arc::new(Nodes::new(options.nodes).with_profile(profile));
    let mut ranks: Vec<Rank> = (0..options.nodes)
        .map(|at| {
            Rank::start(
                &mut job.command(&program, at + 1, at as u32),
                &format!("rank {at}"),
            )
        })
        .collect();
    ranks
        .iter()
        .for_each(|rank| drop(rank.await_words(&["ATTACHED"])));
    for node in 1..=options.nodes {
        let word = format!("n{node}=Alive");
        ranks.iter_mut().for_each(|rank| rank.await_in_view(&word));
    }
    ranks.iter().for_each(|rank| drop(rank.take_passed()));

    let busy = Busy::start(options.busy_per_core * cores);
    let loads: Vec<LocalLoad> = (1..=flooded)
        .map(|node| {
            let (job, program, nodes) = (Arc::clone(&job), program.clone(), options.nodes);
            let mut numbers = 0;
            LocalLoad::begin(&job.clone(), node, move || {
                // The first rank stays; the others start and end one after the other.
                let number = nodes + 2 * node + usize::min(numbers, 1);
                numbers += 1;
                let mut command = job.command(&program, node, number as u32);
                Rank::start(&mut command, &format!("rank {number}"))
            })
        })
        .collect();
    let began = Instant::now();
    let (mut losses, mut suspicions) = (Vec::new(), 0);
    while began.elapsed() < Duration::from_secs_f64(options.minutes * 60.0) {
        // There is no event to wait for: check once a second.
        let _ = poll(
            &mut [],
            Some(&Timespec {
                tv_sec: 1,
                tv_nsec: 0,
            }),
        );
        for (at, rank) in ranks.iter_mut().enumerate() {
            // The answer comes after the events that the agent has reported.
            rank.counter("local_work_cut");
            for line in rank.take_passed() {
                suspicions += usize::from(line.contains(SUSPECTED));
                if FALSE.iter().any(|word| line.contains(word)) {
                    println!("{:.1} s, rank {at}: {line}", began.elapsed().as_secs_f64());
                    losses.push(line);
                }
            }
        }
    }
    report(&loads, &mut ranks[..flooded]);
    println!(
        "{} nodes, {flooded} flooded, profile {profile}, {} busy loops, {:.1} min: {} false failures reported, \
         {suspicions} suspicions reported",
        options.nodes,
        busy.0.len(),
        began.elapsed().as_secs_f64() / 60.0,
        losses.len()
    );
    drop(busy);
    loads.into_iter().for_each(LocalLoad::end);
    std::process::exit(i32::from(!losses.is_empty()));
}

fn report(loads: &[LocalLoad], ranks: &mut [Rank]) {
    let sum = |count: fn(&Counts) -> &AtomicU64| {
        let each = loads
            .iter()
            .map(|load| count(load.counts()).load(Ordering::Relaxed));
        each.sum::<u64>()
    };
    println!(
        "idle connections           {}",
        sum(|counts| &counts.connections)
    );
    println!("ranks started and ended    {}", sum(|counts| &counts.ranks));
    println!(
        "attributes written         {}",
        sum(|counts| &counts.attributes)
    );
    println!(
        "requests answered          {}",
        sum(|counts| &counts.requests)
    );
    for name in [
        "local_work_longest_us",
        "local_work_cut",
        "priority_demotions",
    ] {
        let values: Vec<u64> = ranks.iter_mut().map(|rank| rank.counter(name)).collect();
        println!("{name}: {values:?}");
    }
}
