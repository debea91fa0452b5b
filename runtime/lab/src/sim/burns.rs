//! `muster sim figures --out DIR`: the figures of the gossip simulation paper, with the points of the paper.

use super::plot::{self, Axis, Scale, Series};
use muster_sim::{ClusterFigure, PointFound};
use muster_terminal::CliError;
use std::error::Error;
use std::fmt::Write;
use std::path::Path;
use std::sync::Mutex;
use std::sync::atomic::{AtomicUsize, Ordering};

/// The scenarios, in the order of the paper's figures.
const FIGURES: [&str; 13] = [
    include_str!("../../../../tests/scenarios/burns-07-interval.toml"),
    include_str!("../../../../tests/scenarios/burns-08-cleanup.toml"),
    include_str!("../../../../tests/scenarios/burns-09-local.toml"),
    include_str!("../../../../tests/scenarios/burns-10-piggyback.toml"),
    include_str!("../../../../tests/scenarios/burns-11-basic.toml"),
    include_str!("../../../../tests/scenarios/burns-12-hierarchical.toml"),
    include_str!("../../../../tests/scenarios/burns-13-piggyback.toml"),
    include_str!("../../../../tests/scenarios/burns-14-partitions.toml"),
    include_str!("../../../../tests/scenarios/burns-death.toml"),
    include_str!("../../../../tests/scenarios/burns-ports.toml"),
    include_str!("../../../../tests/scenarios/burns-hybrids.toml"),
    include_str!("../../../../tests/scenarios/burns-processors.toml"),
    include_str!("../../../../tests/scenarios/burns-assumptions.toml"),
];

/// Measures all figures, and writes plots and a table into a directory.
pub(super) fn main(
    directory: &Path,
    runs: u64,
    first: u64,
    threads: usize,
) -> Result<(), CliError> {
    let failed = |error: &dyn std::fmt::Display| {
        CliError::new(format!("sim figures: {}", directory.display()), error)
    };
    std::fs::create_dir_all(directory).map_err(|error| failed(&error))?;
    let figures: Result<Vec<_>, _> = FIGURES.into_iter().map(ClusterFigure::read).collect();
    let figures = figures.map_err(|error| failed(&error))?;
    let found = measure(&figures, runs, first, threads);
    let mut text = String::new();
    for (figure, found) in figures.iter().zip(&found) {
        let path = directory.join(format!("{}.svg", figure.name));
        draw(figure, found, &path).map_err(|error| failed(&error))?;
        table(figure, found, &mut text);
    }
    slopes(&figures, &found, &mut text);
    let path = directory.join("figures.md");
    let head = format!(
        "# Figures 7 to 14 of the gossip simulation paper\n\nEvery figure is simulated: {runs} runs a \
         point, first seed {first}, by `muster sim figures --out DIR --runs {runs} --seed {first}`.\n"
    );
    std::fs::write(&path, head + &text).map_err(|error| failed(&error))?;
    println!(
        "{} figures, {runs} runs a point: {}",
        figures.len(),
        path.display()
    );
    Ok(())
}

/// Measures all points of all lines in parallel. The result does not depend on the number of threads.
fn measure(
    figures: &[ClusterFigure],
    runs: u64,
    first: u64,
    threads: usize,
) -> Vec<Vec<Vec<PointFound>>> {
    let mut found: Vec<Vec<Vec<PointFound>>> = figures
        .iter()
        .map(|figure| vec![vec![PointFound::default(); figure.xs.len()]; figure.line.len()])
        .collect();
    let jobs: Vec<(usize, usize, usize)> = (0..figures.len())
        .flat_map(|at| (0..figures[at].line.len()).map(move |line| (at, line)))
        .flat_map(|(at, line)| (0..figures[at].xs.len()).map(move |x| (at, line, x)))
        .collect();
    let (next, results) = (AtomicUsize::new(0), Mutex::new(&mut found));
    std::thread::scope(|scope| {
        for _ in 0..threads {
            scope.spawn(|| {
                while let Some(&(at, line, x)) = jobs.get(next.fetch_add(1, Ordering::Relaxed)) {
                    let figure = &figures[at];
                    let setting = figure.setting(&figure.line[line], figure.xs[x]);
                    let point = PointFound::of(&setting, first..first.saturating_add(runs));
                    if let Ok(mut found) = results.lock() {
                        found[at][line][x] = point;
                    }
                }
            });
        }
    });
    found
}

/// BG-13: the paper compares the average slope of the curves of a figure, which has one curve for each fault rate.
fn slopes(figures: &[ClusterFigure], found: &[Vec<Vec<PointFound>>], text: &mut String) {
    let slope = |name: &str| {
        let at = figures.iter().position(|figure| figure.name == name)?;
        let xs = &figures[at].xs;
        let nodes = xs.last()? - xs.first()?;
        let rises = found[at]
            .iter()
            .map(|points| Some(points.last()?.mean_ms()? - points.first()?.mean_ms()?));
        let rises: Vec<f64> = rises.collect::<Option<_>>()?;
        Some(rises.iter().sum::<f64>() / rises.len() as f64 / nodes)
    };
    let [basic, hierarchical, piggyback] = [
        "burns-11-basic",
        "burns-12-hierarchical",
        "burns-13-piggyback",
    ]
    .map(slope);
    let _ = writeln!(
        text,
        "\n## Average slopes of the curves of figures 11 to 13, from the smallest to the largest machine\n\n\
         | | ours | the paper | ours is |\n|---|---|---|---|"
    );
    for (label, one, other, paper) in [
        ("hierarchical to basic", hierarchical, basic, 0.59),
        ("piggyback to basic", piggyback, basic, 0.45),
        ("piggyback to hierarchical", piggyback, hierarchical, 0.77),
    ] {
        if let (Some(one), Some(other)) = (one, other) {
            let _ = writeln!(
                text,
                "| {label} | {:.0} % | {:.0} % | {:+.0} % |",
                one / other * 100.0,
                paper * 100.0,
                (one / other / paper - 1.0) * 100.0
            );
        }
    }
}

fn table(figure: &ClusterFigure, found: &[Vec<PointFound>], text: &mut String) {
    // Writing into a String cannot fail.
    let _ = writeln!(
        text,
        "\n## {}\n\n![{}]({}.svg)\n\n| line | {} | ours, mean ms | p50 | p99 | received | sent | kB sent | \
         agreed | false | paper, ms | ours is | paper, gossips | ours is |\n|---|---|---|---|---|---|---|\
         ---|---|---|---|---|---|---|",
        figure.title,
        figure.name,
        figure.name,
        figure.axis.label()
    );
    for (line, points) in figure.line.iter().zip(found) {
        for (x, point) in figure.xs.iter().zip(points) {
            let paper = line.paper.iter().find(|paper| (paper.x - x).abs() < 1e-9);
            let ms = |ms: Option<f64>| ms.map_or_else(|| "-".to_owned(), |ms| format!("{ms:.2}"));
            let beside = |ours: Option<f64>, paper: Option<f64>| match (ours, paper) {
                (Some(ours), Some(paper)) => format!("{:+.0} %", (ours / paper - 1.0) * 100.0),
                _ => String::new(),
            };
            let gossips = paper.and_then(|paper| paper.gossips);
            let _ = writeln!(
                text,
                "| {} | {x} | {} | {} | {} | {:.0} | {:.0} | {:.0} | {}/{} | {} | {} | {} | {} | {} |",
                line.label,
                ms(point.mean_ms()),
                ms(point.quantile_ms(0.5)),
                ms(point.quantile_ms(0.99)),
                point.received,
                point.sent,
                point.bytes / 1e3,
                point.agreed_ms.len(),
                point.runs,
                point.false_detections,
                paper.map_or_else(String::new, |paper| format!("{:.2}", paper.ms)),
                beside(point.mean_ms(), paper.map(|paper| paper.ms)),
                gossips.map_or_else(String::new, |gossips| format!("{gossips:.0}")),
                beside(
                    Some(point.received).filter(|_| point.mean_ms().is_some()),
                    gossips
                ),
            );
        }
    }
}

fn draw(
    figure: &ClusterFigure,
    found: &[Vec<PointFound>],
    path: &Path,
) -> Result<(), Box<dyn Error>> {
    let paper = figure.line.iter().flat_map(|line| &line.paper);
    let is_compared = paper.clone().next().is_some();
    let ours = found.iter().flatten().filter_map(PointFound::mean_ms);
    let top = paper
        .map(|paper| paper.ms)
        .chain(ours)
        .fold(1.0_f64, f64::max)
        * 1.1;
    let right = figure.xs.iter().copied().fold(0.0, f64::max) * 1.05;
    let lines = figure.line.iter().zip(found);
    let series: Vec<Series> = lines
        .map(|(line, points)| {
            let means = figure.xs.iter().zip(points);
            let means = means.filter_map(|(x, point)| Some((*x, point.mean_ms()?)));
            Series {
                crosses: line.paper.iter().map(|paper| (paper.x, paper.ms)).collect(),
                ..Series::marked(&line.label, means.collect())
            }
        })
        .collect();
    let axis = |label, end| Axis {
        label,
        scale: Scale::Linear,
        span: (0.0, end),
    };
    let x = axis(figure.axis.label(), right);
    let y = axis("mean ms until all agree; no point if a run did not", top);
    let title = format!("{} (simulated)", figure.title);
    let crosses = is_compared.then_some("the paper's point, same colour");
    plot::draw(path, &title, (&x, &y), &series, crosses)
}
