//! A Rust program with MPI (rsmpi) that continues without a failed rank.
//!
//! Each rank computes its share of a series for pi and sends it to rank 0. The rank that is named as argument
//! is killed before it has sent its share. Rank 0 takes the next MPI message, which is a share, or the next event
//! of Muster, which names a failed rank and the cause; then rank 0 computes that share itself. Messages are sent only
//! between live ranks and rank 0, so the program requires no fault tolerance of MPI, but the launcher must not end the
//! other ranks:
//!
//! `mpirun.openmpi --enable-recovery -n 4 muster-example-rsmpi 2`

use mpi::traits::{Communicator, CommunicatorCollectives, Destination, Source};
use muster::{Client, EventKind, Options, RankState, bootstrap};
use std::collections::BTreeSet;
use std::error::Error;
use std::time::{Duration, Instant};

const TERMS: u32 = 4_000_000;
const TIMEOUT: Duration = Duration::from_secs(60);
/// How long rank 0 waits for an event before it polls for a message again.
const EVENT_WAIT: Duration = Duration::from_millis(1);

fn main() {
    let universe = mpi::initialize().expect("MPI was not initialized before");
    let world = universe.world();
    let victim = std::env::args().nth(1);
    match compute(&world, victim.as_deref()) {
        // All ranks are alive, so MPI may finalize: dropping `universe` does that.
        Ok(0) => {}
        // Not MPI_Finalize: it may wait for the failed rank.
        Ok(_) => std::process::exit(0),
        Err(error) => {
            eprintln!("rank {}: {error}", world.rank());
            world.abort(1);
        }
    }
}

/// Returns how many ranks failed.
fn compute(world: &impl Communicator, victim: Option<&str>) -> Result<u32, Box<dyn Error>> {
    let (rank, ranks) = (world.rank() as u32, world.size() as u32);
    let victim: Option<u32> = victim.map(str::parse).transpose()?;
    let muster = Client::attach(Options {
        job_size: ranks,
        pmix_integration: bootstrap::pmix_integration(false),
        ..Options::default()
    })?;
    let there = muster.wait_ranks(ranks, &[RankState::Alive], TIMEOUT)?;
    there.ok_or("not all ranks have attached to Muster")?;
    world.barrier();
    if victim == Some(rank) {
        rustix::process::kill_process(rustix::process::getpid(), rustix::process::Signal::KILL)?;
    }
    let own = share(rank, ranks);
    let dead = if rank == 0 {
        let (pi, dead) = collect(world, &muster, own)?;
        println!("pi is {pi:.6}, {} of {ranks} ranks died", dead.len());
        let dead_count = dead.len() as u32;
        for other in (1..ranks).filter(|other| !dead.contains(other)) {
            world.process_at_rank(other as i32).send(&dead_count);
        }
        // Stay until the other ranks have received that.
        let gone = [RankState::Left, RankState::Failed];
        muster.wait_ranks(ranks - 1, &gone, TIMEOUT)?;
        dead_count
    } else {
        let root = world.process_at_rank(0);
        root.send(&own);
        root.receive::<u32>().0
    };
    println!("rank {rank} is done, {dead} died");
    muster.finalize(0)?;
    Ok(dead)
}

/// The sum of all shares, and the ranks whose shares were computed here because they failed.
fn collect(
    world: &impl Communicator,
    muster: &Client,
    own: f64,
) -> Result<(f64, BTreeSet<u32>), Box<dyn Error>> {
    let ranks = world.size() as u32;
    let (mut sum, mut dead) = (own, BTreeSet::new());
    let mut missing: BTreeSet<u32> = (1..ranks).collect();
    let until = Instant::now() + TIMEOUT;
    while !missing.is_empty() {
        if let Some(status) = world.any_process().immediate_probe() {
            let source = status.source_rank();
            sum += world.process_at_rank(source).receive::<f64>().0;
            missing.remove(&(source as u32));
        } else if let Some(event) = muster.wait_event(EVENT_WAIT)? {
            if event.kind == EventKind::RankFailed && missing.remove(&event.rank) {
                println!("{}; rank 0 takes over", muster.event_describe(&event)?);
                sum += share(event.rank, ranks);
                dead.insert(event.rank);
            }
        } else if Instant::now() > until {
            return Err(format!("ranks {missing:?}: neither share nor failure within {TIMEOUT:?}").into());
        }
    }
    Ok((sum, dead))
}

fn share(of: u32, ranks: u32) -> f64 {
    let terms = (of..TERMS).step_by(ranks as usize);
    terms
        .map(|term| f64::from(4 - 8 * (term as i32 % 2)) / (2.0 * f64::from(term) + 1.0))
        .sum()
}
