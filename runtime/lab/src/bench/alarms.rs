//! False alarms, told with what is known of them: a count alone explains nothing.
//!
//! A group looks for them whenever one of its faults is over, while the members still hold the
//! evidence, and asks the first who raised one why.

use super::cost;
use super::member::{Lines, held};
use std::collections::BTreeMap;
use std::fmt::Write as _;
use std::path::Path;

/// What one process has said, and how much of it was looked at.
pub(super) struct Said {
    pub(super) by: String,
    pub(super) lines: Lines,
    pub(super) looked_at: usize,
}

impl Said {
    pub(super) fn new(by: &str, lines: Lines) -> Self {
        Self {
            by: by.to_owned(),
            lines,
            looked_at: 0,
        }
    }
}

/// All that was falsely said of one member in one word.
pub(super) struct Alarm {
    word: &'static str,
    about: String,
    first_by: String,
    first_ns: u64,
    last_ns: u64,
    times: usize,
}

impl Alarm {
    /// What it is, and what the first who raised it and its subject say of it.
    pub(super) fn tell(&self, directory: &Path, fault: &str) -> String {
        let (word, about, by) = (self.word, &self.about, &self.first_by);
        let mut text = format!(
            "false: {word} of {about}, {} times within {:.1} ms, first by {by} at {} ns; {fault}\n",
            self.times,
            (self.last_ns - self.first_ns) as f64 / 1e6,
            self.first_ns,
        );
        text += &cost::story(directory, by, about).unwrap_or_default();
        for name in [about, by] {
            if let Some(counters) = cost::lateness(directory, name) {
                let _ = writeln!(text, "{name}: {counters}");
            }
        }
        text
    }
}

/// The false ones among what was said since the last look.
pub(super) fn new_alarms(
    said: &mut [Said],
    is_excused: impl Fn(&str, &str, u64) -> bool,
) -> Vec<Alarm> {
    let mut alarms: BTreeMap<(&str, String), Alarm> = BTreeMap::new();
    for one in said {
        let lines = held(&one.lines);
        for line in lines.iter().skip(one.looked_at) {
            let words = ["DOWN", "SUSPECT"];
            let Some(word) = words.into_iter().find(|word| *word == line.word) else {
                continue;
            };
            if is_excused(&one.by, &line.name, line.at_ns) {
                continue;
            }
            let alarm = alarms
                .entry((word, line.name.clone()))
                .or_insert_with(|| Alarm {
                    word,
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
        one.looked_at = lines.len();
    }
    alarms.into_values().collect()
}

#[cfg(test)]
mod tests {
    use super::super::member::Line;
    use super::*;
    use std::sync::{Arc, Mutex};

    #[test]
    fn an_alarm_is_told_once_with_who_was_first_and_an_excused_one_never() {
        let line = |word: &str, name: &str, at_ns| Line {
            word: word.into(),
            name: name.into(),
            at_ns,
        };
        let n1 = vec![line("DOWN", "n3", 2_000_000), line("DOWN", "n4", 50)];
        let n2 = vec![line("UP", "n3", 1), line("DOWN", "n3", 1_000_000)];
        let lines = |lines| Arc::new(Mutex::new(lines));
        let mut said = [Said::new("n1", lines(n1)), Said::new("n2", lines(n2))];
        let excused = |_: &str, about: &str, _: u64| about == "n4";
        let alarms = new_alarms(&mut said, excused);
        assert_eq!(alarms.len(), 1);
        let text = alarms[0].tell(Path::new("/nonexistent"), "no fault");
        assert_eq!(
            text,
            "false: DOWN of n3, 2 times within 1.0 ms, first by n2 at 1000000 ns; no fault\n"
        );
        assert!(new_alarms(&mut said, excused).is_empty());
    }
}
