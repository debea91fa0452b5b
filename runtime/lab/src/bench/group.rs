//! `Group` is a group of members under measurement: the running members, the absences that justify a DOWN, and the
//! output.
//!
//! Every DOWN that a member printed is compared with the list of absences. A DOWN that matches none is false. No result
//! is averaged away: a member that did not print what it must is counted as missing.

use super::alarms::{Output, new_alarms};
use super::figures::{Count, Figures, Metric};
use super::member::{GroupOptions, Member, Network, System, lock};
use super::requests;
use super::wiring::Wiring;
use muster_terminal::CliError;
use muster_terminal::process::{is_interrupted, monotonic_ns, wait_until};
use rustix::process::Signal;
use std::time::Duration;

const BOOT_DEADLINE: Duration = Duration::from_secs(120);
/// Time limit for the report of a fault. All systems are faster; a member that exceeds it counts as missing.
const EVENT_DEADLINE: Duration = Duration::from_secs(30);

/// A time in which a member may be reported DOWN.
struct Absence {
    name: String,
    from_ns: u64,
    /// None while the absence lasts.
    until_ns: Option<u64>,
    /// The member is cut off: it does not hear the others either, and may report them DOWN.
    is_cut: bool,
}

impl Absence {
    fn covers(&self, at_ns: u64) -> bool {
        self.from_ns <= at_ns && self.until_ns.is_none_or(|until_ns| at_ns <= until_ns)
    }
}

/// A group of members of one system.
pub(super) struct Group<'a> {
    system: &'a System,
    options: &'a GroupOptions,
    pub(super) members: Vec<Member>,
    wiring: Option<Wiring>,
    absences: Vec<Absence>,
    /// The output of all members, including ended ones.
    outputs: Vec<Output>,
    pub(super) figures: Figures,
}

impl<'a> Group<'a> {
    /// Starts all members and waits until each sees all others.
    pub(super) fn boot(
        system: &'a System,
        options: &'a GroupOptions,
        wiring: Option<Wiring>,
    ) -> Result<Self, CliError> {
        let mut group = Self {
            system,
            options,
            members: Vec::new(),
            wiring,
            absences: Vec::new(),
            outputs: Vec::new(),
            figures: Figures::default(),
        };
        for index in 1..=options.members {
            let member = Member::start(system, options, index)?;
            group
                .outputs
                .push(Output::new(&member.name, member.lines()));
            group.members.push(member);
        }
        if let Some(wiring) = &group.wiring {
            wiring.connect(&mut group.members, options)?;
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
        &self.options.directory
    }

    /// Kills members with SIGKILL at once. When all others know, starts them again and waits until all others know that
    /// too. The times of the deaths are added to `killed`.
    pub(super) fn kill(&mut self, victims: &[usize], killed: Metric) -> Result<(), CliError> {
        let absent: Vec<(usize, String, u64)> = victims
            .iter()
            .map(|at| {
                let (name, from_ns) = self.begin_absence(*at, false);
                self.members[*at].signal(Signal::KILL);
                (*at, name, from_ns)
            })
            .collect();
        for (_, name, from_ns) in &absent {
            self.await_all(victims, "DOWN", name, *from_ns, killed);
        }
        self.bring_back(victims, &absent)
    }

    /// Lets a member leave with SIGTERM. When all others know, starts it again and waits until all others know that
    /// too.
    pub(super) fn leave(&mut self, at: usize) -> Result<(), CliError> {
        let (name, from_ns) = self.begin_absence(at, false);
        self.members[at].signal(Signal::TERM);
        self.await_all(&[at], "LEFT", &name, from_ns, Metric::Left);
        self.bring_back(&[at], &[(at, name, from_ns)])
    }

    /// Starts members again that have ended, each with its name and the time of its end, and waits until all others
    /// know.
    fn bring_back(
        &mut self,
        victims: &[usize],
        absent: &[(usize, String, u64)],
    ) -> Result<(), CliError> {
        for at in victims {
            self.restart(*at)?;
        }
        for (at, name, _) in absent {
            let started_ns = self.members[*at].started_ns;
            let ready_ns = self.members[*at].ready_ns().unwrap_or(started_ns);
            self.await_all(victims, "UP", name, ready_ns, Metric::Joined);
        }
        // A member that does not know another one yet cannot report its loss.
        let others = self.members.len() - 1;
        let is_full = |at: &usize| self.members[*at].full_ns(others).is_some();
        wait_until(EVENT_DEADLINE, || victims.iter().all(is_full));
        let lacking = victims.iter().filter(|at| !is_full(at)).count();
        self.figures.count(Count::NotBack, lacking);
        for (at, name, _) in absent {
            self.end_absence(*at, name)?;
        }
        Ok(())
    }

    /// Stops a member with SIGSTOP. When all others know, and not before `hold` is over, continues it and waits until
    /// all others see it again.
    pub(super) fn stop(&mut self, at: usize, hold: Duration) -> Result<(), CliError> {
        let version = self.version_seen(at);
        let (name, from_ns) = self.begin_absence(at, false);
        self.members[at].signal(Signal::STOP);
        self.await_all(&[at], "DOWN", &name, from_ns, Metric::Silent);
        wait_until(hold.saturating_sub(elapsed(from_ns)), || false);
        let resumed_ns = monotonic_ns();
        self.members[at].signal(Signal::CONT);
        let metric = match hold.is_zero() {
            true => Metric::Resumed,
            false => Metric::Paused,
        };
        self.await_all(&[at], "UP", &name, resumed_ns, metric);
        self.end_absence(at, &name)?;
        let kept = version.is_some() && self.version_seen(at) <= version;
        self.figures.count(Count::VersionKept, usize::from(kept));
        Ok(())
    }

    /// Cuts all rails of a member. When all others know, restores them.
    pub(super) fn cut(&mut self, at: usize) -> Result<(), CliError> {
        let (name, from_ns) = self.begin_absence(at, true);
        let index = self.members[at].index;
        if let Some(wiring) = &mut self.wiring {
            wiring.cut(index);
        }
        self.await_all(&[at], "DOWN", &name, from_ns, Metric::Cut);
        let healed_ns = monotonic_ns();
        if let Some(wiring) = &mut self.wiring {
            wiring.heal(index);
        }
        self.await_all(&[at], "UP", &name, healed_ns, Metric::Healed);
        self.end_absence(at, &name)
    }

    /// The version of this member in the view of the next member, if that can be requested.
    fn version_seen(&self, at: usize) -> Option<(u64, u64)> {
        let witness = &self.members[(at + 1) % self.members.len()].name;
        requests::version_seen(self.directory(), witness, &self.members[at].name)
    }

    fn begin_absence(&mut self, at: usize, is_cut: bool) -> (String, u64) {
        let (name, from_ns) = (self.members[at].name.clone(), monotonic_ns());
        self.absences.push(Absence {
            name: name.clone(),
            from_ns,
            until_ns: None,
            is_cut,
        });
        (name, from_ns)
    }

    /// Ends an absence, when all others have noticed the return. If some have not, the member is killed and started
    /// again without measurement: the loss is counted, and the next fault requires a complete group.
    fn end_absence(&mut self, at: usize, name: &str) -> Result<(), CliError> {
        if is_interrupted() {
            return Err(interrupted());
        }
        if !self.is_seen(at, name) {
            eprintln!(
                "{}: not every member accepted {name} again; it is restarted",
                self.system.name
            );
            self.restart(at)?;
            if !wait_until(EVENT_DEADLINE, || self.is_seen(at, name)) {
                let what = format!("bench: {}", self.system.name);
                let why = format!("not every member sees {name}, which was restarted");
                return Err(CliError::timed_out(what, why));
            }
        }
        if let Some(absence) = self.absences.iter_mut().rev().find(|a| a.name == name) {
            absence.until_ns = Some(monotonic_ns());
        }
        self.print_alarms();
        Ok(())
    }

    /// Whether the last event that all others printed about this member is UP.
    fn is_seen(&self, at: usize, name: &str) -> bool {
        let mut others = self.members.iter().enumerate().filter(|(o, _)| *o != at);
        others.all(|(_, member)| member.last_event(name).as_deref() == Some("UP"))
    }

    /// Starts a new process for a member, connected and ready. The old process is killed if it still runs.
    fn restart(&mut self, at: usize) -> Result<(), CliError> {
        let (index, name) = (self.members[at].index, self.members[at].name.clone());
        self.members[at].end();
        let mut restarted = Member::start(self.system, self.options, index)?;
        if let Some(wiring) = &self.wiring {
            wiring.connect(std::slice::from_mut(&mut restarted), self.options)?;
        }
        self.outputs.push(Output::new(&name, restarted.lines()));
        self.members[at] = restarted;
        match wait_until(EVENT_DEADLINE, || self.members[at].ready_ns().is_some()) {
            true => Ok(()),
            false => Err(self.ended_early(&name)),
        }
    }

    /// Waits until every member that is not absent has printed this event about one that is, since `from_ns`.
    fn await_all(
        &mut self,
        absent: &[usize],
        event: &str,
        name: &str,
        from_ns: u64,
        metric: Metric,
    ) {
        let others: Vec<&Member> = self
            .members
            .iter()
            .enumerate()
            .filter(|(other, _)| !absent.contains(other))
            .map(|(_, member)| member)
            .collect();
        let first_ns = |member: &&Member| member.first_ns(event, name, from_ns);
        wait_until(EVENT_DEADLINE, || {
            others.iter().all(|m| first_ns(m).is_some())
        });
        let times: Vec<u64> = others.iter().filter_map(first_ns).collect();
        let missing = if is_interrupted() {
            0
        } else {
            others.len() - times.len()
        };
        let counted = if event == "UP" {
            Count::NotBack
        } else {
            Count::Missing
        };
        self.figures.count(counted, missing);
        for at_ns in times {
            self.figures.add_ns(metric, from_ns, at_ns);
        }
        self.figures
            .count(Count::Faults, usize::from(event == "DOWN"));
    }

    fn ended_early(&self, name: &str) -> CliError {
        if is_interrupted() {
            return interrupted();
        }
        let what = format!("bench: {}", self.system.name);
        CliError::timed_out(what, format!("{name} was started again and is not ready"))
    }

    /// Ends the group and counts the false alarms.
    pub(super) fn end(mut self) -> Figures {
        self.print_alarms();
        let mut figures = std::mem::take(&mut self.figures);
        let (downs, suspected) = self.false_alarms();
        figures.count(Count::FalseDowns, downs);
        figures.count(Count::Suspected, suspected);
        let directory = self.directory();
        let demotions = |member: &Member| requests::demotions(directory, &member.name);
        let demoted: u64 = self.members.iter().map(demotions).sum();
        figures.count(Count::Demoted, demoted as usize);
        figures
    }

    /// The number of DOWN and SUSPECT lines about members that were present.
    pub(super) fn false_alarms(&self) -> (usize, usize) {
        let count = |event: &str| {
            let of = |output: &Output| {
                let lines = lock(&output.lines);
                let found = lines.iter().filter(|line| line.event == event);
                found
                    .filter(|line| !is_excused(&self.absences, &output.by, &line.name, line.at_ns))
                    .count()
            };
            self.outputs.iter().map(of).sum()
        };
        (count("DOWN"), count("SUSPECT"))
    }

    /// Prints each new false alarm with the evidence.
    fn print_alarms(&mut self) {
        let absences = &self.absences;
        let excused = |by: &str, about: &str, at_ns: u64| is_excused(absences, by, about, at_ns);
        let fault = match absences.last() {
            Some(absence) => format!(
                "the last fault was that of {}, from {} ns",
                absence.name, absence.from_ns
            ),
            None => "no fault yet".into(),
        };
        for alarm in new_alarms(&mut self.outputs, excused) {
            let text = alarm.describe(&self.options.directory, &fault);
            eprint!("{}: {text}", self.system.name);
        }
    }

    pub(super) fn network(&self) -> Network {
        self.options.network
    }
}

/// Whether a member may report this at this time.
fn is_excused(absences: &[Absence], by: &str, about: &str, at_ns: u64) -> bool {
    absences.iter().any(|absence| {
        let concerned = absence.name == about || (absence.is_cut && absence.name == by);
        concerned && absence.covers(at_ns)
    })
}

/// The error of a bench that was interrupted.
pub(super) fn interrupted() -> CliError {
    CliError::new("bench", "interrupted; everything that it started has ended").exit_code(130)
}

fn elapsed(from_ns: u64) -> Duration {
    Duration::from_nanos(monotonic_ns().saturating_sub(from_ns))
}
