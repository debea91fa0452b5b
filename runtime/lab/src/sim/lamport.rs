//! `muster sim lamport`: studies the drift of Lamport clocks, and which thresholds of age gossip are safe. All figures
//! are simulated.

use super::cores;
use super::plot::{self, Axis, Scale, Series as Line};
use clap::Args;
use muster_protocol::age::config::log2;
use muster_sim::{LamportFound, LamportSetting, study_lamport};
use muster_terminal::{CliError, print_error};
use std::error::Error;
use std::fmt::Write;
use std::path::{Path, PathBuf};
use std::sync::Mutex;
use std::sync::atomic::{AtomicUsize, Ordering};

/// Options of `muster sim lamport`.
#[derive(Args)]
pub(crate) struct LamportArgs {
    /// Numbers of participants.
    #[arg(long, value_delimiter = ',', default_value = "16,96,1024,4096,16384,65536",
          value_parser = clap::value_parser!(u32).range(4..=1 << 20))]
    members: Vec<u32>,
    /// The first seed.
    #[arg(long, default_value_t = 1)]
    seed: u64,
    /// Number of seeds, whose results are merged. Above 4096 participants there is one.
    #[arg(long, default_value_t = 3, value_parser = clap::value_parser!(u64).range(1..=1000))]
    seeds: u64,
    /// Draw `lamport-*.svg` and write the table `lamport-table.md` into this directory [default: print the table].
    #[arg(long, value_name = "DIR")]
    out: Option<PathBuf>,
}

/// The faults of messages and participants.
#[derive(Clone, Copy)]
struct Conditions {
    name: &'static str,
    loss_permille: u32,
    /// The longest delay, in thousandths of a cycle; the shortest is a tenth of it.
    delay_permille: u64,
    stops_ppm: u64,
    is_lazy: bool,
    /// Whether obsolete messages are dropped; otherwise they are only counted.
    drops_obsolete: bool,
}

const PLAIN: Conditions = Conditions {
    name: "no fault",
    loss_permille: 0,
    delay_permille: 500,
    stops_ppm: 0,
    is_lazy: true,
    drops_obsolete: false,
};
const LOSSY: Conditions = Conditions {
    name: "10 % lost",
    loss_permille: 100,
    ..PLAIN
};
const CONDITIONS: [Conditions; 8] = [
    PLAIN,
    Conditions {
        name: "not lazy",
        is_lazy: false,
        ..PLAIN
    },
    Conditions {
        name: "5 % lost",
        loss_permille: 50,
        ..PLAIN
    },
    LOSSY,
    Conditions {
        name: "10 % lost, stops",
        stops_ppm: 1000,
        ..LOSSY
    },
    Conditions {
        name: "10 % lost, stops, obsolete dropped",
        stops_ppm: 1000,
        drops_obsolete: true,
        ..LOSSY
    },
    Conditions {
        name: "10 % lost, jitter",
        delay_permille: 3000,
        ..LOSSY
    },
    Conditions {
        name: "10 % lost, jitter, obsolete dropped",
        delay_permille: 3000,
        drops_obsolete: true,
        ..LOSSY
    },
];

impl Conditions {
    fn setting(&self, members: usize) -> LamportSetting {
        let log2 = log2(members);
        LamportSetting {
            members,
            loss_permille: self.loss_permille,
            delay_permille: self.delay_permille,
            stops_ppm: self.stops_ppm,
            stop_cycles: 20,
            laziness: if self.is_lazy { log2 / 4 } else { 0 },
            obsolete_after: match self.drops_obsolete {
                true => obsolete_after(members),
                false => u64::MAX,
            },
            // About the same number of counted ages for every size, within bounds.
            cycles: (50, (200_000 / members as u64).clamp(20, 4000)),
        }
    }
}

/// The default of the engine.
fn obsolete_after(members: usize) -> u64 {
    u64::from(log2(members)) + 4
}

type Found = Vec<Vec<LamportFound>>;

/// Measures, and prints or writes the results.
pub(crate) fn main(args: &LamportArgs) -> Result<(), CliError> {
    let sizes: Vec<usize> = args
        .members
        .iter()
        .map(|members| *members as usize)
        .collect();
    let seeds: Vec<u64> = (0..args.seeds)
        .map(|more| args.seed.wrapping_add(more))
        .collect();
    let found = measure(&sizes, &seeds);
    let text = table(&sizes, &found, &seeds);
    let Some(directory) = &args.out else {
        print!("{text}");
        return Ok(());
    };
    let failed = |error: &dyn std::fmt::Display| {
        CliError::new(format!("sim lamport: {}", directory.display()), error)
    };
    std::fs::create_dir_all(directory).map_err(|error| failed(&error))?;
    let path = directory.join("lamport-table.md");
    std::fs::write(&path, text).map_err(|error| failed(&error))?;
    draw_all(&sizes, &found, directory).map_err(|error| failed(&error))?;
    println!("{}", path.display());
    Ok(())
}

/// Results by size and conditions. They do not depend on the number of threads.
fn measure(sizes: &[usize], seeds: &[u64]) -> Found {
    let jobs: Vec<(usize, usize)> = (0..sizes.len())
        .rev()
        .flat_map(|size| (0..CONDITIONS.len()).map(move |at| (size, at)))
        .collect();
    let mut found = vec![vec![LamportFound::default(); CONDITIONS.len()]; sizes.len()];
    let (next, results) = (AtomicUsize::new(0), Mutex::new(&mut found));
    // For the progress messages, since a study takes minutes.
    let done = AtomicUsize::new(0);
    print_error(format_args!(
        "{} parts, the largest first; the first may take a minute",
        jobs.len()
    ));
    std::thread::scope(|scope| {
        for _ in 0..cores() {
            scope.spawn(|| {
                while let Some(&(size, at)) = jobs.get(next.fetch_add(1, Ordering::Relaxed)) {
                    let setting = CONDITIONS[at].setting(sizes[size]);
                    let few = if sizes[size] > 4096 { 1 } else { seeds.len() };
                    let runs = seeds[..few]
                        .iter()
                        .map(|seed| study_lamport(&setting, *seed));
                    let all = runs.reduce(|all, one| all.and(&one)).unwrap_or_default();
                    if let Ok(mut found) = results.lock() {
                        found[size][at] = all;
                        let count = done.fetch_add(1, Ordering::Relaxed) + 1;
                        let (of, members, what) = (jobs.len(), sizes[size], CONDITIONS[at].name);
                        print_error(format_args!(
                            "{count} of {of} parts done: {members} participants, {what}"
                        ));
                    }
                }
            });
        }
    });
    found
}

fn table(sizes: &[usize], found: &Found, seeds: &[u64]) -> String {
    let mut text = format!(
        "Simulated, {} seeds from {} (one above 4096 participants), counted together: fractions of all ages \
         that alive members hold of alive members, and of all messages. N is the number of members, log is log2 N.\n\n\
         | N | condition | mean age | oldest | older than log | 1.5 log | 2 log | 2 log + 4 | 3 log + 4 | steps a \
         cycle | further behind than log | log + 4 | 2 log | furthest | obsolete | entries a reply |\n\
         |---|---|---|---|---|---|---|---|---|---|---|---|---|---|---|---|\n",
        seeds.len(),
        seeds[0]
    );
    for (members, found) in sizes.iter().zip(found) {
        let log = usize::from(log2(*members));
        for (conditions, one) in CONDITIONS.iter().zip(found) {
            let ages = [log, log * 3 / 2, 2 * log, 2 * log + 4, 3 * log + 4];
            let ages = ages.map(|threshold| part(one.older_than(threshold)));
            let behind =
                [log, log + 4, 2 * log].map(|threshold| part(one.further_behind(threshold)));
            let obsolete = match conditions.drops_obsolete {
                true => part(one.obsolete as f64 / one.arrived.max(1) as f64),
                false => String::new(),
            };
            // Writing into a String cannot fail.
            let _ = writeln!(
                text,
                "| {members} | {} | {:.1} | {} | {} | {:.2} | {} | {} | {obsolete} | {:.1} |",
                conditions.name,
                one.mean_age(),
                one.oldest(),
                ages.join(" | "),
                one.clock_rate,
                behind.join(" | "),
                one.furthest(),
                one.reply_entries,
            );
        }
    }
    text
}

fn part(part: f64) -> String {
    match part {
        0.0 => "0".to_owned(),
        part => format!("{part:.1e}"),
    }
}

type Series = (String, Vec<(f64, f64)>);

fn draw_all(sizes: &[usize], found: &Found, directory: &Path) -> Result<(), Box<dyn Error>> {
    let lossy = CONDITIONS
        .iter()
        .position(|one| one.name == LOSSY.name)
        .unwrap_or(0);
    // The axis is in multiples of log2 N, so that all sizes are comparable.
    let ages = sizes.iter().zip(found).map(|(members, found)| {
        let log = usize::from(log2(*members));
        let points = (0..=4 * log + 4).map(|age| (age, found[lossy].older_than(age)));
        let points = points.filter(|(_, part)| *part > 0.0);
        let points = points.map(|(age, part)| (age as f64 / log as f64, part));
        (format!("{members} members"), points.collect())
    });
    draw_tails(
        &ages.collect::<Vec<Series>>(),
        &directory.join("lamport-ages.svg"),
        (
            "Living members older than a threshold, 10 % lost",
            "threshold in cycles, divided by log2 of the members",
            "fraction of all ages",
            5.0,
            0.5,
        ),
    )?;
    let size = sizes.iter().position(|members| *members >= 96).unwrap_or(0);
    let behind = CONDITIONS
        .iter()
        .zip(&found[size])
        .filter(|(one, _)| !one.drops_obsolete);
    let behind = behind.map(|(conditions, one)| {
        let points = (0..=one.furthest()).map(|steps| (steps as f64, one.further_behind(steps)));
        let points = points.filter(|(_, part)| *part > 0.0);
        (conditions.name.to_owned(), points.collect())
    });
    let title = format!(
        "Messages whose clock is further behind, {} members",
        sizes[size]
    );
    draw_tails(
        &behind.collect::<Vec<Series>>(),
        &directory.join("lamport-behind.svg"),
        (
            &title,
            "steps of the clock",
            "fraction of all messages",
            60.0,
            10.0,
        ),
    )?;
    draw_sizes(sizes, found, lossy, &directory.join("lamport-sizes.svg"))
}

/// Draws fractions, over axes that end where the points do: on the left at 0, on the right at a multiple of `step` that
/// is at most `right`, below at a power of ten.
fn draw_tails(
    series: &[Series],
    path: &Path,
    (title, label, of, right, step): (&str, &str, &str, f64, f64),
) -> Result<(), Box<dyn Error>> {
    let lines = series.iter().map(|(name, points)| {
        let points = points.iter().copied().filter(|(x, _)| *x <= right);
        Line::line(name, points.collect())
    });
    let lines: Vec<Line> = lines.collect();
    let axis = |label, scale, span| Axis { label, scale, span };
    let points = lines.iter().flat_map(|line| &line.points);
    let (last, least) = points.fold((0.0_f64, 0.1_f64), |(last, least), (x, y)| {
        (last.max(*x), least.min(*y))
    });
    let last = (last / step).ceil().max(1.0) * step;
    let least = 10_f64.powf(least.log10().floor());
    let x = axis(label, Scale::Linear, (0.0, last));
    let y = axis(of, Scale::Log10, (least, 1.0));
    let title = format!("{title} (simulated)");
    plot::draw(path, &title, (&x, &y), &lines, None)
}

/// Draws ages by size, and the thresholds that they must not reach.
fn draw_sizes(
    sizes: &[usize],
    found: &Found,
    lossy: usize,
    path: &Path,
) -> Result<(), Box<dyn Error>> {
    let by_size = |of: &dyn Fn(usize) -> f64| -> Vec<(f64, f64)> {
        let indices = sizes.iter().enumerate();
        indices
            .map(|(at, members)| (*members as f64, of(at)))
            .collect()
    };
    let log = |at: usize| f64::from(log2(sizes[at]));
    let series: [Series; 5] = [
        (
            "mean age".into(),
            by_size(&|at| found[at][lossy].mean_age()),
        ),
        (
            "oldest age".into(),
            by_size(&|at| found[at][lossy].oldest() as f64),
        ),
        ("log2 of the members".into(), by_size(&log)),
        (
            "suspected: 2 log2 + 4".into(),
            by_size(&|at| 2.0 * log(at) + 4.0),
        ),
        (
            "failed: 3 log2 + 4".into(),
            by_size(&|at| 3.0 * log(at) + 4.0),
        ),
    ];
    let ends = series.iter().flat_map(|(_, points)| points);
    let (first, last, top) = ends.fold(
        (f64::MAX, 1.0_f64, 1.0_f64),
        |(first, last, top), (x, y)| (first.min(*x), last.max(*x), top.max(*y)),
    );
    let lines = series
        .into_iter()
        .map(|(name, points)| Line::marked(name, points));
    let lines: Vec<Line> = lines.collect();
    let axis = |label, scale, span| Axis { label, scale, span };
    let x = axis("members", Scale::Log2, (first.min(last), last));
    let y = axis("age in cycles", Scale::Linear, (0.0, top * 1.1));
    let title = "Ages of alive members, 10 % lost (simulated)";
    plot::draw(path, title, (&x, &y), &lines, None)
}
