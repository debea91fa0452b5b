//! A Slurm step: its nodes, this launcher's place among them, and what its agents need to find each other (run-2).
//!
//! `srun --mpi=none` starts one launcher on each node and describes the step in its environment.

use std::fs;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use muster_config::{draw_key, leave_key};
use muster_ipc::key_hash;

/// Most names in a list of nodes.
const NODES_MAX: usize = 4096;
/// Ports for agents. The agents of different jobs have different ports, and none that the plugin's jobs use.
const PORTS: std::ops::Range<u32> = 26_000..32_000;
/// Ports of one job's agents, with one to spare.
const PORTS_EACH: u32 = 4;
/// Prefix of the names of the plugin's jobs.
const PLUGIN_PREFIX: &str = "slurm-";
/// Pause between two checks for the key.
const CHECK_INTERVAL: Duration = Duration::from_millis(20);

/// A step, as one of its launchers sees it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Step {
    /// Job and step, as the name of Muster's job.
    pub job: String,
    /// The nodes, in Slurm's order.
    pub nodes: Vec<String>,
    /// The list as Slurm writes it.
    pub list: String,
    /// This node's place in it.
    pub own: usize,
    /// The first port of the job's agents.
    pub port: u32,
}

impl Step {
    /// Reads the step in which `srun` started this process; `None` if it did not. `variable` returns an
    /// environment variable.
    ///
    /// # Errors
    /// The step does not suit a launcher; the error names the option of `srun` to change.
    pub fn read(variable: impl Fn(&str) -> Option<String>) -> Result<Option<Self>, String> {
        let Some(list) = variable("SLURM_STEP_NODELIST") else {
            return Ok(None);
        };
        let number = |name: &str| -> Result<u32, String> {
            let text = variable(name).ok_or_else(|| format!("Slurm has set no {name}"))?;
            text.parse()
                .map_err(|_| format!("{name} is {text:?}, which is no number"))
        };
        if variable("PMIX_NAMESPACE").is_some() || variable("PMI_RANK").is_some() {
            return Err(
                "this step has Slurm's own PMI or PMIx, which would end the step with its first rank; start it with \
                 srun --mpi=none"
                    .into(),
            );
        }
        let nodes = muster_hostlist::expand(&list, NODES_MAX).map_err(|cause| cause.to_string())?;
        let tasks = number("SLURM_STEP_NUM_TASKS")? as usize;
        if tasks != nodes.len() {
            return Err(format!(
                "srun has started {tasks} launchers on {} nodes; start one on each node with \
                 --ntasks-per-node=1, and give the ranks to muster run -n",
                nodes.len()
            ));
        }
        let own = number("SLURM_NODEID")? as usize;
        if own >= nodes.len() {
            return Err(format!(
                "SLURM_NODEID is {own}, but the step has {} nodes",
                nodes.len()
            ));
        }
        let (job, step) = (number("SLURM_JOB_ID")?, number("SLURM_STEP_ID")?);
        let given = variable("MUSTER_JOB");
        if let Some(job) = given.as_ref().filter(|job| job.contains('/')) {
            return Err(format!(
                "MUSTER_JOB is {job:?}; it becomes part of file names, so give one without a slash"
            ));
        }
        let port = match &given {
            Some(job) => port_of(job),
            // Steps and jobs with neighbouring numbers are often on one node and must not share ports.
            None => nth_port(job.wrapping_mul(31).wrapping_add(step)),
        };
        Ok(Some(Self {
            job: given.unwrap_or_else(|| format!("{job}.{step}")),
            nodes,
            list,
            own,
            port,
        }))
    }

    /// Returns the path of the job's key, a file that all nodes see. The first node's launcher creates it; the
    /// others wait for it.
    ///
    /// # Errors
    /// The file cannot be created, or did not appear in time.
    pub fn key(&self, home: &Path, timeout: Duration) -> Result<PathBuf, String> {
        let path = home.join(format!(".muster-run-{}.key", self.job));
        if self.own != 0 {
            let until = Instant::now() + timeout;
            while !is_complete(home, &path) {
                if Instant::now() > until {
                    return Err(format!(
                        "{} has not appeared from {} within {} s; put it on a file system that all nodes share, \
                         or put a key file on each node and name it with MUSTER_KEY_FILE",
                        path.display(),
                        self.nodes[0],
                        timeout.as_secs()
                    ));
                }
                std::thread::sleep(CHECK_INTERVAL);
            }
            return Ok(path);
        }
        // No other process uses the file of this step.
        leave_key(&path, &draw_key()).map_err(|cause| cause.to_string())?;
        Ok(path)
    }
}

/// Whether the key is there. NFS caches for a while that a name was missing, until its directory is opened.
fn is_complete(home: &Path, path: &Path) -> bool {
    drop(fs::File::open(home));
    fs::metadata(path).is_ok_and(|data| data.len() > 64)
}

/// Whether this job is the plugin's: one of its steps may have another step inside, with agents of its own.
pub(crate) fn is_of_the_plugin(job: &str) -> bool {
    job.starts_with(PLUGIN_PREFIX)
}

/// The first port of the agents of a job that has a name and no number.
pub(super) fn port_of(job: &str) -> u32 {
    nth_port((key_hash(job.as_bytes()) >> 32) as u32)
}

fn nth_port(number: u32) -> u32 {
    PORTS.start + number % (PORTS.len() as u32 / PORTS_EACH) * PORTS_EACH
}

#[cfg(test)]
mod tests {
    use super::*;

    fn step(changes: &[(&str, Option<&str>)]) -> Result<Option<Step>, String> {
        let plain = [
            ("SLURM_STEP_NODELIST", "n[1-3],m7"),
            ("SLURM_STEP_NUM_TASKS", "4"),
            ("SLURM_NODEID", "2"),
            ("SLURM_JOB_ID", "4711"),
            ("SLURM_STEP_ID", "3"),
        ];
        Step::read(|name| {
            let changed = changes.iter().find(|(one, _)| *one == name);
            match changed {
                Some((_, value)) => value.map(str::to_owned),
                None => {
                    let known = plain.iter().find(|(one, _)| *one == name);
                    known.map(|(_, value)| (*value).to_owned())
                }
            }
        })
    }

    /// run-2.
    #[test]
    fn a_step_is_read_from_what_srun_sets() {
        let read = step(&[]).unwrap().unwrap();
        assert_eq!(read.nodes, ["n1", "n2", "n3", "m7"]);
        assert_eq!((read.own, read.job.as_str()), (2, "4711.3"));
        assert_eq!(step(&[("SLURM_STEP_NODELIST", None)]), Ok(None));
    }

    /// run-2.
    #[test]
    fn neighbouring_steps_and_jobs_have_different_ports() {
        let ports = (4700..4740).flat_map(|job| (0..31).map(move |step| (job, step)));
        let ports = ports.map(|(job, number): (u32, u32)| {
            let (job, number) = (job.to_string(), number.to_string());
            let changes = [
                ("SLURM_JOB_ID", Some(&*job)),
                ("SLURM_STEP_ID", Some(&*number)),
            ];
            step(&changes).unwrap().unwrap().port
        });
        let mut ports: Vec<u32> = ports.collect();
        ports.sort_unstable();
        assert!(ports[0] >= PORTS.start && ports[ports.len() - 1] + PORTS_EACH <= PORTS.end);
        assert!(ports.windows(2).all(|two| two[1] - two[0] >= PORTS_EACH));
    }

    #[test]
    fn a_name_from_the_user_is_the_jobs() {
        let named = |job| step(&[("MUSTER_JOB", Some(job))]).unwrap().unwrap();
        assert_eq!(
            (&*named("mine").job, &*named("yours").job),
            ("mine", "yours")
        );
        assert_ne!(named("mine").port, named("yours").port);
        assert!(PORTS.contains(&named("mine").port));
        // The plugin's agents use that name and these ports.
    }

    #[test]
    fn an_unsuitable_step_is_refused_with_the_option_to_change() {
        for (name, value, text) in [
            ("PMIX_NAMESPACE", Some("slurm.pmix.1.0"), "--mpi=none"),
            ("SLURM_STEP_NUM_TASKS", Some("8"), "--ntasks-per-node=1"),
            ("SLURM_NODEID", Some("4"), "SLURM_NODEID is 4"),
            ("SLURM_JOB_ID", None, "no SLURM_JOB_ID"),
            ("SLURM_STEP_ID", Some("x"), "no number"),
            ("SLURM_STEP_NODELIST", Some("n[1-"), "n[1-"),
            ("MUSTER_JOB", Some("../mine"), "without a slash"),
        ] {
            let refused = step(&[(name, value)]).unwrap_err();
            assert!(refused.contains(text), "{refused}");
        }
    }

    #[test]
    fn the_first_node_makes_the_key_and_the_others_find_it() {
        let home = tempfile::tempdir().unwrap();
        let other = step(&[]).unwrap().unwrap();
        let first = Step {
            own: 0,
            ..other.clone()
        };
        let late = other.key(home.path(), Duration::ZERO).unwrap_err();
        assert!(
            late.contains("n1") && late.contains("MUSTER_KEY_FILE"),
            "{late}"
        );
        let made = first.key(home.path(), Duration::ZERO).unwrap();
        let found = other.key(home.path(), Duration::ZERO).unwrap();
        assert_eq!(made, found);
        assert!(muster_config::read_key_file(&made).is_ok());
    }
}
