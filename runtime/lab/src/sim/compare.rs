//! `muster sim compare`: compares both engines on the same network with the same faults. All figures are simulated.

use super::plot::{self, Axis, Scale, Series};
use super::{Output, print_json};
use clap::Args;
use muster_protocol::Profile;
use muster_protocol::age::config::log2;
use muster_sim::{CompareSetting, Compared, Contender, Network, compare};
use muster_sys::clock::thread_cpu_ns;
use muster_terminal::{CliError, print_error};
use serde::Serialize;
use std::error::Error;
use std::path::{Path, PathBuf};
use std::time::Instant;

/// Bytes that the headers of IPv4 and UDP add to a datagram.
const HEADERS: f64 = 28.0;

/// The contenders: name, engine, and measured time of a quiet job in microseconds.
const CONTENDERS: [(&str, Contender, u64); 3] = [
    (
        "overlay 20/60 ms",
        Contender::Overlay(Profile::Standard),
        1_000_000,
    ),
    (
        "age 20 ms",
        Contender::Age {
            interval_us: 20_000,
        },
        400_000,
    ),
    (
        "age 200 ms",
        Contender::Age {
            interval_us: 200_000,
        },
        4_000_000,
    ),
];

/// Options of `muster sim compare`.
#[derive(Args)]
pub(crate) struct CompareArgs {
    /// Sizes of the job. A job of 4096 takes 5 to 10 gigabytes.
    #[arg(long, value_delimiter = ',', default_value = "16,64,256,1024,4096",
          value_parser = clap::value_parser!(u32).range(4..=4096))]
    members: Vec<u32>,
    /// Lost datagrams, in percent.
    #[arg(long, value_delimiter = ',', default_value = "0,5",
          value_parser = clap::value_parser!(u32).range(0..=50))]
    loss: Vec<u32>,
    /// Round trip of the simulated network, in microseconds, with a tenth of jitter.
    #[arg(long, default_value_t = 1000, value_parser = clap::value_parser!(u64).range(10..=10_000))]
    round_trip_us: u64,
    /// The first seed.
    #[arg(long, default_value_t = 1)]
    seed: u64,
    /// Number of seeds, whose medians are printed; above 1024 members there is one.
    #[arg(long, default_value_t = 5, value_parser = clap::value_parser!(u64).range(1..=1000))]
    seeds: u64,
    /// Only one of the engines.
    #[arg(long, value_parser = ["overlay", "age"])]
    engine: Option<String>,
    /// Output format; text is Markdown.
    #[arg(short, long, default_value = "text")]
    output: Output,
    /// Draw detection times and bytes into `compare-detection.svg` and `compare-bytes.svg` of this directory.
    #[arg(long, value_name = "DIR")]
    out: Option<PathBuf>,
}

/// Medians over the seeds for one engine, size and loss.
#[derive(Serialize)]
struct Row {
    engine: &'static str,
    members: usize,
    loss_percent: u32,
    seeds: usize,
    half_ms: Option<f64>,
    most_ms: Option<f64>,
    all_ms: Option<f64>,
    datagrams_s: f64,
    /// Including the headers of IPv4 and UDP.
    wire_bytes_s: f64,
    engine_cpu_us_s: f64,
    false_failures: u64,
}

/// All rows.
#[derive(Serialize)]
struct Table {
    simulated: bool,
    round_trip_us: u64,
    first_seed: u64,
    rows: Vec<Row>,
}

impl Row {
    fn of(engine: &'static str, members: usize, loss_percent: u32, found: &[Compared]) -> Self {
        let middle = |mut values: Vec<f64>| {
            values.sort_by(f64::total_cmp);
            values[values.len() / 2]
        };
        // If one seed took too long, there is no median.
        let time = |of: &dyn Fn(&Compared) -> Option<u64>| {
            let times: Option<Vec<f64>> = found
                .iter()
                .map(|one| Some(of(one)? as f64 / 1e3))
                .collect();
            times.map(middle)
        };
        let rate = |of: &dyn Fn(&Compared) -> f64| middle(found.iter().map(of).collect());
        Self {
            engine,
            members,
            loss_percent,
            seeds: found.len(),
            half_ms: time(&|one| one.half_us),
            most_ms: time(&|one| one.most_us),
            all_ms: time(&|one| one.all_us),
            datagrams_s: rate(&|one| one.datagrams),
            wire_bytes_s: rate(&|one| one.bytes + HEADERS * one.datagrams),
            engine_cpu_us_s: rate(&|one| one.cpu_us),
            false_failures: found.iter().map(|one| one.false_failures).sum(),
        }
    }

    fn line(&self) -> String {
        let ms = |ms: Option<f64>| ms.map_or_else(|| "-".to_owned(), |ms| format!("{ms:.0}"));
        format!(
            "| {} | {} | {} % | {} | {} / {} / {} | {:.1} | {:.2} | {:.0} | {} |",
            self.members,
            self.engine,
            self.loss_percent,
            self.seeds,
            ms(self.half_ms),
            ms(self.most_ms),
            ms(self.all_ms),
            self.datagrams_s,
            self.wire_bytes_s / 1e3,
            self.engine_cpu_us_s,
            self.false_failures,
        )
    }
}

/// Measures, prints and draws.
pub(crate) fn main(args: &CompareArgs) -> Result<(), CliError> {
    let is_text = args.output == Output::Text;
    if is_text {
        print_head(args);
    }
    let mut rows = Vec::new();
    for members in &args.members {
        for loss in &args.loss {
            let wanted = |name: &str| {
                let only = args.engine.as_deref();
                only.is_none_or(|only| name.starts_with(only))
            };
            for (name, contender, quiet_us) in CONTENDERS {
                if !wanted(name) {
                    continue;
                }
                let found = measure(
                    args,
                    (*members as usize, *loss),
                    (name, contender),
                    quiet_us,
                );
                let row = Row::of(name, *members as usize, *loss, &found);
                if is_text {
                    println!("{}", row.line());
                }
                rows.push(row);
            }
        }
    }
    let table = Table {
        simulated: true,
        round_trip_us: args.round_trip_us,
        first_seed: args.seed,
        rows,
    };
    if !is_text {
        print_json(&table)?;
    }
    let Some(directory) = &args.out else {
        return Ok(());
    };
    let failed = |error: &dyn std::fmt::Display| {
        CliError::new(format!("sim compare: {}", directory.display()), error)
    };
    std::fs::create_dir_all(directory).map_err(|error| failed(&error))?;
    draw_both(&table, args.loss[0], directory).map_err(|error| failed(&error))
}

fn measure(
    args: &CompareArgs,
    (members, loss): (usize, u32),
    (name, contender): (&str, Contender),
    quiet_us: u64,
) -> Vec<Compared> {
    let mut network = Network::with_round_trip(args.round_trip_us);
    network.loss_permille = loss * 10;
    let setting = CompareSetting {
        members,
        contender,
        network,
        quiet_us,
    };
    let seeds = if members > 1024 { 1 } else { args.seeds };
    let seeds = (0..seeds).map(|more| args.seed.wrapping_add(more));
    let found = seeds.map(|seed| {
        let since = Instant::now();
        let found = compare(&setting, seed, thread_cpu_ns);
        let took = since.elapsed().as_secs_f64();
        print_error(format_args!(
            "{name}, {members} members, loss {loss} %, seed {seed}: {took:.1} s to simulate"
        ));
        found
    });
    found.collect()
}

/// Prints the description of the rows. The rows follow as they are measured.
fn print_head(args: &CompareArgs) {
    let dead_after = |members: usize| 3 * u32::from(log2(members)) + 4;
    println!(
        "Simulated: round trip {} us, first seed {}, medians. Detection: milliseconds from the moment at \
         which a member falls silent until half, 99 % and all of the other members have declared it failed; age \
         gossip does so after 3 log2 N + 4 cycles ({} of 16 members, {} of 4096). Datagrams, kilobytes \
         (headers of IPv4 and UDP included) and microseconds of the engine's CPU time are those of one \
         member in a second of a quiet job.\n\n\
         | members | engine | loss | seeds | detection, half / most / all | datagrams | kB | CPU | false failures |\n\
         |---|---|---|---|---|---|---|---|---|",
        args.round_trip_us,
        args.seed,
        dead_after(16),
        dead_after(4096),
    );
}

fn draw_both(table: &Table, loss: u32, directory: &Path) -> Result<(), Box<dyn Error>> {
    let rows: Vec<&Row> = table
        .rows
        .iter()
        .filter(|row| row.loss_percent == loss)
        .collect();
    let path = directory.join("compare-detection.svg");
    let title = format!("A silent member is known to all (simulated, {loss} % lost)");
    draw(&rows, &path, (&title, "ms"), |row| row.all_ms)?;
    let path = directory.join("compare-bytes.svg");
    let title = format!("What a member of a quiet job sends (simulated, {loss} % lost)");
    draw(&rows, &path, (&title, "kB a second"), |row| {
        Some(row.wire_bytes_s / 1e3)
    })
}

fn draw(
    rows: &[&Row],
    path: &Path,
    (title, unit): (&str, &str),
    value: impl Fn(&Row) -> Option<f64>,
) -> Result<(), Box<dyn Error>> {
    let points = |engine: &str| -> Vec<(f64, f64)> {
        let rows = rows.iter().filter(|row| row.engine == engine);
        rows.filter_map(|row| Some((row.members as f64, value(row)?)))
            .collect()
    };
    let all = || CONTENDERS.iter().flat_map(|(name, ..)| points(name));
    let (least, most) = all().fold((f64::MAX, 1.0_f64), |(least, most), (_, y)| {
        (least.min(y), most.max(y))
    });
    let (first, last) = all().fold((f64::MAX, 8.0_f64), |(first, last), (x, _)| {
        (first.min(x), last.max(x))
    });
    let least = least.clamp(0.001, most);
    let axis = |label, scale, span| Axis { label, scale, span };
    let x = axis("members", Scale::Log2, (first.min(last), last));
    let y = axis(unit, Scale::Log10, (least * 0.7, most * 1.4));
    let contenders = CONTENDERS.iter();
    let series: Vec<Series> = contenders
        .map(|(name, ..)| Series::marked(*name, points(name)))
        .collect();
    plot::draw(path, title, (&x, &y), &series, None)
}
