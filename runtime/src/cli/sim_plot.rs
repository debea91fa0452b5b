//! The plot of a zone study: boot times beside the paper's point.

use super::sim_figures::{PAPER_BOOT, Study};
use plotters::prelude::{
    BLACK, BLUE, ChartBuilder, Circle, EmptyElement, IntoDrawingArea, IntoFont, IntoLogRange,
    LineSeries, PathElement, PointSeries, RED, SVGBackend, Text, WHITE,
};
use std::error::Error;
use std::path::Path;

/// Draws the boot times.
pub(super) fn boot(study: &Study, path: &Path) -> Result<(), Box<dyn Error>> {
    let area = SVGBackend::new(path, (720, 480)).into_drawing_area();
    area.fill(&WHITE)?;
    let caption = format!(
        "Boot of one zone until all views are right (simulated, {} us a datagram)",
        study.service_us
    );
    let mut chart = ChartBuilder::on(&area)
        .margin(16)
        .caption(caption, ("sans-serif", 18))
        .x_label_area_size(40)
        .y_label_area_size(56)
        .build_cartesian_2d((64.0..4096.0).log_scale(), (0.001..100.0).log_scale())?;
    chart
        .configure_mesh()
        .x_desc("members")
        .y_desc("seconds")
        .draw()?;
    let series = [
        ("ours", "ours: 20/60 ms, tau 1 ms, two observers", BLUE),
        (
            "paper",
            "the plain algorithm, tau 200 ms, one observer",
            BLACK,
        ),
    ];
    for (row, (timing, label, colour)) in series.into_iter().enumerate() {
        let boots = boots(study, timing);
        let points: Vec<(f64, f64)> = boots.iter().map(|(x, y, _)| (*x, *y)).collect();
        chart.draw_series(LineSeries::new(points.clone(), colour))?;
        chart.draw_series(PointSeries::of_element(
            points,
            3,
            colour,
            &|at, size, style| EmptyElement::at(at) + Circle::new((0, 0), size, style),
        ))?;
        let spans = boots
            .into_iter()
            .map(|(x, _, (low, high))| PathElement::new(vec![(x, low), (x, high)], colour));
        chart.draw_series(spans)?;
        let at = (80, 52 + row as i32 * 18);
        let font = ("sans-serif", 14).into_font().color(&colour);
        area.draw(&Text::new(label, at, font))?;
    }
    let paper = (PAPER_BOOT.0 as f64, PAPER_BOOT.1 / 1e3);
    chart.draw_series([Circle::new(paper, 5, RED)])?;
    let label = "measured by the paper at 2048: 5.7 s";
    let font = ("sans-serif", 14).into_font().color(&RED);
    area.draw(&Text::new(label, (80, 88), font))?;
    area.present()?;
    Ok(())
}

/// Members, seconds, least and most seconds.
fn boots(study: &Study, timing: &str) -> Vec<(f64, f64, (f64, f64))> {
    let zones = study.zones.iter().filter(|zone| zone.timing == timing);
    zones
        .filter_map(|zone| {
            let boot = zone.measured.iter().find(|figure| figure.what == "boot")?;
            let (low, high) = boot.range_ms?;
            let right_s = boot.all_views_right_ms? / 1e3;
            Some((zone.members as f64, right_s, (low / 1e3, high / 1e3)))
        })
        .collect()
}
