//! What the loss of a rank or node does to the job (run-4): the job goes on if its MPI is fault tolerant, and ends
//! if its MPI would wait for the lost rank for ever.
//!
//! The MPI is recognized when a rank connects to the PMIx server: by then its process has loaded MPI, whatever has
//! started it (a script, `timeout 20 ./app`).

use std::io::Read;
use std::time::{Duration, Instant};

use super::exit_handling::FENCES_OF_OPEN_MPI_4;
use super::layout::RANKS_OF_NODE_MAX;
use super::node::{Launcher, push_within};
use muster_pmix::server::Done;
use muster_sys::process::descendants;

/// Most bytes that are read of a process's memory maps, and of its environment.
const READ_MAX: u64 = 1 << 20;
/// Most descendants of a rank that are examined.
const DESCENDANTS_MAX: usize = 64;
/// The first libopen-pal with fault tolerance: that of Open MPI 5.
const OPEN_PAL_MIN: u32 = 80;
/// The variable that turns fault tolerance on or off.
const SWITCH: &str = "OMPI_MCA_mpi_ft_enable";
/// The status of a job that ends because a node was lost.
const NODE_LOST: u8 = 137;
/// How long an abort waits for the report of a lost rank or node: the loss may have closed the connection for which
/// MPI aborts. The aborting rank waits as long, so that nothing follows from the abort meanwhile.
const CAUSE_WAIT: Duration = Duration::from_millis(300);

/// The effect of a loss on the job.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum OnLoss {
    /// It ends the job.
    Abort,
    /// The other ranks go on.
    Continue,
}

impl std::str::FromStr for OnLoss {
    type Err = String;

    fn from_str(word: &str) -> Result<Self, String> {
        match word {
            "abort" => Ok(Self::Abort),
            "continue" => Ok(Self::Continue),
            _ => Err("unknown value; write abort or continue".into()),
        }
    }
}

/// An abort of the job that ranks of this node have requested.
pub(super) struct Aborting {
    /// When it takes effect.
    until: Instant,
    status: u8,
    why: String,
    /// The ranks that have called for it.
    waiting: Vec<Done>,
}

/// The MPI of the ranks, as far as losses depend on it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Mpi {
    /// Open MPI 5 or later, with fault tolerance on.
    Tolerant,
    /// The same, with fault tolerance off.
    SwitchedOff,
    /// Open MPI before 5, which is not fault tolerant.
    OpenMpi4,
    /// Another MPI, which is not known to be fault tolerant.
    Intolerant,
    /// No MPI is found: there is none, or it is linked statically.
    NotFound,
}

impl Mpi {
    /// Returns the MPI of the process or of one of its descendants.
    pub(super) fn of(pid: u32, file: &str) -> Self {
        let below = descendants(pid).into_iter().take(DESCENDANTS_MAX);
        let mut all = std::iter::once(pid).chain(below);
        let found = all.find_map(|pid| {
            let maps = read(pid, "maps")?;
            Self::read(&maps, &read(pid, "environ").unwrap_or_default(), file)
        });
        found.unwrap_or(Self::NotFound)
    }

    /// Recognizes the MPI from the memory maps, the environment, and the user's parameter file.
    fn read(maps: &str, environment: &str, file: &str) -> Option<Self> {
        let libraries = || {
            let paths = maps.lines().filter_map(|line| line.rsplit('/').next());
            paths.filter(|name| name.contains(".so"))
        };
        let release = |name: &str| {
            let rest = name.strip_prefix("libopen-pal.so.")?;
            rest.split('.').next()?.parse::<u32>().ok()
        };
        if libraries()
            .filter_map(release)
            .any(|number| number >= OPEN_PAL_MIN)
        {
            return Some(match is_on(environment, file) {
                true => Self::Tolerant,
                false => Self::SwitchedOff,
            });
        }
        if libraries().any(|name| name.starts_with("libopen-rte.")) {
            return Some(Self::OpenMpi4);
        }
        let is_mpi = |name: &str| {
            ["libmpi.", "libmpich", "libmpi_cray"]
                .iter()
                .any(|beginning| name.starts_with(beginning))
        };
        libraries().any(is_mpi).then_some(Self::Intolerant)
    }

    fn description(self) -> &'static str {
        match self {
            Self::Tolerant => "its MPI has fault tolerance",
            Self::SwitchedOff => "fault tolerance of its MPI is off (OMPI_MCA_mpi_ft_enable)",
            Self::OpenMpi4 | Self::Intolerant => "its MPI is not known to have fault tolerance",
            Self::NotFound => "no MPI with fault tolerance is seen in it",
        }
    }
}

/// Whether Open MPI's fault tolerance is turned on: by the environment, else by the user's file.
fn is_on(environment: &str, file: &str) -> bool {
    let given = environment
        .split('\0')
        .filter_map(|one| one.split_once('='))
        .find(|(name, _)| *name == SWITCH);
    let lines = file.lines().filter_map(|line| line.split_once('='));
    let in_file = || {
        let mut lines = lines.map(|(name, value)| (name.trim(), value.trim()));
        lines.find(|(name, _)| SWITCH.strip_prefix("OMPI_MCA_") == Some(name))
    };
    given.or_else(in_file).is_some_and(|(_, value)| {
        let value = value.trim().to_ascii_lowercase();
        match value.parse::<i64>() {
            Ok(number) => number != 0,
            Err(_) => ["true", "t", "yes", "y", "enabled", "on"].contains(&value.as_str()),
        }
    })
}

fn read(pid: u32, what: &str) -> Option<String> {
    let mut bytes = Vec::new();
    let file = std::fs::File::open(format!("/proc/{pid}/{what}")).ok()?;
    file.take(READ_MAX).read_to_end(&mut bytes).ok()?;
    Some(String::from_utf8_lossy(&bytes).into_owned())
}

impl Launcher {
    /// Returns why a loss ends the job, if it does. If no rank has connected to PMIx, no rank waits for another
    /// there.
    fn why_losses_end(&self) -> Option<&'static str> {
        match (self.plan.on_loss, self.ranks.mpi()) {
            (Some(OnLoss::Continue), _) | (None, None | Some(Mpi::Tolerant)) => None,
            (Some(OnLoss::Abort), _) => Some("--on-loss=abort"),
            (None, Some(mpi)) => Some(mpi.description()),
        }
    }

    /// A rank has connected to PMIx, and this MPI was found in it. Prints the effect of a loss if --verbose.
    pub(super) fn note_mpi(&mut self, mpi: Mpi) {
        if mpi == Mpi::OpenMpi4 {
            self.fences_of_init = FENCES_OF_OPEN_MPI_4;
        }
        if self.plan.verbose {
            let why = self.why_losses_end();
            let effect = why.map_or("does not end", |_| "ends");
            let why = match self.plan.on_loss {
                Some(OnLoss::Continue) => "--on-loss=continue",
                _ => why.unwrap_or_else(|| mpi.description()),
            };
            self.print(&format!(
                "the loss of a rank or node {effect} the job, since {why}"
            ));
        }
    }

    /// A rank has called PMIx_Abort. If losses end the job, its MPI may have called it because of a loss.
    pub(super) fn take_abort(&mut self, rank: u32, status: i32, message: &str, answer: Done) {
        let status = ((status & 0xff) as u8).max(1);
        let why = format!("rank {rank} on {} aborted the job: {message}", self.name());
        let why = why.trim_end_matches([':', ' ', '\n']);
        if self.node_status.abort.is_some() || self.why_losses_end().is_none() {
            answer.succeed();
            return self.abort(status, why);
        }
        let aborting = self.aborting.get_or_insert_with(|| Aborting {
            until: Instant::now() + CAUSE_WAIT,
            status,
            why: why.into(),
            waiting: Vec::new(),
        });
        let most = RANKS_OF_NODE_MAX as usize;
        if let Err(answer) = push_within(&mut aborting.waiting, answer, most) {
            answer.succeed();
        }
    }

    /// Carries out a requested abort when it is due, unless something else has ended the job.
    pub(super) fn abort_when_due(&mut self) {
        let is_over = self.node_status.abort.is_some();
        let due = |one: &mut Aborting| is_over || one.until <= Instant::now();
        if let Some(one) = self.aborting.take_if(due) {
            one.waiting.into_iter().for_each(Done::succeed);
            self.abort(one.status, &one.why);
        }
    }

    /// Ends a job that cannot survive its losses. The loss of a rank is reported by its launcher, that of a
    /// node by the lowest node that is left.
    pub(super) fn check_losses(&mut self) {
        let Some(why) = self.why_losses_end() else {
            return;
        };
        if self.node_status.abort.is_some() || self.is_orphan {
            return;
        }
        // No rank waits for one that never entered MPI. With --on-loss it counts as a loss if its status is
        // not 0.
        let all = self.plan.on_loss.is_some();
        let mut ended = self.node_status.ended.iter();
        let lost = ended.find(|one| one.is_lost() || all && !one.connected && one.status != 0);
        if let Some(lost) = lost {
            let (rank, status) = (lost.rank, lost.status);
            let why = format!(
                "the job is ended, since rank {rank} on {} ended with status {status} without MPI_Finalize and {why}; \
                 --on-loss=continue lets the others go on",
                self.name()
            );
            return self.abort(status.max(1), &why);
        }
        let gone = self.peers.gone().iter().copied();
        let mut gone = gone.filter(|node| {
            self.peers
                .node_status(*node)
                .is_none_or(|node_status| !node_status.done)
        });
        let first_left = (0..=self.own).find(|node| !self.peers.gone().contains(node));
        if let Some(node) = gone.next().filter(|_| first_left == Some(self.own)) {
            let node = self.plan.layout.name(node);
            let why = format!(
                "the job is ended, since {node} was lost and {why}; --on-loss=continue lets the others go on"
            );
            self.abort(NODE_LOST, &why);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// run-4.
    #[test]
    fn an_mpi_is_recognized_by_its_libraries_and_settings() {
        let maps = |names: &[&str]| {
            let line = |name: &&str| format!("7f00-7f01 r-xp 0 08:01 12   /usr/lib/{name}\n");
            names.iter().map(line).collect::<String>()
        };
        let five = maps(&["libc.so.6", "libmpi.so.40.40.8", "libopen-pal.so.80.0.6"]);
        let four = maps(&[
            "libmpi.so.40.30.4",
            "libopen-rte.so.40",
            "libopen-pal.so.40.30.2",
        ]);
        let on = "A=1\0OMPI_MCA_mpi_ft_enable=1\0";
        let off = "OMPI_MCA_mpi_ft_enable=0\0B=2\0";
        for (maps, environment, file, found) in [
            (&five, on, "", Some(Mpi::Tolerant)),
            (&five, off, "mpi_ft_enable = 1", Some(Mpi::SwitchedOff)),
            (
                &five,
                "",
                "# x\n mpi_ft_enable = true\n",
                Some(Mpi::Tolerant),
            ),
            (&five, "", "mpi_ft_enable = false", Some(Mpi::SwitchedOff)),
            (&five, "", "", Some(Mpi::SwitchedOff)),
            (&four, on, "", Some(Mpi::OpenMpi4)),
            (&maps(&["libmpich.so.12"]), on, "", Some(Mpi::Intolerant)),
            (&maps(&["libpmix.so.2", "libmpirical.txt"]), on, "", None),
        ] {
            assert_eq!(Mpi::read(maps, environment, file), found, "{maps}");
        }
    }
}
