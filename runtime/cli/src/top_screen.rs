//! The screen of `muster top` on a terminal: members, rails, and why the selected member is in its state. In a job with
//! zones it first has a list of these; a key opens the nodes of one.
//!
//! The screen fits any terminal: a narrow one shows fewer columns, a low one no rails. The keys are in [`KEYS`].

use std::io;
use std::path::Path;
use std::time::{Duration, Instant};

use muster_control::{AskError, Question, ask, explanation};
use muster_terminal::CliError;
use muster_terminal::paint::is_coloured;
use muster_terminal::process::{is_interrupted, notice_interruption};
use ratatui::Frame;
use ratatui::crossterm::cursor::Show;
use ratatui::crossterm::event::{self, Event, KeyCode, KeyEvent, KeyEventKind, KeyModifiers};
use ratatui::crossterm::execute;
use ratatui::layout::{Constraint, Layout, Rect};
use ratatui::style::{Color, Modifier, Style};
use ratatui::text::{Line, Span};
use ratatui::widgets::{Cell, Paragraph, Row, Table, TableState, Wrap};
use serde_json::Value;
use signal_hook::consts::SIGHUP;
use signal_hook::iterator::Signals;

use super::answer::{array, text};
use super::top_zones;

/// What the keys do.
const KEYS: [(&str, &str); 10] = [
    ("Up, Down, k, j", "select a member, or a zone"),
    ("Page Up, Page Down", "move by a page"),
    ("Home, End", "first and last member"),
    (
        "Enter, w",
        "why the selected member is in its state; again to close",
    ),
    (
        "Enter, Right",
        "in the list of zones: the nodes of the selected zone",
    ),
    ("b, Backspace, Left", "back to the list of zones"),
    ("s", "sort by state or by name"),
    ("Space", "pause, continue"),
    ("?, h", "this list; again to close"),
    ("q, Esc, Ctrl-C", "end"),
];
/// Longest wait for a key, so that a signal is noticed.
const KEY_WAIT: Duration = Duration::from_millis(250);
/// A column is shown on terminals of at least this width.
const WIDTH_OF_RANKS: u16 = 36;
const WIDTH_OF_HEARD: u16 = 64;
const WIDTH_OF_DEADLINE: u16 = 76;
const WIDTH_OF_CAUSE: u16 = 48;
/// The same for columns of the list of zones.
const WIDTH_OF_ALIVE: u16 = 28;
const WIDTH_OF_NODES: u16 = 36;
const WIDTH_OF_DEGRADED: u16 = 46;
const WIDTH_OF_LEFT: u16 = 64;
/// Lower terminals show no rails.
const HEIGHT_OF_RAILS: u16 = 14;

/// What fills the lower part of the screen.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Pane {
    Rails,
    Why,
    Keys,
}

/// What the user has done.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Step {
    /// The screen is drawn anew.
    Draw,
    /// Why the selected member is in its state is requested from the agent.
    Explain,
    /// The agent is asked for another picture: of the zone that was opened, or of all.
    Look,
    End,
}

/// The screen's state.
struct Screen {
    picture: Value,
    members: TableState,
    zones: TableState,
    /// The zone whose nodes are shown. None while all zones are, and in a job that is not divided.
    zone: Option<String>,
    by_name: bool,
    paused: bool,
    pane: Pane,
    /// The agent's explanation of the selected member's state.
    why: String,
    coloured: bool,
    /// Rows of members that were drawn last.
    page: usize,
}

/// Runs until the user ends it, `number` pictures were drawn, or the agent is lost.
///
/// # Errors
/// The terminal's, and the agent's.
pub(super) fn run(
    path: &Path,
    delay: Duration,
    number: u64,
    look: &mut dyn FnMut(Option<&str>) -> Result<Value, CliError>,
) -> Result<(), CliError> {
    notice_interruption();
    let first = look(None)?;
    let failed = |cause| CliError::new("top: the terminal", cause);
    end_on_hang_up();
    let mut terminal = ratatui::try_init().map_err(failed)?;
    let mut screen = Screen::new(first, is_coloured());
    let outcome = (|| {
        let (mut drawn, mut next) = (1, Instant::now() + delay);
        loop {
            terminal.draw(|frame| screen.draw(frame)).map_err(failed)?;
            let step = await_key(next, &mut screen).map_err(failed)?;
            match step {
                Some(Step::End) => return Ok(()),
                Some(Step::Explain) => screen.explain(path),
                Some(Step::Look) => screen.picture = look(screen.zone.as_deref())?,
                Some(Step::Draw) => {}
                None if is_interrupted() => return Err(CliError::silent(130)),
                None if Instant::now() < next => {}
                None => {
                    if drawn >= number {
                        return Ok(());
                    }
                    if !screen.paused {
                        screen.picture = look(screen.zone.as_deref())?;
                        drawn += 1;
                    }
                    next = Instant::now() + delay;
                }
            }
        }
    })();
    // The terminal may be gone. Dropping `terminal` would print that on it, and panic since nothing can be printed.
    restore();
    std::mem::forget(terminal);
    outcome
}

/// Leaves the screen and shows the cursor. The terminal may be gone, so errors are ignored.
fn restore() {
    let _ = execute!(io::stdout(), Show);
    let _ = ratatui::try_restore();
}

/// Ends this process on SIGHUP, in a thread of its own: crossterm reads a terminal that was closed without end, and
/// does not return to a loop that would look at a flag.
fn end_on_hang_up() {
    // Without the thread the signal ends this process, which leaves an open terminal as it is.
    if let Ok(mut signals) = Signals::new([SIGHUP]) {
        std::thread::spawn(move || {
            if signals.forever().next().is_some() {
                restore();
                std::process::exit(130);
            }
        });
    }
}

/// Waits for a key up to this time, but not longer than [`KEY_WAIT`].
fn await_key(until: Instant, screen: &mut Screen) -> io::Result<Option<Step>> {
    let left = until
        .saturating_duration_since(Instant::now())
        .min(KEY_WAIT);
    if !event::poll(left)? {
        return Ok(None);
    }
    Ok(Some(match event::read()? {
        Event::Key(key) if key.kind != KeyEventKind::Release => screen.key(key),
        _ => Step::Draw,
    }))
}

impl Screen {
    fn new(picture: Value, coloured: bool) -> Self {
        Self {
            picture,
            members: TableState::default().with_selected(0),
            zones: TableState::default().with_selected(0),
            zone: None,
            by_name: false,
            paused: false,
            pane: Pane::Rails,
            why: String::new(),
            coloured,
            page: 1,
        }
    }

    /// The members in the order of the screen.
    fn sorted(&self) -> Vec<&Value> {
        let mut members: Vec<&Value> = array(&self.picture, "members").iter().collect();
        if self.by_name {
            members.sort_by(|a, b| muster_hostlist::by_number(text(a, "name"), text(b, "name")));
        }
        members
    }

    fn selected(&self) -> Option<String> {
        let members = self.sorted();
        let member = members.get(self.members.selected()?)?;
        Some(text(member, "name").to_owned())
    }

    /// Whether the zones are shown, not nodes.
    fn lists_zones(&self) -> bool {
        self.zone.is_none() && !array(&self.picture, "zones").is_empty()
    }

    /// The list that is shown, and how many rows it has.
    fn list(&mut self) -> (&mut TableState, usize) {
        match self.lists_zones() {
            true => (&mut self.zones, array(&self.picture, "zones").len()),
            false => (&mut self.members, array(&self.picture, "members").len()),
        }
    }

    /// Opens the selected zone.
    fn open_zone(&mut self) -> Step {
        let zones = top_zones::sorted(&self.picture, self.by_name);
        let zone = self.zones.selected().and_then(|at| zones.get(at).copied());
        self.zone = zone.map(|zone| text(zone, "zone").to_owned());
        self.members.select(Some(0));
        *self.members.offset_mut() = 0;
        Step::Look
    }

    /// Closes the zone that is open, if there is one.
    fn close_zone(&mut self) -> Step {
        if self.zone.take().is_none() {
            return Step::Draw;
        }
        if self.pane == Pane::Why {
            self.pane = Pane::Rails;
        }
        Step::Look
    }

    fn key(&mut self, key: KeyEvent) -> Step {
        let lists_zones = self.lists_zones();
        let page = self.page;
        let (list, rows) = self.list();
        let last = rows.saturating_sub(1);
        let at = list.selected().unwrap_or(0);
        let with_control = key.modifiers.contains(KeyModifiers::CONTROL);
        let select = match key.code {
            KeyCode::Char('c') if with_control => return Step::End,
            KeyCode::Char('q') | KeyCode::Esc => return Step::End,
            KeyCode::Up | KeyCode::Char('k') => at.saturating_sub(1),
            KeyCode::Down | KeyCode::Char('j') => at + 1,
            KeyCode::PageUp => at.saturating_sub(page),
            KeyCode::PageDown => at + page,
            KeyCode::Home => 0,
            KeyCode::End => last,
            KeyCode::Enter | KeyCode::Right if lists_zones => return self.open_zone(),
            KeyCode::Char('w') if lists_zones => at,
            KeyCode::Char('b') | KeyCode::Backspace | KeyCode::Left => return self.close_zone(),
            KeyCode::Enter | KeyCode::Char('w') => return self.open(Pane::Why),
            KeyCode::Char('?' | 'h') => return self.open(Pane::Keys),
            KeyCode::Char('s') => {
                self.by_name = !self.by_name;
                at
            }
            KeyCode::Char(' ') => {
                self.paused = !self.paused;
                at
            }
            _ => at,
        };
        self.list().0.select(Some(select.min(last)));
        if self.pane == Pane::Why {
            Step::Explain
        } else {
            Step::Draw
        }
    }

    /// Opens a pane; closes it if it is open.
    fn open(&mut self, pane: Pane) -> Step {
        self.pane = if self.pane == pane { Pane::Rails } else { pane };
        if self.pane == Pane::Why {
            Step::Explain
        } else {
            Step::Draw
        }
    }

    fn explain(&mut self, path: &Path) {
        let Some(name) = self.selected() else {
            return;
        };
        self.why = match ask(path, &Question::Why(name)) {
            Ok(answer) => text(&answer, "explanation").to_owned(),
            Err(AskError::Refused { why, .. }) => why,
            Err(error) => error.to_string(),
        };
    }

    fn draw(&mut self, frame: &mut Frame<'_>) {
        let area = frame.area();
        let rails = array(&self.picture, "rails").len() as u16 + 2;
        let lower = match self.pane {
            _ if area.height < HEIGHT_OF_RAILS && self.pane == Pane::Rails => 0,
            Pane::Rails => rails.min(area.height / 3),
            Pane::Why => area.height / 2,
            Pane::Keys => KEYS.len() as u16 + 1,
        };
        let [head, members, below, foot] = Layout::vertical([
            Constraint::Length(2),
            Constraint::Min(2),
            Constraint::Length(lower),
            Constraint::Length(1),
        ])
        .areas(area);
        frame.render_widget(self.head(), head);
        self.page = usize::from(members.height.saturating_sub(1)).max(1);
        let table = match self.lists_zones() {
            true => self.zone_table(members.width),
            false => self.member_table(members.width),
        };
        frame.render_stateful_widget(table, members, self.list().0);
        match self.pane {
            Pane::Rails => frame.render_widget(self.rail_table(below.width), below),
            Pane::Why => frame.render_widget(self.why_text(), below),
            Pane::Keys => frame.render_widget(keys(), below),
        }
        let line = self.foot(members);
        frame.render_widget(line, foot);
    }

    fn head(&self) -> Paragraph<'_> {
        let picture = &self.picture;
        let late = picture["lateness_ms"].as_f64().unwrap_or(0.0);
        let priority = match picture["real_time"] == true {
            true => "real-time",
            false => "no real-time priority",
        };
        let paused = if self.paused { "  PAUSED" } else { "" };
        let (node, job) = (text(picture, "node"), text(picture, "job"));
        let first = format!("{node} of job {job}: {priority}, timers {late:.1} ms late{paused}");
        let lists_zones = self.lists_zones();
        let what = match &self.zone {
            Some(zone) => format!("zone {zone}: "),
            None if lists_zones => "nodes: ".to_owned(),
            None => "members: ".to_owned(),
        };
        let mut counts = vec![Span::raw(what)];
        for (place, state) in ["alive", "degraded", "suspect", "failed", "left"]
            .into_iter()
            .enumerate()
        {
            let count = match lists_zones {
                true => top_zones::sum(picture, state),
                false => picture["counts"][state].as_u64().unwrap_or(0),
            };
            let style = if count > 0 {
                self.style(state)
            } else {
                Style::new()
            };
            let comma = if place > 0 { ", " } else { "" };
            counts.push(Span::raw(comma));
            counts.push(Span::styled(format!("{count} {state}"), style));
        }
        Paragraph::new(vec![Line::raw(first), Line::from(counts)])
    }

    fn style(&self, state: &str) -> Style {
        match state {
            _ if !self.coloured => Style::new(),
            "alive" | "active" => Style::new().fg(Color::Green),
            "degraded" | "suspect" | "hung" => Style::new().fg(Color::Yellow),
            "failed" => Style::new().fg(Color::Red),
            _ => Style::new(),
        }
    }

    fn zone_table(&self, width: u16) -> Table<'static> {
        let least = |title: &str| match title {
            "ZONE" | "FAILED" => 0,
            "ALIVE" => WIDTH_OF_ALIVE,
            "NODES" => WIDTH_OF_NODES,
            "DEGRADED" => WIDTH_OF_DEGRADED,
            _ => WIDTH_OF_LEFT,
        };
        let columns = top_zones::COLUMNS;
        let columns: Vec<_> = columns
            .into_iter()
            .filter(|(title, _)| width >= least(title))
            .collect();
        let zones = top_zones::sorted(&self.picture, self.by_name);
        let rows = zones.into_iter().map(|zone| {
            let cells = columns.iter().map(|column| {
                let cell = Cell::new(top_zones::cell(zone, *column));
                match column.1 {
                    [state, ..] if zone[*state].as_u64() > Some(0) => cell.style(self.style(state)),
                    _ => cell,
                }
            });
            Row::new(cells.collect::<Vec<_>>())
        });
        let rows: Vec<Row<'static>> = rows.collect();
        let widths = columns.iter().map(|(title, states)| match states {
            [] => Constraint::Fill(1),
            _ => Constraint::Length(title.len().max(7) as u16),
        });
        let titles = columns.iter().map(|(title, _)| *title);
        Table::new(rows, widths)
            .header(Row::new(titles).style(Style::new().add_modifier(Modifier::BOLD)))
            .row_highlight_style(Style::new().add_modifier(Modifier::REVERSED))
    }

    fn member_table(&self, width: u16) -> Table<'static> {
        let mut titles = vec![
            ("NAME", Constraint::Fill(2)),
            ("STATE", Constraint::Length(8)),
        ];
        for (least, column) in [
            (WIDTH_OF_RANKS, ("RANKS", Constraint::Fill(1))),
            (WIDTH_OF_HEARD, ("HEARD", Constraint::Length(9))),
            (WIDTH_OF_DEADLINE, ("DEADLINE", Constraint::Length(9))),
            (WIDTH_OF_CAUSE, ("HOW KNOWN", Constraint::Fill(4))),
        ] {
            if width >= least {
                titles.push(column);
            }
        }
        let names: Vec<&str> = titles.iter().map(|(title, _)| *title).collect();
        let rows = self.sorted().into_iter().map(|member| {
            let ms = |key: &str| {
                member[key]
                    .as_f64()
                    .map_or("-".into(), |ms| format!("{ms:.0} ms"))
            };
            let marker = if member["self"] == true { " *" } else { "" };
            let cells = names.iter().map(|title| match *title {
                "NAME" => Cell::new(format!("{}{marker}", text(member, "name"))),
                "STATE" => {
                    let state = text(member, "state").to_owned();
                    let style = self.style(&state);
                    Cell::new(state).style(style)
                }
                "RANKS" => Cell::new(explanation::ranks(member)),
                "HEARD" => Cell::new(ms("heard_ms_ago")),
                "DEADLINE" => Cell::new(ms("deadline_ms")),
                _ => Cell::new(explanation::known(member)),
            });
            Row::new(cells.collect::<Vec<_>>())
        });
        let rows: Vec<Row<'static>> = rows.collect();
        Table::new(rows, titles.iter().map(|(_, width)| *width))
            .header(Row::new(names.clone()).style(Style::new().add_modifier(Modifier::BOLD)))
            .row_highlight_style(Style::new().add_modifier(Modifier::REVERSED))
    }

    fn rail_table(&self, width: u16) -> Table<'static> {
        let all = [
            "RAIL",
            "STATE",
            "HEALTH",
            "SENT/S",
            "RECEIVED/S",
            "TIMEOUTS",
        ];
        let count = match width {
            0..40 => 2,
            40..64 => 4,
            _ => all.len(),
        };
        let rows = array(&self.picture, "rails").iter().map(|rail| {
            let whole = |key: &str| {
                rail[key]
                    .as_u64()
                    .map_or("-".into(), |count| count.to_string())
            };
            let rate = |key: &str| format!("{:.0}", rail[key].as_f64().unwrap_or(0.0));
            let state = text(rail, "state").to_owned();
            let style = self.style(&state);
            let cells = [
                Cell::new(text(rail, "nid").to_owned()),
                Cell::new(state).style(style),
                Cell::new(whole("health")),
                Cell::new(rate("sends_s")),
                Cell::new(rate("receives_s")),
                Cell::new(whole("timeouts")),
            ];
            Row::new(cells.into_iter().take(count).collect::<Vec<_>>())
        });
        let rows: Vec<Row<'static>> = rows.collect();
        let widths = (0..count).map(|column| Constraint::Fill(if column == 0 { 3 } else { 1 }));
        Table::new(rows, widths).header(
            Row::new(all[..count].to_vec())
                .style(Style::new().add_modifier(Modifier::BOLD))
                .top_margin(1),
        )
    }

    fn why_text(&self) -> Paragraph<'_> {
        let mut lines = vec![Line::raw("")];
        lines.extend(self.why.lines().map(Line::raw));
        Paragraph::new(lines).wrap(Wrap { trim: false })
    }

    fn foot(&mut self, members: Rect) -> Line<'static> {
        let (list, all) = self.list();
        let shown = usize::from(members.height.saturating_sub(1));
        let more = match all > shown {
            true => format!("{} of {all}  ", list.selected().map_or(0, |at| at + 1)),
            false => String::new(),
        };
        let order = if self.by_name { "name" } else { "state" };
        let enter = match self.lists_zones() {
            true => "Enter: nodes",
            false if self.zone.is_some() => "Enter: why  b: zones",
            false => "Enter: why",
        };
        Line::raw(format!(
            "{more}by {order}  {enter}  s: sort  Space: pause  ?: keys  q: end"
        ))
    }
}

fn keys() -> Paragraph<'static> {
    let lines = KEYS
        .iter()
        .map(|(keys, what)| Line::raw(format!("{keys:<20} {what}")));
    let mut all = vec![Line::raw("")];
    all.extend(lines);
    Paragraph::new(all)
}

#[cfg(test)]
mod picture;
#[cfg(test)]
mod tests {
    use super::*;
    use ratatui::Terminal;
    use ratatui::backend::TestBackend;
    use serde_json::json;

    fn picture(members: usize) -> Value {
        let member = |number: usize| {
            let state = if number == 0 { "failed" } else { "alive" };
            json!({ "name": format!("n{}", members - number), "state": state, "ranks": [], "cause": "silence",
                "heard_ms_ago": 3.0, "deadline_ms": 60.0 })
        };
        let all: Vec<Value> = (0..members).map(member).collect();
        json!({ "node": "n1", "job": "j", "real_time": true, "lateness_ms": 0.1,
            "counts": { "alive": members - 1, "failed": 1 }, "members": all,
            "rails": [{ "nid": "127.0.0.1@udp0", "state": "active", "health": 1000, "sends_s": 10.0,
                "receives_s": 9.0, "timeouts": 0 }] })
    }

    fn drawn(screen: &mut Screen, width: u16, height: u16) -> String {
        let mut terminal = Terminal::new(TestBackend::new(width, height)).unwrap();
        terminal.draw(|frame| screen.draw(frame)).unwrap();
        terminal.backend().to_string()
    }

    fn press(screen: &mut Screen, code: KeyCode) -> Step {
        screen.key(KeyEvent::new(code, KeyModifiers::NONE))
    }

    #[test]
    fn a_wide_terminal_shows_all_columns_and_the_rails() {
        let text = drawn(&mut Screen::new(picture(3), false), 120, 24);
        for part in [
            "HOW KNOWN",
            "DEADLINE",
            "60 ms",
            "n3",
            "127.0.0.1@udp0",
            "TIMEOUTS",
            "1 failed",
            "q: end",
        ] {
            assert!(text.contains(part), "{part}:\n{text}");
        }
    }

    #[test]
    fn a_narrow_or_low_terminal_keeps_names_and_states() {
        for (width, height) in [(30, 24), (80, 6), (20, 5), (10, 3), (1, 1)] {
            let text = drawn(&mut Screen::new(picture(3), false), width, height);
            assert!(
                width > 70 || !text.contains("DEADLINE"),
                "{width}x{height}:\n{text}"
            );
            let has_members = text.contains("n3") && text.contains("fail");
            assert!(
                has_members || width < 20 || height < 5,
                "{width}x{height}:\n{text}"
            );
        }
        let low = drawn(&mut Screen::new(picture(3), false), 120, 10);
        assert!(
            !low.contains("127.0.0.1@udp0") && low.contains("n3"),
            "{low}"
        );
    }

    #[test]
    fn keys_move_the_selection_within_the_members() {
        let mut screen = Screen::new(picture(50), false);
        drawn(&mut screen, 80, 24);
        assert_eq!(screen.selected().as_deref(), Some("n50"));
        for (key, name) in [
            (KeyCode::Up, "n50"),
            (KeyCode::Down, "n49"),
            (KeyCode::End, "n1"),
            (KeyCode::PageDown, "n1"),
            (KeyCode::Home, "n50"),
            (KeyCode::Char('s'), "n1"),
        ] {
            assert_eq!(press(&mut screen, key), Step::Draw);
            assert_eq!(screen.selected().as_deref(), Some(name), "{key:?}");
        }
        press(&mut screen, KeyCode::End);
        let text = drawn(&mut screen, 80, 24);
        assert!(text.contains("n50") && text.contains("50 of 50"), "{text}");
    }

    #[test]
    fn panes_open_and_close_and_the_end_is_a_key() {
        let mut screen = Screen::new(picture(3), false);
        assert_eq!(press(&mut screen, KeyCode::Enter), Step::Explain);
        screen.why = "n3 failed: silence on all rails".into();
        assert!(drawn(&mut screen, 80, 24).contains("silence on all rails"));
        assert_eq!(
            press(&mut screen, KeyCode::Down),
            Step::Explain,
            "another member is explained"
        );
        assert_eq!(press(&mut screen, KeyCode::Enter), Step::Draw);
        assert_eq!(press(&mut screen, KeyCode::Char('?')), Step::Draw);
        assert!(drawn(&mut screen, 80, 24).contains("Page Up, Page Down"));
        press(&mut screen, KeyCode::Char(' '));
        assert!(drawn(&mut screen, 80, 24).contains("PAUSED"));
        for key in [KeyCode::Char('q'), KeyCode::Esc] {
            assert_eq!(press(&mut screen, key), Step::End);
        }
        let control_c = KeyEvent::new(KeyCode::Char('c'), KeyModifiers::CONTROL);
        assert_eq!(screen.key(control_c), Step::End);
    }

    fn with_zones(zones: usize) -> Value {
        let mut picture = picture(3);
        picture["zones"] = top_zones::sample(zones);
        picture
    }

    #[test]
    fn a_job_with_zones_is_a_list_of_zones() {
        let mut screen = Screen::new(with_zones(3), false);
        let text = drawn(&mut screen, 80, 24);
        for part in [
            "ZONE",
            "UNKNOWN",
            "nodes: 10 alive",
            "z1 *",
            "1 failed",
            "Enter: nodes",
        ] {
            assert!(text.contains(part), "{part}:\n{text}");
        }
        assert!(
            !text.contains("HOW KNOWN") && !text.contains("n3"),
            "{text}"
        );
        let place = |text: &str, zone: &str| text.find(zone).expect("the zone is there");
        assert!(place(&text, "z2") < place(&text, "z1 *"), "{text}");
        press(&mut screen, KeyCode::Char('s'));
        let text = drawn(&mut screen, 80, 24);
        assert!(place(&text, "z1 *") < place(&text, "z2"), "{text}");
        for (width, height) in [(30, 24), (80, 6), (20, 5), (10, 3), (1, 1)] {
            let text = drawn(&mut screen, width, height);
            assert!(width > 64 || !text.contains("UNKNOWN"), "{text}");
            let has_zones = text.contains("z1") && text.contains("FAILED");
            assert!(
                has_zones || width < 20 || height < 5,
                "{width}x{height}:\n{text}"
            );
        }
    }

    #[test]
    fn keys_open_a_zone_and_go_back() {
        let mut screen = Screen::new(with_zones(40), false);
        drawn(&mut screen, 80, 24);
        press(&mut screen, KeyCode::End);
        assert!(drawn(&mut screen, 80, 24).contains("40 of 40"));
        assert_eq!(press(&mut screen, KeyCode::Char('w')), Step::Draw);
        press(&mut screen, KeyCode::Home);
        // The zone with a failed node is the first one.
        assert_eq!(press(&mut screen, KeyCode::Enter), Step::Look);
        assert_eq!(screen.zone.as_deref(), Some("z2"));
        let text = drawn(&mut screen, 80, 24);
        for part in ["zone z2: 2 alive", "n3", "b: zones"] {
            assert!(text.contains(part), "{part}:\n{text}");
        }
        assert_eq!(press(&mut screen, KeyCode::Enter), Step::Explain);
        assert_eq!(press(&mut screen, KeyCode::Char('b')), Step::Look);
        assert_eq!((screen.pane, screen.zone.as_deref()), (Pane::Rails, None));
        assert!(drawn(&mut screen, 80, 24).contains("Enter: nodes"));
        // Without an open zone the key has no effect.
        assert_eq!(press(&mut screen, KeyCode::Left), Step::Draw);
    }

    #[test]
    fn no_members_and_no_rails_are_drawn() {
        let mut screen = Screen::new(json!({ "members": [], "rails": [], "counts": {} }), true);
        press(&mut screen, KeyCode::End);
        drawn(&mut screen, 80, 24);
        assert_eq!(screen.selected(), None);
    }
}
