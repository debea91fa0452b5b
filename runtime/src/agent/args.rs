//! The command line of `musterd`.

use crate::config::{
    AgentConfig, ConfigError, GroupName, KeySource, MemberName, RailEntry, RailsDocument,
    draw_seed, parse_linger, parse_minority, parse_profile, parse_rails, parse_seeds,
    read_document, read_key_file, standing_key,
};
use crate::doorman::base_directory;
use clap::{Parser, ValueEnum};
use std::path::{Path, PathBuf};

/// The Muster agent: one per node and job. Clients start it by themselves; by hand it is
/// started as a member without a job, for servers, tests and measurements.
#[derive(Parser, Debug)]
#[command(name = "musterd", version, arg_required_else_help = true)]
pub(super) struct Args {
    /// Name of this member, unique in its job [default: the host's name].
    #[arg(long, env = "MUSTER_NODE")]
    name: Option<String>,
    /// What this node shares with those that may fail together with it, such as a rack.
    #[arg(long, default_value = "", env = "MUSTER_GROUP")]
    group: String,
    /// What the smaller side of a split does: continue, or hold (condemn nobody); the same in the
    /// whole job.
    #[arg(long, default_value = "continue", env = "MUSTER_MINORITY")]
    minority: String,
    /// A network interface to use: ADDRESS[:PORT]@NET or INTERFACE[:PORT]@NET; repeat it
    /// for more rails [default: every interface that is up].
    #[arg(long = "rail", value_name = "ADDR@NET", env = "MUSTER_RAILS")]
    rails: Vec<String>,
    /// File with rails, peers, policy and limits in YAML, as muster export writes it; --rail is used
    /// in place of its rails.
    #[arg(long, value_name = "FILE", env = "MUSTER_CONFIG")]
    config: Option<PathBuf>,
    /// The address of a member to join; repeat it for more.
    #[arg(
        long = "seed",
        value_name = "ADDR@NET",
        env = "MUSTER_SEEDS",
        value_delimiter = ' '
    )]
    seeds: Vec<String>,
    /// Timing: fast (10/40 ms), standard (20/60 ms) or quiet (200/1000 ms).
    #[arg(long, default_value = "standard", env = "MUSTER_PROFILE")]
    profile: String,
    /// Run in the foreground without a job and print one line for each change of view.
    #[arg(long, value_name = "FORMAT", conflicts_with = "job")]
    print_events: Option<EventFormat>,
    /// File with the job key: 64 hexadecimal digits, mode 0600.
    #[arg(long, value_name = "FILE", env = "MUSTER_KEY_FILE")]
    key_file: Option<PathBuf>,
    /// Serve the job with this key to clients on this node (started by the clients).
    #[arg(long, requires = "dir")]
    job: Option<String>,
    /// Directory of the job's lock and socket on this node.
    #[arg(long, requires = "job")]
    dir: Option<PathBuf>,
    /// How long to stay after the last client has gone, in milliseconds.
    #[arg(long, default_value = "2000", env = "MUSTER_LINGER_MS")]
    linger_ms: String,
    /// Seed of the agent's random choices [default: drawn, and logged].
    #[arg(long)]
    random_seed: Option<u64>,
}

/// How events are printed.
#[derive(Clone, Copy, Debug, ValueEnum)]
enum EventFormat {
    /// `UP NAME NS`, `DOWN NAME NS`, ...; NS is CLOCK_MONOTONIC in nanoseconds.
    Plain,
}

/// How the agent runs.
pub(super) enum Mode {
    /// In the foreground, alone, printing events.
    Foreground,
    /// As keeper and worker for the clients of a job.
    Job { key: String, directory: PathBuf },
}

impl Args {
    /// Checks everything.
    pub(super) fn resolve(self) -> Result<(AgentConfig, Mode), ConfigError> {
        let mode = match (self.job, self.dir) {
            (Some(key), Some(directory)) => Mode::Job { key, directory },
            _ => Mode::Foreground,
        };
        let name = match &mode {
            // A job's key ends with the node's name.
            Mode::Job { key, .. } => key.rsplit(':').next().unwrap_or_default().to_owned(),
            Mode::Foreground => self.name.unwrap_or_else(host_name),
        };
        let config = AgentConfig {
            name: MemberName::new(&name)?,
            group: GroupName::new(&self.group)?,
            minority: parse_minority(&self.minority)?,
            rails: rails(self.config.as_deref(), &self.rails)?,
            seeds: parse_seeds(&self.seeds)?,
            profile: parse_profile(&self.profile)?,
            key: key(self.key_file.as_deref(), &mode)?,
            linger: parse_linger(&self.linger_ms)?,
            random_seed: self.random_seed.unwrap_or_else(draw_seed),
        };
        Ok((config, mode))
    }
}

/// What the file says, but for the rails if there are other words for them.
fn rails(file: Option<&Path>, given: &[String]) -> Result<RailsDocument, ConfigError> {
    let mut document = file.map_or_else(|| Ok(RailsDocument::default()), read_document)?;
    let entry = |nid| RailEntry {
        nid,
        partitions: Vec::new(),
    };
    if !given.is_empty() {
        document.rails = parse_rails(given)?.into_iter().map(entry).collect();
    }
    document.group_by_net();
    document.check().map_err(ConfigError::Rails)?;
    Ok(document)
}

/// A job's key comes from a file or through the clients; a member without a job has the
/// standing key of its user.
fn key(file: Option<&Path>, mode: &Mode) -> Result<KeySource, ConfigError> {
    match (file, mode) {
        (Some(path), _) => Ok(KeySource::Given(read_key_file(path)?)),
        (None, Mode::Job { .. }) => Ok(KeySource::FromClients),
        (None, Mode::Foreground) => {
            let base = base_directory()?;
            Ok(KeySource::Given(standing_key(&base.join("key"))?))
        }
    }
}

fn host_name() -> String {
    rustix::system::uname()
        .nodename()
        .to_string_lossy()
        .into_owned()
}
