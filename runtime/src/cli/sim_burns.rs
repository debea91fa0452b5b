//! `muster sim figures --out DIR`: the figures of the gossip simulation paper, ours beside its points.

use super::CliError;
use muster_sim::{ClusterFigure, PointFound};
use plotters::prelude::{
    BLACK, BLUE, ChartBuilder, Circle, Color, Cross, GREEN, IntoDrawingArea, LineSeries, MAGENTA,
    RED, RGBColor, SVGBackend, SeriesLabelPosition, WHITE,
};
use std::error::Error;
use std::fmt::Write;
use std::path::Path;
use std::sync::Mutex;
use std::sync::atomic::{AtomicUsize, Ordering};

/// The scenarios, in the order of the paper.
const FIGURES: [&str; 12] = [
    include_str!("../../../tests/scenarios/burns-07-interval.toml"),
    include_str!("../../../tests/scenarios/burns-08-cleanup.toml"),
    include_str!("../../../tests/scenarios/burns-09-local.toml"),
    include_str!("../../../tests/scenarios/burns-10-piggyback.toml"),
    include_str!("../../../tests/scenarios/burns-11-basic.toml"),
    include_str!("../../../tests/scenarios/burns-12-hierarchical.toml"),
    include_str!("../../../tests/scenarios/burns-13-piggyback.toml"),
    include_str!("../../../tests/scenarios/burns-14-partitions.toml"),
    include_str!("../../../tests/scenarios/burns-death.toml"),
    include_str!("../../../tests/scenarios/burns-ports.toml"),
    include_str!("../../../tests/scenarios/burns-hybrids.toml"),
    include_str!("../../../tests/scenarios/burns-assumptions.toml"),
];
const COLOURS: [RGBColor; 6] = [BLUE, RED, GREEN, MAGENTA, BLACK, RGBColor(200, 120, 0)];

/// Measures, draws and writes everything into a directory.
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

/// All points of all lines, on some threads; the answer does not depend on how many.
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
    let area = SVGBackend::new(path, (720, 480)).into_drawing_area();
    area.fill(&WHITE)?;
    let paper = figure
        .line
        .iter()
        .flat_map(|line| &line.paper)
        .map(|paper| paper.ms);
    let ours = found.iter().flatten().filter_map(PointFound::mean_ms);
    let top = paper.chain(ours).fold(1.0_f64, f64::max) * 1.1;
    let right = figure.xs.iter().copied().fold(0.0, f64::max) * 1.05;
    let mut chart = ChartBuilder::on(&area)
        .margin(16)
        .caption(format!("{} (simulated)", figure.title), ("sans-serif", 18))
        .x_label_area_size(40)
        .y_label_area_size(56)
        .build_cartesian_2d(0.0..right, 0.0..top)?;
    chart
        .configure_mesh()
        .x_desc(figure.axis.label())
        .y_desc("ms to agreement")
        .draw()?;
    for ((line, points), colour) in figure
        .line
        .iter()
        .zip(found)
        .zip(COLOURS.into_iter().cycle())
    {
        let means = figure.xs.iter().zip(points);
        let means: Vec<(f64, f64)> = means
            .filter_map(|(x, point)| Some((*x, point.mean_ms()?)))
            .collect();
        chart
            .draw_series(LineSeries::new(means.clone(), colour))?
            .label(&line.label)
            .legend(move |at| Circle::new(at, 4, colour.filled()));
        chart.draw_series(means.into_iter().map(|at| Circle::new(at, 3, colour)))?;
        // The paper's points are crosses.
        let crosses = line
            .paper
            .iter()
            .map(|paper| Cross::new((paper.x, paper.ms), 6, colour));
        chart.draw_series(crosses)?;
    }
    chart
        .configure_series_labels()
        .position(SeriesLabelPosition::UpperLeft)
        .border_style(BLACK)
        .background_style(WHITE)
        .draw()?;
    area.present()?;
    Ok(())
}
