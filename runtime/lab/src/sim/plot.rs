//! Draws the plots of all studies: lines over two axes, and a legend beside them, where it covers nothing.

use plotters::coord::Shift;
use plotters::prelude::{
    BLACK, ChartBuilder, Circle, Color, Cross, DrawingArea, IntoDrawingArea, IntoFont, LineSeries,
    PathElement, RGBColor, SVGBackend, TRANSPARENT, Text, TriangleMarker, WHITE,
};
use std::error::Error;
use std::path::Path;

/// Colours that are distinguishable in print, and for most people with a colour vision deficiency.
const COLOURS: [RGBColor; 6] = [
    RGBColor(0, 90, 200),
    RGBColor(205, 50, 40),
    RGBColor(0, 140, 70),
    RGBColor(190, 60, 190),
    RGBColor(0, 0, 0),
    RGBColor(205, 125, 0),
];
/// Size of the chart in pixels, maximum width of a character of the legend, and height of a legend row.
const CHART: (u32, u32) = (680, 480);
const CHARACTER: u32 = 7;
const ROW: i32 = 20;
/// Width of a line in pixels, and how much wider it is for each later line that runs over it.
const STROKE: u32 = 2;
const BORDER: u32 = 4;
/// Two points that are no further apart, in pixels, hide each other.
const HIDES: f64 = 3.0;

/// How values are mapped to positions on an axis.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Scale {
    Linear,
    /// Labels are powers of two.
    Log2,
    /// Labels are powers of ten.
    Log10,
}

/// An axis: its label with the unit, its scale, and its ends as values.
pub(super) struct Axis<'a> {
    pub(super) label: &'a str,
    pub(super) scale: Scale,
    pub(super) span: (f64, f64),
}

/// A line, or points from another source.
pub(super) struct Series {
    pub(super) label: String,
    pub(super) points: Vec<(f64, f64)>,
    /// For each point, the range of the runs; may be empty.
    pub(super) spans: Vec<(f64, (f64, f64))>,
    /// Points to compare the line with, drawn as crosses in its colour.
    pub(super) crosses: Vec<(f64, f64)>,
    /// Whether each point is marked.
    pub(super) is_marked: bool,
}

impl Series {
    /// A line with a mark at each point.
    pub(super) fn marked(label: impl Into<String>, points: Vec<(f64, f64)>) -> Self {
        Self {
            label: label.into(),
            points,
            spans: Vec::new(),
            crosses: Vec::new(),
            is_marked: true,
        }
    }

    /// A line without marks.
    pub(super) fn line(label: impl Into<String>, points: Vec<(f64, f64)>) -> Self {
        Self {
            is_marked: false,
            ..Self::marked(label, points)
        }
    }
}

impl Scale {
    fn position(self, value: f64) -> f64 {
        match self {
            Self::Linear => value,
            Self::Log2 => value.log2(),
            Self::Log10 => value.log10(),
        }
    }

    /// The label at a position of the axis.
    fn label_at(self, position: f64) -> String {
        let value = match self {
            // Six digits are enough, and hide rounding errors such as that of 0.1 + 0.2.
            Self::Linear => return format!("{}", (position * 1e6).round() / 1e6),
            Self::Log2 => position.exp2(),
            Self::Log10 => 10_f64.powf(position),
        };
        // Between two powers, two digits.
        let unit = 10_f64.powf(value.log10().floor() - 1.0);
        match (value / unit).round() * unit {
            small if small < 1e-3 => format!("{small:.0e}"),
            small if small < 1.0 => format!("{}", (small * 1e6).round() / 1e6),
            _ if self == Self::Log2 => format!("{}", value.round()),
            value => format!("{}", (value * 10.0).round() / 10.0),
        }
    }

    /// Approximate number of labels for an axis of this span.
    fn labels(self, positions: (f64, f64)) -> usize {
        match self {
            Self::Linear => 11,
            Self::Log2 | Self::Log10 => (positions.1 - positions.0).ceil() as usize + 2,
        }
    }
}

impl Axis<'_> {
    fn positions(&self) -> (f64, f64) {
        (
            self.scale.position(self.span.0),
            self.scale.position(self.span.1),
        )
    }

    /// The distance from the start of an axis of this length, in pixels.
    fn pixels(&self, value: f64, length: u32) -> f64 {
        let (first, last) = self.positions();
        (self.scale.position(value) - first) / (last - first) * f64::from(length)
    }
}

/// For each series, how many later ones run over at least half of its points. Its line is that many borders wider, so
/// that it is visible on both sides of the others.
fn covers((x, y): (&Axis<'_>, &Axis<'_>), series: &[Series]) -> Vec<u32> {
    let pixel = |(at, value): (f64, f64)| (x.pixels(at, CHART.0), y.pixels(value, CHART.1));
    let hides = |one: (f64, f64), other: (f64, f64)| {
        (one.0 - other.0).abs() <= HIDES && (one.1 - other.1).abs() <= HIDES
    };
    let pixels = series
        .iter()
        .map(|one| one.points.iter().map(|at| pixel(*at)).collect());
    let pixels: Vec<Vec<(f64, f64)>> = pixels.collect();
    let over = |below: &[(f64, f64)], above: &[(f64, f64)]| {
        let is_hidden = |at: &&(f64, f64)| above.iter().any(|other| hides(**at, *other));
        !below.is_empty() && below.iter().filter(is_hidden).count() * 2 >= below.len()
    };
    let covers = pixels.iter().enumerate().map(|(number, below)| {
        let later = pixels[number + 1..].iter();
        later.filter(|above| over(below, above)).count() as u32
    });
    covers.collect()
}

/// Draws an SVG file. `crosses` is the label of the crosses, if there are any.
pub(super) fn draw(
    path: &Path,
    title: &str,
    (x, y): (&Axis<'_>, &Axis<'_>),
    series: &[Series],
    crosses: Option<&str>,
) -> Result<(), Box<dyn Error>> {
    let labels = series.iter().map(|one| one.label.as_str()).chain(crosses);
    let longest = labels.map(str::len).max().unwrap_or(0) as u32;
    let size = (CHART.0 + 48 + longest * CHARACTER, CHART.1);
    let area = SVGBackend::new(path, size).into_drawing_area();
    area.fill(&WHITE)?;
    let (left, right) = area.split_horizontally(CHART.0);
    let ((x_first, x_last), (y_first, y_last)) = (x.positions(), y.positions());
    let mut chart = ChartBuilder::on(&left)
        .margin(16)
        .caption(title, ("sans-serif", 18))
        .x_label_area_size(40)
        .y_label_area_size(64)
        .build_cartesian_2d(x_first..x_last, y_first..y_last)?;
    chart
        .configure_mesh()
        .x_desc(x.label)
        .y_desc(y.label)
        .x_labels(x.scale.labels((x_first, x_last)))
        .y_labels(y.scale.labels((y_first, y_last)))
        .x_label_formatter(&|position| x.scale.label_at(*position))
        .y_label_formatter(&|position| y.scale.label_at(*position))
        .light_line_style(TRANSPARENT)
        .draw()?;
    let position = |(at, value): (f64, f64)| (x.scale.position(at), y.scale.position(value));
    let covers = covers((x, y), series);
    for (number, (one, covers)) in series.iter().zip(&covers).enumerate() {
        let colour = COLOURS[number % COLOURS.len()];
        let points: Vec<(f64, f64)> = one.points.iter().map(|at| position(*at)).collect();
        let stroke = colour.stroke_width(STROKE + BORDER * covers);
        chart.draw_series(LineSeries::new(points.clone(), stroke))?;
        let spans = one.spans.iter();
        chart.draw_series(spans.map(|(at, (low, high))| {
            PathElement::new(vec![position((*at, *low)), position((*at, *high))], colour)
        }))?;
        let marks = points.into_iter().filter(|_| one.is_marked);
        let wider = covers * BORDER / 2;
        match number / COLOURS.len() {
            0 => {
                chart.draw_series(marks.map(|at| Circle::new(at, 4 + wider, colour.filled())))?;
            }
            1 => {
                chart.draw_series(
                    marks.map(|at| TriangleMarker::new(at, 6 + wider, colour.filled())),
                )?;
            }
            _ => {
                chart.draw_series(marks.map(|at| Circle::new(at, 6 + wider, colour)))?;
            }
        }
        let crosses = one.crosses.iter();
        chart
            .draw_series(crosses.map(|at| Cross::new(position(*at), 7, colour.stroke_width(2))))?;
    }
    legend(&right, series, &covers, crosses)?;
    area.present()?;
    Ok(())
}

/// Draws the legend, one row for each series.
fn legend(
    area: &DrawingArea<SVGBackend<'_>, Shift>,
    series: &[Series],
    covers: &[u32],
    crosses: Option<&str>,
) -> Result<(), Box<dyn Error>> {
    let label_at = |row: usize, label_at: &str| {
        let font = ("sans-serif", 13).into_font().color(&BLACK);
        Text::new(label_at.to_owned(), (34, 48 + row as i32 * ROW), font)
    };
    for (row, (one, covers)) in series.iter().zip(covers).enumerate() {
        let colour = COLOURS[row % COLOURS.len()];
        let middle = 54 + row as i32 * ROW;
        let line = vec![(4, middle), (28, middle)];
        let stroke = colour.stroke_width(STROKE + BORDER * covers);
        area.draw(&PathElement::new(line, stroke))?;
        if one.is_marked {
            let at = (16, middle);
            match row / COLOURS.len() {
                0 => area.draw(&Circle::new(at, 4, colour.filled()))?,
                1 => area.draw(&TriangleMarker::new(at, 6, colour.filled()))?,
                _ => area.draw(&Circle::new(at, 6, colour))?,
            }
        }
        area.draw(&label_at(row, &one.label))?;
    }
    if let Some(label) = crosses {
        let row = series.len();
        let at = (16, 54 + row as i32 * ROW);
        area.draw(&Cross::new(at, 7, BLACK.stroke_width(2)))?;
        area.draw(&label_at(row, label))?;
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_line_is_wider_for_each_later_line_that_runs_over_it() {
        let axis = |scale, span| Axis {
            label: "",
            scale,
            span,
        };
        let x = axis(Scale::Log2, (16.0, 1024.0));
        let y = axis(Scale::Linear, (0.0, 10.0));
        let line = |rise: f64| {
            let points = [16.0, 64.0, 256.0, 1024.0].map(|at: f64| (at, at.log2() * rise));
            Series::line("", points.to_vec())
        };
        let series = [line(1.0), line(0.5), line(1.0), line(1.001)];
        assert_eq!(covers((&x, &y), &series), [2, 0, 1, 0]);
        let none = [Series::line("", Vec::new()), line(1.0)];
        assert_eq!(covers((&x, &y), &none), [0, 0]);
    }
}
