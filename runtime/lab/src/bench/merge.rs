//! The merge of age vectors (B16), in cache and in memory, compared with a plain loop and with the limit of the machine
//! for the same traffic: one stream read, one stream read and written.

use clap::Args;
use muster_protocol::age::vector::{merge, merge_plainly};
use muster_terminal::CliError;
use std::hint::black_box;
use std::time::{Duration, Instant};

/// Options of `muster bench merge`.
#[derive(Args)]
pub(crate) struct MergeArgs {
    /// Time of each measurement, in milliseconds.
    #[arg(long, default_value_t = 500, value_parser = clap::value_parser!(u64).range(1..=60_000))]
    milliseconds: u64,
}

/// Number of ages in a vector that fits the cache, and in one that does not.
const IN_CACHE: usize = 8 << 10;
const IN_MEMORY: usize = 64 << 20;

/// Measures and prints the results.
pub(crate) fn run(args: &MergeArgs) -> Result<(), CliError> {
    let time = Duration::from_millis(args.milliseconds);
    println!("bytes read and written, GB/s (three for each age)");
    println!(
        "{:<24}{:>10}{:>10}{:>10}{:>14}",
        "", "merge", "plain", "machine", "merge/machine"
    );
    for (name, ages) in [
        ("in cache, 8 KiB", IN_CACHE),
        ("in memory, 64 MiB", IN_MEMORY),
    ] {
        let theirs: Vec<u8> = (0..ages).map(|index| (index * 7) as u8).collect();
        let own: Vec<u8> = (0..ages).map(|index| (index * 11) as u8).collect();
        let ours = best(own.clone(), time, |own| {
            merge(own, black_box(&theirs), 1);
        });
        let plain = best(own.clone(), time, |own| {
            merge_plainly(own, black_box(&theirs), 1);
        });
        let machine = best(own, time, |own| {
            add(own, black_box(&theirs));
        });
        let ratio = ours / machine;
        println!("{name:<24}{ours:>10.1}{plain:>10.1}{machine:>10.1}{ratio:>14.2}");
    }
    Ok(())
}

/// The cheapest operation on two vectors.
fn add(own: &mut [u8], theirs: &[u8]) {
    for (own, theirs) in own.iter_mut().zip(theirs) {
        *own ^= *theirs;
    }
}

/// The best of many rounds, in GB/s: slower rounds were disturbed by other processes.
fn best(mut own: Vec<u8>, time: Duration, work: impl Fn(&mut [u8])) -> f64 {
    // A round is long enough for the clock, also in cache.
    let repeats = (4_usize << 20).div_ceil(own.len());
    let end = Instant::now() + time;
    let mut least = f64::MAX;
    while Instant::now() < end {
        let start = Instant::now();
        for _ in 0..repeats {
            work(black_box(&mut own));
        }
        least = least.min(start.elapsed().as_secs_f64());
    }
    (3 * own.len() * repeats) as f64 / least / 1e9
}
