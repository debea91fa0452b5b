//! `docs/top.svg`: the screen of `muster top` as the guide shows it, drawn from `docs/top.json`, which is what
//! `muster top -o json` printed during a run of the demo.

use super::Screen;
use ratatui::Terminal;
use ratatui::backend::TestBackend;
use ratatui::buffer::{Buffer, Cell};
use ratatui::style::{Color, Modifier};
use std::fmt::Write;
use std::fs;
use std::path::Path;

/// Size of the terminal in characters.
const SCREEN: (u16, u16) = (130, 14);
/// Size of a character, and of the edges of the window, in pixels.
const CHARACTER: (f64, f64) = (7.8, 18.0);
const EDGE: (f64, f64) = (20.0, 34.0);
const BACKGROUND: &str = "#17202b";

/// The colours of a cell: that of the text, and that behind it.
fn colours(cell: &Cell) -> (&'static str, &'static str) {
    let text = match cell.fg {
        Color::Green => "#8fd98f",
        Color::Yellow => "#f2c55c",
        Color::Red => "#ff8f87",
        _ => "#d5dce5",
    };
    match cell.modifier.contains(Modifier::REVERSED) {
        true => (BACKGROUND, text),
        false => (text, BACKGROUND),
    }
}

/// The picture of a screen. Cells of one style that follow each other are one text.
fn svg(screen: &Buffer) -> String {
    let place = |column: u16, row: u16| {
        (
            EDGE.0 + f64::from(column) * CHARACTER.0,
            EDGE.1 + f64::from(row) * CHARACTER.1,
        )
    };
    let (columns, rows) = (screen.area.width, screen.area.height);
    let (right, bottom) = place(columns, rows);
    let (width, height) = (right + EDGE.0, bottom + 14.0);
    let mut text = format!(
        "<svg xmlns=\"http://www.w3.org/2000/svg\" width=\"{width:.0}\" height=\"{height:.0}\" \
         viewBox=\"0 0 {width:.0} {height:.0}\">\n<title>muster top</title>\n\
         <rect width=\"{width:.0}\" height=\"{height:.0}\" rx=\"8\" fill=\"{BACKGROUND}\"/>\n"
    );
    for (at, colour) in ["#ff6159", "#ffbd2e", "#28c941"].into_iter().enumerate() {
        let x = 20 + 18 * at;
        // Writing into a String cannot fail.
        let _ = writeln!(
            text,
            "<circle cx=\"{x}\" cy=\"16\" r=\"5\" fill=\"{colour}\"/>"
        );
    }
    text += "<g font-family=\"ui-monospace, Menlo, Consolas, monospace\" font-size=\"13\" xml:space=\"preserve\">\n";
    for row in 0..rows {
        let mut column = 0;
        while column < columns {
            let first = &screen[(column, row)];
            let mut run = String::new();
            let start = column;
            while column < columns && screen[(column, row)].style() == first.style() {
                run += screen[(column, row)].symbol();
                column += 1;
            }
            draw_run(
                &mut text,
                first,
                &run,
                (place(start, row), place(column, row).0),
            );
        }
    }
    text + "</g>\n</svg>\n"
}

/// Draws cells of one style, from a position up to another one of the same row.
fn draw_run(text: &mut String, style: &Cell, run: &str, ((x, y), end): ((f64, f64), f64)) {
    let (colour, behind) = colours(style);
    if behind != BACKGROUND {
        let (width, height) = (end - x, CHARACTER.1);
        let _ = writeln!(
            text,
            "<rect x=\"{x:.1}\" y=\"{y:.1}\" width=\"{width:.1}\" height=\"{height:.1}\" fill=\"{behind}\"/>"
        );
    }
    let run = run.trim_end();
    if run.is_empty() {
        return;
    }
    let weight = match style.modifier.contains(Modifier::BOLD) {
        true => " font-weight=\"bold\"",
        false => "",
    };
    let width = run.chars().count() as f64 * CHARACTER.0;
    let run = run.replace('&', "&amp;").replace('<', "&lt;");
    let _ = writeln!(
        text,
        "<text x=\"{x:.1}\" y=\"{:.1}\" textLength=\"{width:.1}\" fill=\"{colour}\"{weight}>{run}</text>",
        y + 13.0
    );
}

/// `REDRAW=1` draws the picture again.
#[test]
fn the_picture_of_the_guide_is_the_screen() {
    let docs = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../docs");
    let answer = fs::read(docs.join("top.json")).expect("docs/top.json");
    let answer = serde_json::from_slice(&answer).expect("an answer of muster top");
    let mut screen = Screen::new(answer, true);
    let mut terminal = Terminal::new(TestBackend::new(SCREEN.0, SCREEN.1)).unwrap();
    terminal.draw(|frame| screen.draw(frame)).unwrap();
    let picture = svg(terminal.backend().buffer());
    let path = docs.join("top.svg");
    if std::env::var_os("REDRAW").is_some() {
        fs::write(&path, &picture).expect("docs/top.svg");
    }
    let stored = fs::read_to_string(&path).expect("docs/top.svg");
    assert!(
        stored == picture,
        "draw it again: REDRAW=1 cargo test -p muster-cli picture"
    );
}
