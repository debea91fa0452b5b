//! The table of `muster bench detect`: a row for each metric, a column for each system, and ratios to the first system.

use super::figures::{Count, Figures, Metric, quantile};
use std::fmt::Write as _;

const NAME_WIDTH: usize = 38;
const CELL_WIDTH: usize = 34;
/// If there are fewer values than this, the cell has their number.
const FEW: usize = 30;

/// The complete table.
pub(super) fn table(columns: &[(&str, &Figures)]) -> String {
    let mut table = format!("{:<NAME_WIDTH$}{:>5}", "p50 / p99 / max", "");
    for (name, _) in columns {
        let _ = write!(table, "{name:>CELL_WIDTH$}");
    }
    table.push('\n');
    for metric in Metric::ALL {
        let (_, labels, unit) = metric.labels();
        if columns.iter().all(|(_, f)| f.values(metric).is_empty()) {
            continue;
        }
        let _ = write!(table, "{labels:<NAME_WIDTH$}{unit:>5}");
        for (_, figures) in columns {
            let _ = write!(table, "{:>CELL_WIDTH$}", cell(figures.values(metric)));
        }
        table.push('\n');
    }
    for count in Count::ALL {
        let _ = write!(table, "{:<NAME_WIDTH$}{:>5}", count.labels().1, "");
        for (_, figures) in columns {
            let _ = write!(table, "{:>CELL_WIDTH$}", figures.counted(count));
        }
        table.push('\n');
    }
    table.push_str(&ratios(columns));
    table
}

fn cell(values: &[f64]) -> String {
    if values.is_empty() {
        return "-".into();
    }
    let [p50, p99, max] = [0.5, 0.99, 1.0].map(|share| number(quantile(values, share)));
    match values.len() {
        1 => format!("{p50} (n 1)"),
        few if few < FEW => format!("{p50} / {p99} / {max} (n {few})"),
        _ => format!("{p50} / {p99} / {max}"),
    }
}

fn number(value: f64) -> String {
    if value >= 1000.0 {
        format!("{value:.0}")
    } else if value >= 10.0 {
        format!("{value:.1}")
    } else {
        format!("{value:.2}")
    }
}

/// Medians and maxima of the other systems as multiples of those of the first.
fn ratios(columns: &[(&str, &Figures)]) -> String {
    let Some(((first, ours), others)) = columns.split_first() else {
        return String::new();
    };
    let mut text = String::new();
    if others.is_empty() {
        return text;
    }
    let _ = writeln!(text, "p50 and max as multiples of {first}'s:");
    for metric in Metric::ALL {
        let ours = ours.values(metric);
        let cells: Vec<String> = others
            .iter()
            .map(|(_, figures)| {
                let theirs = figures.values(metric);
                let of = |share| quantile(theirs, share) / quantile(ours, share);
                match ours.is_empty() || theirs.is_empty() {
                    true => "-".into(),
                    false => format!("{:.2}x / {:.2}x", of(0.5), of(1.0)),
                }
            })
            .collect();
        if cells.iter().all(|cell| cell == "-") {
            continue;
        }
        let _ = write!(
            text,
            "{:<NAME_WIDTH$}{:>5}{:>CELL_WIDTH$}",
            metric.labels().1,
            "",
            "1"
        );
        for cell in cells {
            let _ = write!(text, "{cell:>CELL_WIDTH$}");
        }
        text.push('\n');
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn few_values_have_their_number_and_none_is_a_dash() {
        let mut ours = Figures::default();
        (0..40).for_each(|value| ours.add(Metric::Killed, f64::from(value)));
        ours.add(Metric::Boot, 12.0);
        let mut theirs = Figures::default();
        theirs.add(Metric::Killed, 195.0);
        let table = table(&[("a", &ours), ("b", &theirs)]);
        let row = |labels: &str| {
            let line = table.lines().find(|line| line.starts_with(labels)).unwrap();
            line.split_whitespace().collect::<Vec<_>>().join(" ")
        };
        assert!(
            row("SIGKILL").ends_with("ms 20.0 / 39.0 / 39.0 195.0 (n 1)"),
            "{table}"
        );
        assert!(row("last member").ends_with("ms 12.0 (n 1) -"), "{table}");
        assert!(table.contains("9.75x / 5.00x"), "{table}");
    }
}
