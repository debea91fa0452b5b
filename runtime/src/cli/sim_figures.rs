//! `muster sim figures`: a whole zone, measured and drawn. All figures are simulated.

use super::CliError;
use clap::Args;
use muster_protocol::Profile;
use muster_sim::{Measured, ZoneSetting, study};
use plotters::prelude::{
    BLACK, BLUE, ChartBuilder, Circle, EmptyElement, IntoDrawingArea, IntoFont, IntoLogRange,
    LineSeries, PointSeries, RED, SVGBackend, Text, WHITE,
};
use serde::Serialize;
use std::path::{Path, PathBuf};

/// The paper's boot of 2048 members in one zone, in seconds (two processes a machine, tau 200 ms,
/// Theta 1, Kr 3, Ks 1).
const PAPER: (f64, f64) = (2048.0, 5.7);

/// Options of `muster sim figures`.
#[derive(Args)]
pub(crate) struct FiguresArgs {
    /// Sizes of the zone.
    #[arg(long, value_delimiter = ',', default_value = "64,256,1024,2048",
          value_parser = clap::value_parser!(u32).range(4..=4096))]
    members: Vec<u32>,
    /// How many leave, join, crash or fall silent at once.
    #[arg(long, value_delimiter = ',', default_value = "1,4,16",
          value_parser = clap::value_parser!(u32).range(1..=512))]
    counts: Vec<u32>,
    /// The seed.
    #[arg(long, default_value_t = 1)]
    seed: u64,
    /// Round trip of the simulated network, in microseconds.
    #[arg(long, default_value_t = 1000, value_parser = clap::value_parser!(u64).range(10..=1_000_000))]
    round_trip_us: u64,
    /// Only one of the two timings: ours, or the paper's parameters.
    #[arg(long, value_parser = ["ours", "paper"])]
    timing: Option<String>,
    /// Draw the boot times into this SVG file.
    #[arg(long)]
    plot: Option<PathBuf>,
}

/// One zone, for JSON.
#[derive(Serialize)]
struct ZoneFigures {
    timing: &'static str,
    heartbeat_ms: u64,
    deadline_ms: u64,
    theta: usize,
    successors: usize,
    neighbours: usize,
    members: usize,
    measured: Vec<Figure>,
}

/// One measurement, for JSON.
#[derive(Serialize)]
struct Figure {
    what: &'static str,
    at_once: usize,
    all_views_right_ms: Option<f64>,
    datagrams_per_member: u64,
    bytes_per_member: u64,
    copies_per_fact: f64,
}

impl Figure {
    fn of(measured: &Measured) -> Self {
        Self {
            what: measured.what,
            at_once: measured.count,
            all_views_right_ms: measured.took_us.map(|us| us as f64 / 1e3),
            datagrams_per_member: measured.datagrams_each,
            bytes_per_member: measured.bytes_each,
            copies_per_fact: (measured.copies() * 100.0).round() / 100.0,
        }
    }
}

/// The whole study, for JSON.
#[derive(Serialize)]
struct Study {
    simulated: bool,
    seed: u64,
    round_trip_us: u64,
    paper_boot_2048_s: f64,
    zones: Vec<ZoneFigures>,
}

/// Measures, prints JSON, draws.
pub(crate) fn main(args: &FiguresArgs) -> Result<(), CliError> {
    let counts: Vec<usize> = args.counts.iter().map(|count| *count as usize).collect();
    let most: usize = counts.iter().sum::<usize>() * 3;
    if let Some(few) = args
        .members
        .iter()
        .find(|members| **members as usize <= most + 1)
    {
        let why = format!(
            "--counts {:?} end {most} members of a zone of {few}",
            args.counts
        );
        return Err(CliError::usage("sim figures", why).hint("larger zones or smaller counts"));
    }
    let mut zones = Vec::new();
    // Ours, and the paper's parameters as far as they have a meaning here.
    for (timing, profile, theta, successors) in [
        ("ours", Profile::Standard, 2, 2),
        ("paper", Profile::Quiet, 1, 1),
    ] {
        if args.timing.as_deref().is_some_and(|only| only != timing) {
            continue;
        }
        for members in &args.members {
            let setting = ZoneSetting {
                members: *members as usize,
                profile,
                theta,
                successors,
                neighbours: 3,
                round_trip_us: args.round_trip_us,
            };
            let measured = study(args.seed, setting, &counts, |_| {});
            zones.push(ZoneFigures {
                timing,
                heartbeat_ms: profile.heartbeat_us() / 1000,
                deadline_ms: profile.deadline_us() / 1000,
                theta,
                successors,
                neighbours: setting.neighbours,
                members: setting.members,
                measured: measured.iter().map(Figure::of).collect(),
            });
        }
    }
    let study = Study {
        simulated: true,
        seed: args.seed,
        round_trip_us: args.round_trip_us,
        paper_boot_2048_s: PAPER.1,
        zones,
    };
    let text =
        serde_json::to_string_pretty(&study).map_err(|error| CliError::new("sim: JSON", error))?;
    println!("{text}");
    match &args.plot {
        Some(path) => plot(&study, path)
            .map_err(|error| CliError::new(format!("sim: {}", path.display()), error)),
        None => Ok(()),
    }
}

fn boots(study: &Study, timing: &str) -> Vec<(f64, f64)> {
    let zones = study.zones.iter().filter(|zone| zone.timing == timing);
    zones
        .filter_map(|zone| {
            let boot = zone.measured.iter().find(|figure| figure.what == "boot")?;
            Some((zone.members as f64, boot.all_views_right_ms? / 1e3))
        })
        .collect()
}

fn plot(study: &Study, path: &Path) -> Result<(), Box<dyn std::error::Error>> {
    let area = SVGBackend::new(path, (720, 480)).into_drawing_area();
    area.fill(&WHITE)?;
    let mut chart = ChartBuilder::on(&area)
        .margin(16)
        .caption(
            "Boot of one zone until all views are right (simulated)",
            ("sans-serif", 18),
        )
        .x_label_area_size(40)
        .y_label_area_size(56)
        .build_cartesian_2d((32.0..4096.0).log_scale(), (0.01..20.0).log_scale())?;
    chart
        .configure_mesh()
        .x_desc("members")
        .y_desc("seconds")
        .draw()?;
    let series = [
        ("ours", "ours: 20/60 ms, two observers", BLUE),
        (
            "paper",
            "the paper's parameters: 200 ms, one observer",
            BLACK,
        ),
    ];
    for (row, (timing, label, colour)) in series.into_iter().enumerate() {
        let points = boots(study, timing);
        chart.draw_series(LineSeries::new(points.clone(), colour))?;
        chart.draw_series(PointSeries::of_element(
            points,
            3,
            colour,
            &|at, size, style| EmptyElement::at(at) + Circle::new((0, 0), size, style),
        ))?;
        let at = (72, 52 + row as i32 * 18);
        area.draw(&Text::new(
            label,
            at,
            ("sans-serif", 14).into_font().color(&colour),
        ))?;
    }
    chart.draw_series([Circle::new(PAPER, 5, RED)])?;
    let label = "measured by the paper at 2048: 5.7 s";
    area.draw(&Text::new(
        label,
        (72, 88),
        ("sans-serif", 14).into_font().color(&RED),
    ))?;
    area.present()?;
    Ok(())
}
