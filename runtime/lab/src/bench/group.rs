//! A group of members under measurement: who runs, who is rightly called down, what was said.
//!
//! Every DOWN that anybody ever printed is held against the list of absences: one that matches
//! none was false. Nothing is averaged away: who never said what it should have is counted as
//! missing.

use super::alarms::{Said, new_alarms};
use super::cost;
use super::figures::{Count, Figures, Metric};
use super::member::{Home, Member, System, Terms, held};
use super::wiring::Wiring;
use muster_terminal::CliError;
use muster_terminal::process::{is_interrupted, monotonic_ns, wait_until};
use rustix::process::Signal;
use std::time::Duration;

const BOOT_DEADLINE: Duration = Duration::from_secs(120);
/// No member of any system takes this long to tell of a fault; who has not by then never does.
const TOLD_DEADLINE: Duration = Duration::from_secs(30);

/// A time in which a member may be called down.
struct Absence {
    name: String,
    from_ns: u64,
    /// None while it lasts.
    until_ns: Option<u64>,
    /// It cannot hear the others either, and may call them down.
    is_cut: bool,
}

impl Absence {
    fn covers(&self, at_ns: u64) -> bool {
        self.from_ns <= at_ns && self.until_ns.is_none_or(|until_ns| at_ns <= until_ns)
    }
}

/// A group.
pub(super) struct Group<'a> {
    system: &'a System,
    terms: &'a Terms,
    pub(super) members: Vec<Member>,
    wiring: Option<Wiring>,
    absences: Vec<Absence>,
    /// Everything that was said, by whom, members that have ended included.
    said: Vec<Said>,
    pub(super) figures: Figures,
}

impl<'a> Group<'a> {
    /// Starts all members and waits until each sees all others.
    pub(super) fn boot(
        system: &'a System,
        terms: &'a Terms,
        wiring: Option<Wiring>,
    ) -> Result<Self, CliError> {
        let mut group = Self {
            system,
            terms,
            members: Vec::new(),
            wiring,
            absences: Vec::new(),
            said: Vec::new(),
            figures: Figures::default(),
        };
        for index in 1..=terms.members {
            let member = Member::start(system, terms, index)?;
            group.said.push(Said::new(&member.name, member.lines()));
            group.members.push(member);
        }
        if let Some(wiring) = &group.wiring {
            wiring.plug(&mut group.members, terms)?;
        }
        let others = group.members.len() - 1;
        let full = |member: &Member| member.full_ns(others).is_some();
        if !wait_until(BOOT_DEADLINE, || group.members.iter().all(full)) {
            return Err(group.boot_failure(others));
        }
        let last =
            |times: &mut dyn Iterator<Item = Option<u64>>| times.flatten().max().unwrap_or(0);
        let ready_ns = last(&mut group.members.iter().map(Member::ready_ns));
        let full_ns = last(&mut group.members.iter().map(|member| member.full_ns(others)));
        group.figures.add_ns(Metric::Boot, ready_ns, full_ns);
        for member in &group.members {
            if let Some(ready_ns) = member.ready_ns() {
                group
                    .figures
                    .add_ns(Metric::Load, member.started_ns, ready_ns);
            }
        }
        Ok(group)
    }

    fn boot_failure(&self, others: usize) -> CliError {
        if is_interrupted() {
            return interrupted();
        }
        let lacking: Vec<&str> = self
            .members
            .iter()
            .filter(|member| member.full_ns(others).is_none())
            .map(|member| member.name.as_str())
            .collect();
        let why = format!(
            "not every member saw all {others} others: {}",
            lacking.join(" ")
        );
        CliError::timed_out(format!("bench: {}", self.system.name), why)
    }

    pub(super) fn directory(&self) -> &std::path::Path {
        &self.terms.directory
    }

    /// SIGKILL; when all others know, the same member again, until all others know that too.
    pub(super) fn kill(&mut self, at: usize) -> Result<(), CliError> {
        let (name, from_ns) = self.leave(at, false);
        self.members[at].signal(Signal::KILL);
        self.await_all(at, "DOWN", &name, from_ns, Metric::Killed);
        self.restart(at)?;
        let started_ns = self.members[at].started_ns;
        let ready_ns = self.members[at].ready_ns().unwrap_or(started_ns);
        self.await_all(at, "UP", &name, ready_ns, Metric::Joined);
        self.come_back(at, &name)
    }

    /// SIGSTOP; when all others know, and not before `hold` is over, SIGCONT, until all others
    /// see it again.
    pub(super) fn stop(&mut self, at: usize, hold: Duration) -> Result<(), CliError> {
        let version = self.version_seen(at);
        let (name, from_ns) = self.leave(at, false);
        self.members[at].signal(Signal::STOP);
        self.await_all(at, "DOWN", &name, from_ns, Metric::Silent);
        wait_until(hold.saturating_sub(elapsed(from_ns)), || false);
        let resumed_ns = monotonic_ns();
        self.members[at].signal(Signal::CONT);
        let metric = match hold.is_zero() {
            true => Metric::Resumed,
            false => Metric::Paused,
        };
        self.await_all(at, "UP", &name, resumed_ns, metric);
        self.come_back(at, &name)?;
        let kept = version.is_some() && self.version_seen(at) <= version;
        self.figures.count(Count::VersionKept, usize::from(kept));
        Ok(())
    }

    /// Cuts all rails of a member; when all others know, heals them.
    pub(super) fn cut(&mut self, at: usize) -> Result<(), CliError> {
        let (name, from_ns) = self.leave(at, true);
        let index = self.members[at].index;
        if let Some(wiring) = &mut self.wiring {
            wiring.cut(index);
        }
        self.await_all(at, "DOWN", &name, from_ns, Metric::Cut);
        let healed_ns = monotonic_ns();
        if let Some(wiring) = &mut self.wiring {
            wiring.heal(index);
        }
        self.await_all(at, "UP", &name, healed_ns, Metric::Healed);
        self.come_back(at, &name)
    }

    /// The version of this member as the next one knows it, if that can be asked.
    fn version_seen(&self, at: usize) -> Option<(u64, u64)> {
        let witness = &self.members[(at + 1) % self.members.len()].name;
        cost::version_seen(self.directory(), witness, &self.members[at].name)
    }

    fn leave(&mut self, at: usize, is_cut: bool) -> (String, u64) {
        let (name, from_ns) = (self.members[at].name.clone(), monotonic_ns());
        self.absences.push(Absence {
            name: name.clone(),
            from_ns,
            until_ns: None,
            is_cut,
        });
        (name, from_ns)
    }

    /// The absence is over when all others have noticed. One that some do not take back is ended
    /// and started anew, unmeasured: it was counted, and the next fault needs a whole group.
    fn come_back(&mut self, at: usize, name: &str) -> Result<(), CliError> {
        if is_interrupted() {
            return Err(interrupted());
        }
        if !self.is_seen(at, name) {
            eprintln!(
                "{}: not every member took {name} back; it is started anew",
                self.system.name
            );
            self.restart(at)?;
            if !wait_until(TOLD_DEADLINE, || self.is_seen(at, name)) {
                let what = format!("bench: {}", self.system.name);
                let why = format!("not every member sees {name}, which was started anew");
                return Err(CliError::timed_out(what, why));
            }
        }
        if let Some(absence) = self.absences.iter_mut().rev().find(|a| a.name == name) {
            absence.until_ns = Some(monotonic_ns());
        }
        self.tell_alarms();
        Ok(())
    }

    /// Whether the last that all others said of it is that it is there.
    fn is_seen(&self, at: usize, name: &str) -> bool {
        let mut others = self.members.iter().enumerate().filter(|(o, _)| *o != at);
        others.all(|(_, member)| member.last_word(name).as_deref() == Some("UP"))
    }

    /// A new process for a member, plugged in and ready. The old one is killed if it still runs.
    fn restart(&mut self, at: usize) -> Result<(), CliError> {
        let (index, name) = (self.members[at].index, self.members[at].name.clone());
        self.members[at].end();
        let mut fresh = Member::start(self.system, self.terms, index)?;
        if let Some(wiring) = &self.wiring {
            wiring.plug(std::slice::from_mut(&mut fresh), self.terms)?;
        }
        self.said.push(Said::new(&name, fresh.lines()));
        self.members[at] = fresh;
        match wait_until(TOLD_DEADLINE, || self.members[at].ready_ns().is_some()) {
            true => Ok(()),
            false => Err(self.ended_early(&name)),
        }
    }

    /// Waits until every member but `at` has said `word` of it since `from_ns`.
    fn await_all(&mut self, at: usize, word: &str, name: &str, from_ns: u64, metric: Metric) {
        let others: Vec<&Member> = self
            .members
            .iter()
            .enumerate()
            .filter(|(other, _)| *other != at)
            .map(|(_, member)| member)
            .collect();
        let told = |member: &&Member| member.told(word, name, from_ns);
        wait_until(TOLD_DEADLINE, || others.iter().all(|m| told(m).is_some()));
        let times: Vec<u64> = others.iter().filter_map(told).collect();
        let missing = if is_interrupted() {
            0
        } else {
            others.len() - times.len()
        };
        let counted = if word == "UP" {
            Count::NotBack
        } else {
            Count::Missing
        };
        self.figures.count(counted, missing);
        for at_ns in times {
            self.figures.add_ns(metric, from_ns, at_ns);
        }
        self.figures
            .count(Count::Faults, usize::from(word == "DOWN"));
    }

    fn ended_early(&self, name: &str) -> CliError {
        if is_interrupted() {
            return interrupted();
        }
        let what = format!("bench: {}", self.system.name);
        CliError::timed_out(what, format!("{name} was started again and is not ready"))
    }

    /// Ends the group; what was said falsely is counted.
    pub(super) fn end(mut self) -> Figures {
        self.tell_alarms();
        let mut figures = std::mem::take(&mut self.figures);
        let (downs, suspected) = self.false_words();
        figures.count(Count::FalseDowns, downs);
        figures.count(Count::Suspected, suspected);
        let directory = self.directory();
        let demotions = |member: &Member| cost::demotions(directory, &member.name);
        let demoted: u64 = self.members.iter().map(demotions).sum();
        figures.count(Count::Demoted, demoted as usize);
        figures
    }

    /// DOWN and SUSPECT lines about members that were there.
    pub(super) fn false_words(&self) -> (usize, usize) {
        let count = |word: &str| {
            let of = |said: &Said| {
                let lines = held(&said.lines);
                let found = lines.iter().filter(|line| line.word == word);
                found
                    .filter(|line| !is_excused(&self.absences, &said.by, &line.name, line.at_ns))
                    .count()
            };
            self.said.iter().map(of).sum()
        };
        (count("DOWN"), count("SUSPECT"))
    }

    /// Says of each false alarm since the last time what is known of it.
    fn tell_alarms(&mut self) {
        let absences = &self.absences;
        let excused = |by: &str, about: &str, at_ns: u64| is_excused(absences, by, about, at_ns);
        let fault = match absences.last() {
            Some(absence) => format!(
                "the last fault was that of {}, from {} ns",
                absence.name, absence.from_ns
            ),
            None => "no fault yet".into(),
        };
        for alarm in new_alarms(&mut self.said, excused) {
            let text = alarm.tell(&self.terms.directory, &fault);
            eprint!("{}: {text}", self.system.name);
        }
    }

    pub(super) fn home(&self) -> Home {
        self.terms.home
    }
}

/// Whether somebody may say this at this time.
fn is_excused(absences: &[Absence], by: &str, about: &str, at_ns: u64) -> bool {
    absences.iter().any(|absence| {
        let concerned = absence.name == about || (absence.is_cut && absence.name == by);
        concerned && absence.covers(at_ns)
    })
}

/// What a bench that was asked to end answers.
pub(super) fn interrupted() -> CliError {
    CliError::new("bench", "interrupted; everything that it started has ended").exit_code(130)
}

fn elapsed(from_ns: u64) -> Duration {
    Duration::from_nanos(monotonic_ns().saturating_sub(from_ns))
}
