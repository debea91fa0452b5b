//! The parts of Slurm's configuration that a launcher in a step depends on: its environment does not contain them.

use std::fs;
use std::path::PathBuf;
use std::time::Duration;

/// Paths of the configuration besides that in `SLURM_CONF`: the usual one, and the one where slurmd keeps what it
/// was sent.
const FILES: [&str; 2] = ["/etc/slurm/slurm.conf", "/run/slurm/conf/slurm.conf"];
/// Slurm's default of `KillWait`.
const KILL_WAIT: Duration = Duration::from_secs(30);

/// How Slurm ends and signals steps on this node.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct SlurmConf {
    /// A signal to a step is sent to all processes of its tasks, including ranks. With cgroups, as at most
    /// sites, only the process that Slurm itself has started gets it: the launcher.
    pub(super) signals_all: bool,
    /// How long processes that were asked to end have before Slurm kills them.
    pub kill_wait: Duration,
}

impl SlurmConf {
    /// Reads the configuration of the Slurm whose step this process is in; `None` outside of a step.
    #[must_use]
    pub fn here() -> Option<Self> {
        let given = |name: &str| std::env::var_os(name).filter(|value| !value.is_empty());
        given("SLURM_STEP_ID")?;
        let named = given("SLURM_CONF").map(PathBuf::from);
        let mut files = named.into_iter().chain(FILES.map(PathBuf::from));
        let text = files.find_map(|path| fs::read_to_string(path).ok());
        Some(Self::read(&text.unwrap_or_default()))
    }

    fn read(text: &str) -> Self {
        let value = |name: &str| {
            let lines = text.lines().rev();
            let mut pairs = lines.filter_map(|line| line.split('#').next()?.split_once('='));
            let found = pairs.find(|(key, _)| key.trim().eq_ignore_ascii_case(name));
            found.map(|(_, value)| value.trim().to_ascii_lowercase())
        };
        let tracker = value("ProctrackType");
        let signals_all = |tracker: &str| {
            ["linuxproc", "pgid"].contains(&tracker.trim_start_matches("proctrack/"))
        };
        let kill_wait = value("KillWait").and_then(|seconds| seconds.parse::<u16>().ok());
        Self {
            signals_all: tracker.as_deref().is_some_and(signals_all),
            kill_wait: kill_wait.map_or(KILL_WAIT, |seconds| Duration::from_secs(seconds.into())),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// run-4.
    #[test]
    fn missing_settings_have_slurms_defaults() {
        for (text, signals_all, seconds) in [
            ("", false, 30),
            ("ProctrackType=proctrack/cgroup\nKillWait=120\n", false, 120),
            (
                "killwait = 5 # soon\nproctracktype = proctrack/linuxproc\n",
                true,
                5,
            ),
            ("ProctrackType=proctrack/pgid\n", true, 30),
            ("#ProctrackType=proctrack/pgid\nKillWait=soon\n", false, 30),
        ] {
            let read = SlurmConf::read(text);
            assert_eq!(
                (read.signals_all, read.kill_wait.as_secs()),
                (signals_all, seconds),
                "{text}"
            );
        }
    }
}
