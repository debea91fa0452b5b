//! Finds false alarms and describes each with the evidence, since a count alone explains nothing.
//!
//! A group checks for them when one of its faults is over, while the members still hold the evidence. The member that
//! raised an alarm first is asked for the reason.

use super::member::{Lines, lock};
use super::requests;
use std::collections::BTreeMap;
use std::fmt::Write as _;
use std::path::Path;

/// The output of one process, and how many of its lines have been checked.
pub(super) struct Output {
    pub(super) by: String,
    pub(super) lines: Lines,
    pub(super) checked: usize,
}

impl Output {
    pub(super) fn new(by: &str, lines: Lines) -> Self {
        Self {
            by: by.to_owned(),
            lines,
            checked: 0,
        }
    }
}

/// All false alarms of one kind about one member.
pub(super) struct Alarm {
    event: &'static str,
    about: String,
    first_by: String,
    first_ns: u64,
    last_ns: u64,
    times: usize,
}

impl Alarm {
    /// Describes the alarm, with what the first reporter and the subject know about it.
    pub(super) fn describe(&self, directory: &Path, fault: &str) -> String {
        let (event, about, by) = (self.event, &self.about, &self.first_by);
        let mut text = format!(
            "false: {event} of {about}, {} times within {:.1} ms, first by {by} at {} ns; {fault}\n",
            self.times,
            (self.last_ns - self.first_ns) as f64 / 1e6,
            self.first_ns,
        );
        text += &requests::explanation(directory, by, about).unwrap_or_default();
        for name in [about, by] {
            if let Some(counters) = requests::lateness(directory, name) {
                let _ = writeln!(text, "{name}: {counters}");
            }
        }
        text
    }
}

/// The false alarms in the lines since the last check.
pub(super) fn new_alarms(
    outputs: &mut [Output],
    is_excused: impl Fn(&str, &str, u64) -> bool,
) -> Vec<Alarm> {
    let mut alarms: BTreeMap<(&str, String), Alarm> = BTreeMap::new();
    for one in outputs {
        let lines = lock(&one.lines);
        for line in lines.iter().skip(one.checked) {
            let alarm_events = ["DOWN", "SUSPECT"];
            let Some(event) = alarm_events.into_iter().find(|event| *event == line.event) else {
                continue;
            };
            if is_excused(&one.by, &line.name, line.at_ns) {
                continue;
            }
            let alarm = alarms
                .entry((event, line.name.clone()))
                .or_insert_with(|| Alarm {
                    event,
                    about: line.name.clone(),
                    first_by: one.by.clone(),
                    first_ns: line.at_ns,
                    last_ns: line.at_ns,
                    times: 0,
                });
            if line.at_ns < alarm.first_ns {
                (alarm.first_by, alarm.first_ns) = (one.by.clone(), line.at_ns);
            }
            alarm.last_ns = alarm.last_ns.max(line.at_ns);
            alarm.times += 1;
        }
        one.checked = lines.len();
    }
    alarms.into_values().collect()
}

#[cfg(test)]
mod tests {
    use super::super::member::Line;
    use super::*;
    use std::sync::{Arc, Mutex};

    #[test]
    fn an_alarm_is_described_once_with_its_first_reporter_and_an_excused_one_never() {
        let line = |event: &str, name: &str, at_ns| Line {
            event: event.into(),
            name: name.into(),
            at_ns,
        };
        let n1 = vec![line("DOWN", "n3", 2_000_000), line("DOWN", "n4", 50)];
        let n2 = vec![line("UP", "n3", 1), line("DOWN", "n3", 1_000_000)];
        let lines = |lines| Arc::new(Mutex::new(lines));
        let mut outputs = [Output::new("n1", lines(n1)), Output::new("n2", lines(n2))];
        let excused = |_: &str, about: &str, _: u64| about == "n4";
        let alarms = new_alarms(&mut outputs, excused);
        assert_eq!(alarms.len(), 1);
        let text = alarms[0].describe(Path::new("/nonexistent"), "no fault");
        assert_eq!(
            text,
            "false: DOWN of n3, 2 times within 1.0 ms, first by n2 at 1000000 ns; no fault\n"
        );
        assert!(new_alarms(&mut outputs, excused).is_empty());
    }
}
