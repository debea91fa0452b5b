//! The command line of `musterd`.

use super::{incarnation, origin};
use clap::{ArgAction, ArgMatches, CommandFactory, Parser, ValueEnum};
use muster_config::{
    AgentConfig, ConfigError, GossipConfig, GroupName, JobZones, JournalConfig, KeySource,
    MemberName, Minority, NodeList, RailEntry, RailsDocument, SeedEntry, Stay, draw_seed,
    nodes_of_step, parse_dscp, parse_journal_kb, parse_linger, parse_minority, parse_profile,
    parse_rails, parse_seeds, parse_zones, participants_of_hosts, read_document, read_key,
    read_key_file, refuse_zones, seeds_of_hosts, standing_key,
};
use muster_fabric::PORT_DEFAULT;
use muster_ipc::{AgentDirectory, DirectoryError, base_directory};
use std::path::{Path, PathBuf};

/// The Muster agent: one per node and job.
///
/// Clients start it themselves; a scheduler starts it as a step of the job (--serve, or no argument at all where
/// MUSTER_JOB is set). Started by hand it is a member without a job, for servers, tests and measurements.
#[derive(Parser, Debug)]
#[command(name = "musterd", version, disable_help_flag = true)]
pub(super) struct Args {
    /// Print help; musterd(8) has more.
    #[arg(short, long, display_order = 1000, action = ArgAction::HelpShort)]
    help: Option<bool>,
    /// Name of this member, unique in its job [default: the host's name].
    #[arg(long, env = "MUSTER_NODE")]
    name: Option<String>,
    /// What this node shares with nodes that may fail together with it, such as a rack.
    #[arg(long, default_value = "", env = "MUSTER_GROUP")]
    group: String,
    /// What the smaller side of a split does: continue, or hold (declare no failures).
    ///
    /// Must be identical on all nodes.
    #[arg(long, default_value = "continue", env = "MUSTER_MINORITY")]
    minority: String,
    /// A rail, ADDRESS[:PORT]@NET or INTERFACE[:PORT]@NET; repeat it for more.
    ///
    /// Default: every interface that is up, without bridges and tunnels.
    #[arg(long = "rail", value_name = "ADDR@NET", env = "MUSTER_RAILS")]
    rails: Vec<String>,
    /// The DSCP of packets on udp and tcp rails, 0 (none) to 63.
    #[arg(long, default_value = "46", env = "MUSTER_DSCP")]
    dscp: String,
    /// File with rails, peers, policy and limits, as muster export writes it.
    ///
    /// --rail is used in place of its rails.
    #[arg(long, value_name = "FILE", env = "MUSTER_CONFIG")]
    config: Option<PathBuf>,
    /// The address of a member to join, [NODE=]ADDRESS; repeat it for more.
    ///
    /// In a job with zones, members of other zones need their node's name.
    #[arg(long = "seed", value_name = "ADDR@NET", env = "MUSTER_SEEDS")]
    seeds: Vec<String>,
    /// The hosts of the job, as in n[1-4],x7.
    ///
    /// The agents there are joined, at the port and on the net of the first rail (not cxi, efa, opx).
    #[arg(long, value_name = "LIST", env = "MUSTER_HOSTS")]
    hosts: Option<String>,
    /// The zones of the job: auto, off, a number of nodes, file:PATH, pattern:PATTERN or topology:PATH.
    ///
    /// auto: one zone up to 1024 nodes, else zones of about 256. Must be identical on all nodes.
    #[arg(long, default_value = "auto", env = "MUSTER_ZONES")]
    zones: String,
    /// The nodes of the job, for its zones [default: --hosts].
    ///
    /// Must be identical on all nodes.
    #[arg(long, value_name = "LIST", env = "MUSTER_NODES")]
    nodes: Option<String>,
    /// The port of rails that name none.
    ///
    /// Default: any free port where no rail is given, else 7741; in a job whose agents find each other by PMIx or
    /// MPI, the first free port of 7741, 7745 and so on up to 7993.
    #[arg(long, env = "MUSTER_PORT")]
    port: Option<u16>,
    /// Timing: fast (10/40 ms), standard (20/60 ms) or quiet (200/1000 ms).
    #[arg(long, default_value = "standard", env = "MUSTER_PROFILE")]
    profile: String,
    /// The engine: overlay, or age (age-vector gossip).
    ///
    /// Must be identical on all nodes.
    #[arg(long, default_value = "overlay", env = "MUSTER_PROTOCOL")]
    protocol: Protocol,
    /// Participants of age gossip: NIDs, file:PATH, server:HOST:PORT or seeds:N.
    ///
    /// NIDs of all participants, including this node's: a list, ranges such as 192.168.[1-2].[1-128/2]@o2ib0, or
    /// file:PATH; GROUP=NIDS puts them into a group; repeat it for more. Default: the first rails of --hosts.
    /// server:HOST:PORT is a gossip server that supplies them (muster gossip serve); seeds:N are N nodes in all that
    /// PMIx, MPI or --seed supply.
    #[arg(long, value_name = "NIDS", env = "MUSTER_PARTICIPANTS")]
    participants: Vec<String>,
    /// A cycle of age gossip, in milliseconds.
    #[arg(long, default_value = "200", env = "MUSTER_INTERVAL_MS")]
    interval_ms: String,
    /// The estimated round trip of the network, in milliseconds, for age gossip.
    #[arg(long, default_value = "1", env = "MUSTER_ROUND_TRIP_MS")]
    round_trip_ms: String,
    /// Allow a cycle of age gossip below 200 ms.
    #[arg(long, env = "MUSTER_ALLOW_FAST_INTERVAL")]
    allow_fast_interval: bool,
    /// The fraction of age gossip's pings that stay in this node's group, as in 0.9.
    ///
    /// Default: groups have no effect.
    #[arg(long, value_name = "L", env = "MUSTER_LOCAL")]
    local: Option<String>,
    /// Directory for the state of age gossip as files [default: none].
    ///
    /// Each node has a directory in it.
    #[arg(long, value_name = "DIR", env = "MUSTER_GOSSIP_STATE")]
    gossip_state: Option<PathBuf>,
    /// Run without a job and print one line for each change of view.
    ///
    /// In the foreground.
    #[arg(long, value_name = "FORMAT", conflicts_with_all = ["job", "serve", "dir", "while_input"])]
    print_events: Option<EventFormat>,
    /// Serve the job that MUSTER_JOB names to clients on this node.
    ///
    /// In the foreground, until asked to end.
    #[arg(long, conflicts_with = "job")]
    serve: bool,
    /// With --serve: end when standard input closes and the clients have gone.
    ///
    /// The parent may write how tasks of this node have ended, in lines `ended RANK PID signal NUMBER` or `ended RANK
    /// PID exit CODE`. This is the only source for tasks that never attached to the agent.
    #[arg(long, requires = "serve")]
    while_input: bool,
    /// File with the job key: 64 hexadecimal digits, mode 0600; - is standard input.
    #[arg(long, value_name = "FILE", env = "MUSTER_KEY_FILE")]
    key_file: Option<PathBuf>,
    /// Serve the job with this key, which --dir and --again require (used by clients).
    #[arg(long, requires = "dir")]
    job: Option<String>,
    /// Directory of the job's lock and socket on this node.
    #[arg(long, requires = "job")]
    dir: Option<PathBuf>,
    /// With --job: replace an agent that was lost (used by clients).
    ///
    /// For clients whose MPI is notified of failures.
    #[arg(long, requires = "job")]
    again: bool,
    /// How long to stay after the last client has gone, in milliseconds.
    #[arg(long, default_value = "2000", env = "MUSTER_LINGER_MS")]
    linger_ms: String,
    /// Directory for the journal [default: none].
    ///
    /// Each event is a line of JSON, in a file of this job and node.
    #[arg(long, value_name = "DIR", env = "MUSTER_JOURNAL")]
    journal: Option<PathBuf>,
    /// Maximum size of the journal's file in KiB.
    ///
    /// One previous file is kept, too.
    #[arg(
        long,
        value_name = "KB",
        default_value = "4096",
        env = "MUSTER_JOURNAL_KB"
    )]
    journal_kb: String,
    /// Directory for a control socket that other users may query [default: none].
    ///
    /// They cannot change anything.
    #[arg(long, value_name = "DIR", env = "MUSTER_READABLE_IN")]
    readable_in: Option<PathBuf>,
    /// Seed of the agent's random choices [default: drawn, and logged].
    #[arg(long)]
    random_seed: Option<u64>,
}

/// The engine.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
enum Protocol {
    /// Zone membership.
    Overlay,
    /// Age-vector gossip.
    Age,
}

/// Format of printed events.
#[derive(Clone, Copy, Debug, ValueEnum)]
enum EventFormat {
    /// `UP NAME NS`, `DOWN NAME NS`, ...; NS is CLOCK_MONOTONIC in nanoseconds.
    Plain,
}

/// Mode of operation.
pub(super) enum Mode {
    /// In the foreground, alone, printing events.
    Foreground,
    /// As supervisor and worker for the clients of a job.
    Job { key: String, directory: PathBuf },
    /// The same in the foreground, for a scheduler's or launcher's step.
    Serve { agent_directory: AgentDirectory },
}

impl Args {
    /// Without any argument: serves a job if the environment names one. Returns false if there is nothing to do.
    pub(super) fn serve_if_alone(&mut self) -> bool {
        let alone = std::env::args_os().len() == 1;
        self.serve |= alone && std::env::var_os("MUSTER_JOB").is_some();
        self.serve || !alone
    }

    /// Checks all arguments. `matches` supplies the origin of each.
    pub(super) fn resolve(self, matches: &ArgMatches) -> Result<(AgentConfig, Mode), ConfigError> {
        let mode = match (self.job, self.dir) {
            (Some(key), Some(directory)) => Mode::Job { key, directory },
            _ if self.serve => Mode::Serve {
                agent_directory: directory_to_serve(self.name.as_deref())?,
            },
            _ => Mode::Foreground,
        };
        let name = match &mode {
            // A job's key ends with the node's name.
            Mode::Job { key, .. } => key.rsplit(':').next().unwrap_or_default().to_owned(),
            Mode::Serve { agent_directory } => agent_directory.node().to_owned(),
            Mode::Foreground => self.name.unwrap_or_else(host_name),
        };
        let mut rails = rails(self.config.as_deref(), &self.rails)?;
        let port = self.port.unwrap_or(match self.hosts {
            Some(_) => PORT_DEFAULT,
            None => 0,
        });
        let unnamed = rails.rails.iter_mut().map(|entry| &mut entry.nid.port);
        for unnamed in unnamed.filter(|unnamed| **unnamed == PORT_DEFAULT) {
            *unnamed = self.port.unwrap_or(PORT_DEFAULT);
        }
        let is_gossip = self.protocol == Protocol::Age;
        let minority = parse_minority(&self.minority)?;
        let nodes = NodeList::of(self.nodes.as_deref(), self.hosts.as_deref());
        let is_of_job = !matches!(mode, Mode::Foreground);
        let count = nodes_of_step(|name| std::env::var(name).ok()).filter(|_| is_of_job);
        let zones = match is_gossip {
            true => refuse_zones(&self.zones)?,
            false => job_zones(&self.zones, (nodes, count), minority)?,
        };
        let (mut seeds, mut contacts) = (Vec::new(), Vec::new());
        for SeedEntry { node, nids } in parse_seeds(&self.seeds)? {
            match node.filter(|_| zones.is_some()) {
                Some(node) => contacts.push((node, nids)),
                None => seeds.push(nids),
            }
        }
        if let Some(hosts) = &self.hosts {
            let first = rails.rail_of_hosts();
            match &zones {
                Some(zones) => contacts.extend(zones.hosts(&name, first, port)?),
                None => seeds.extend(seeds_of_hosts(hosts, first, port)?),
            }
        }
        let stay = match (&mode, self.while_input) {
            (Mode::Serve { .. }, true) => Stay::WithInput,
            (Mode::Serve { .. }, false) => Stay::UntilAsked,
            _ => Stay::Lingering,
        };
        let group = GroupName::new(&self.group)?;
        // The times are checked under the overlay, too, so that the user learns of an invalid one.
        let gossip = GossipConfig::parse(
            if is_gossip { &self.participants } else { &[] },
            &self.interval_ms,
            &self.round_trip_ms,
            self.allow_fast_interval,
            self.local.as_deref().filter(|_| is_gossip),
        )?;
        let mut gossip = is_gossip.then(|| GossipConfig {
            own_group: group.clone(),
            own_name: Some(name.clone()),
            ..gossip
        });
        if let (Some(gossip), Some(hosts), []) = (&mut gossip, &self.hosts, &self.participants[..])
        {
            let first = rails.rail_of_hosts();
            gossip.participants = participants_of_hosts(hosts, first, port)?;
        }
        // An agent whose address was given to other nodes beforehand must have exactly that port.
        let is_expected = self.port.is_some()
            || self.hosts.is_some()
            || !seeds.is_empty()
            || !contacts.is_empty()
            || !rails.peers.is_empty()
            || gossip.iter().any(|gossip| !gossip.participants.is_empty());
        let port_may_move = !is_expected && is_of_job;
        let former = match &mode {
            Mode::Job { key, directory } if self.again => {
                incarnation::read(&agent_directory(key, directory)?.incarnation())
            }
            _ => None,
        };
        let kilobytes_max = parse_journal_kb(&self.journal_kb)?;
        let config = AgentConfig {
            gossip,
            gossip_state: self.gossip_state.map(absolute),
            settings: origin::settings(&Self::command(), matches, &name),
            journal: self.journal.map(|directory| JournalConfig {
                directory: absolute(directory),
                kilobytes_max,
            }),
            readable_in: self.readable_in.map(absolute),
            name: MemberName::new(&name)?,
            group,
            minority,
            dscp: parse_dscp(&self.dscp)?,
            rails,
            seeds,
            zones,
            contacts,
            profile: parse_profile(&self.profile)?,
            key: key(self.key_file.as_deref(), &mode)?,
            linger: parse_linger(&self.linger_ms)?,
            stay,
            port,
            port_may_move,
            former,
            random_seed: self.random_seed.unwrap_or_else(draw_seed),
        };
        Ok((config, mode))
    }
}

/// The zones of the job; none if it is one zone. A policy that counts the members of one zone excludes several.
fn job_zones(
    setting: &str,
    (nodes, count): (Option<NodeList<'_>>, Option<usize>),
    minority: Minority,
) -> Result<Option<JobZones>, ConfigError> {
    let zones = parse_zones(setting, nodes, count)?;
    match &zones {
        Some(found) if minority == Minority::Hold => Err(ConfigError::Zones {
            text: setting.to_owned(),
            why: format!(
                "the {} zones of {} exclude the policy hold for minorities, which counts one zone; set --minority \
                 continue, or --zones off in a job of up to 4096 nodes",
                found.map.zones_at(0).count(),
                found.source
            ),
        }),
        _ => Ok(zones),
    }
}

/// An absolute path, because a job's agent leaves the directory that it was started in.
fn absolute(path: PathBuf) -> PathBuf {
    std::path::absolute(&path).unwrap_or(path)
}

/// The rails document of the file. Rails of the command line replace those of the file.
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

/// The agent directory of the job to serve. The agent's own step is not the step of the ranks, so the job must have
/// been named to both with MUSTER_JOB.
fn directory_to_serve(node: Option<&str>) -> Result<AgentDirectory, ConfigError> {
    let job = std::env::var("MUSTER_JOB").map_err(|_| ConfigError::NoJob)?;
    AgentDirectory::find(Some(&job), node, None).map_err(directory_error)
}

#[expect(
    clippy::needless_pass_by_value,
    reason = "the shape that map_err takes"
)]
fn directory_error(error: DirectoryError) -> ConfigError {
    ConfigError::Directory(error.to_string())
}

fn agent_directory(key: &str, directory: &Path) -> Result<AgentDirectory, ConfigError> {
    AgentDirectory::from_key(key, directory).map_err(directory_error)
}

/// The source of the key. A job's key comes from a file, from an earlier agent of this node, or through the clients.
/// A member without a job has the standing key of its user.
fn key(file: Option<&Path>, mode: &Mode) -> Result<KeySource, ConfigError> {
    match (file, mode) {
        (Some(path), _) if path == Path::new("-") => {
            Ok(KeySource::Given(read_key(std::io::stdin(), path)?))
        }
        (Some(path), _) => Ok(KeySource::Given(read_key_file(path)?)),
        (None, Mode::Job { key, directory }) => {
            let left = agent_directory(key, directory)?.key_file();
            match left.exists() {
                true => Ok(KeySource::Given(read_key_file(&left)?)),
                false => Ok(KeySource::FromClients),
            }
        }
        (None, Mode::Serve { .. }) => Ok(KeySource::FromClients),
        (None, Mode::Foreground) => {
            let base = base_directory().map_err(directory_error)?;
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

#[cfg(test)]
mod tests {
    use std::ffi::OsString;

    use muster_config::unknown_settings;

    use super::*;

    /// No variable that an option or a manual page names is reported as unknown.
    #[test]
    fn the_variables_of_the_manual_and_of_the_options_are_known() {
        for name in Args::command()
            .get_arguments()
            .filter_map(|option| option.get_env())
        {
            assert!(
                unknown_settings([name.to_owned()].into_iter()).is_empty(),
                "{name:?}"
            );
        }
        let pages = concat!(env!("CARGO_MANIFEST_DIR"), "/../../docs/man");
        let mut seen = 0;
        for page in std::fs::read_dir(pages).unwrap() {
            let text = std::fs::read_to_string(page.unwrap().path()).unwrap();
            let named = text.lines().filter_map(|line| {
                let rest = line.split_once("Ev MUSTER_")?.1;
                rest.split([' ', '=']).next()
            });
            for name in named {
                let unknown =
                    unknown_settings([OsString::from(format!("MUSTER_{name}"))].into_iter());
                assert!(unknown.is_empty(), "{unknown:?}");
                seen += 1;
            }
        }
        assert!(seen > 30, "{seen}");
    }
}
