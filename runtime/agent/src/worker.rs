//! The worker: opens the rails, starts the engine and runs the event loop.
//!
//! The first worker of an agent starts from the configuration. A later one continues from the state table and the
//! resume record of the last one. Other nodes notice at most a late heartbeat.

use super::admin_endpoint::AdminEndpoint;
use super::cpu_placement::{self, CpuPlacement};
use super::descriptors::{self, Descriptors, Renewals};
use super::ending::Ending;
use super::event_loop::EventLoop;
use super::incarnation;
use super::inherited_state::{InheritedState, clean_up};
use super::log;
use super::participant_discovery::ParticipantDiscovery;
use super::printer;
use super::rails::Rails;
use super::rank_service::RankService;
use super::resume::Record;
use super::service;
use super::signals::Signals;
use super::status;
use muster_config::{
    AgentConfig, GossipConfig, JobZones, KeySource, RailEntry, RailsDocument, SEEDS_MAX, Stay,
};
use muster_control::rail_status::RailStatus;
use muster_fabric::{
    Address, DefaultRails, Fabric, FabricConfig, Interface, Libfabric, LivenessConnection, Nid,
    NidError, NidList, OpenError, PORT_DEFAULT, Transport,
};
use muster_ipc::control_socket::{MEMBER_SUFFIX, SOCKET};
use muster_ipc::locked_directory::remove_abandoned;
use muster_ipc::{AgentDirectory, base_directory};
use muster_protocol::{Age, Config, Engine, Instant, Overlay, Policy};
use muster_sys::clock::monotonic_ns;
use muster_sys::limits::remedy;
use muster_sys::signal::keeping_handlers;
use muster_zones::{DegradedAttribute, Tree, TreeConfig};
use rustix::process::getppid;
use std::sync::Arc;
use tracing::{error, info, warn};

/// Exit code of a worker that is no longer needed.
pub(super) const ENDED: i32 = 0;
/// Exit code of a worker that cannot start, and for which a retry is useless.
pub(super) const GAVE_UP: i32 = 70;

/// Exit code of a worker that ends so that another one takes over.
pub(super) const RENEWED: i32 = 75;

/// Number of ports tried for rails without a port, and their distance: one for each job's agent on a node.
const PORT_TRIES: usize = 64;
const PORT_STEP: usize = 4;

/// Runs a job's worker. Returns its exit code.
pub(super) fn run(
    mut inherited: InheritedState,
    agent_directory: &AgentDirectory,
    config: &AgentConfig,
) -> i32 {
    // Before the first thread, because then nothing waits for it.
    descriptors::make_room(inherited.listener.listener());
    log::in_own_thread();
    let record = inherited.resume.read().unwrap_or_default();
    let mut config = config.clone();
    if let (Some(gossip), Some(record)) = (&mut config.gossip, &record) {
        *gossip = ParticipantDiscovery::with_discovered(gossip, &record.participants);
    }
    let config = &config;
    keeping_handlers(|| inherited.libfabric.initialise());
    let resources = RailResources {
        libfabric: inherited.libfabric,
        liveness_connection: inherited.liveness_connection.clone(),
        cpu_placement: CpuPlacement::new(inherited.machine.clone()),
        dscp: config.dscp,
    };
    let (rails, tree, record) = match start(resources, config, record) {
        Ok(started) => started,
        Err(reason) => {
            error!(%reason, "the agent cannot start");
            inherited.listener.refuse_all(&reason);
            if let Some(mut last_report) = inherited.resume.last_report_writer() {
                last_report.write(&reason);
            }
            return GAVE_UP;
        }
    };
    let mut last_report = inherited.resume.last_report_writer();
    match serve(rails, tree, record, inherited, agent_directory, config) {
        Ok(Ending::InOrder | Ending::Requested) => ENDED,
        Ok(Ending::Renewed) => RENEWED,
        Ok(Ending::NameTaken) => {
            if let Some(last_report) = &mut last_report {
                last_report.write(&format!(
                    "another live member of this job is named {}",
                    config.name
                ));
            }
            GAVE_UP
        }
        Err(cause) => {
            let cause = format!("{cause}{}", remedy(&cause));
            error!(cause, "the event loop failed");
            if let Some(last_report) = &mut last_report {
                last_report.write(&cause);
            }
            1
        }
    }
}

/// Runs a member without a job, in the foreground, until it is requested to end.
pub(super) fn run_alone(config: &AgentConfig) -> Result<(), String> {
    // Installed first, so that a signal during the start causes an orderly end, too.
    let signals = Signals::install().map_err(|error| format!("cannot receive signals: {error}"))?;
    descriptors::make_room(&signals);
    // Before there is a second thread: the settings of libfabric are in the environment.
    let libfabric = keeping_handlers(muster_fabric::load).map_err(|error| error.to_string())?;
    log::in_own_thread();
    let resources = RailResources {
        libfabric,
        liveness_connection: LivenessConnection::new().ok().map(Arc::new),
        cpu_placement: CpuPlacement::new(cpu_placement::read_machine()),
        dscp: config.dscp,
    };
    let (rails, tree, _) = start(resources, config, None)?;
    // A name may contain a slash, a file name may not.
    let file = config.name.as_str().replace('/', "_") + MEMBER_SUFFIX;
    let path = base_directory().ok().map(|base| base.join(file));
    let mut admin_endpoint = AdminEndpoint::open(config, None, path.as_deref());
    note_seeds(&mut admin_endpoint, config);
    let mut event_loop = EventLoop::new(
        rails,
        tree,
        None,
        admin_endpoint,
        config.profile,
        signals,
        Descriptors::new(None, Renewals::default()),
    )
    .map_err(|error| format!("cannot start the event loop: {error}"))?;
    let ready = printer::print_ready(config.name.as_str());
    service::notify(service::READY);
    event_loop.feed_watchdog(service::Watchdog::from_environment());
    let ending = ready.and_then(|()| event_loop.run());
    service::notify(service::STOPPING);
    match ending {
        // In the foreground no worker is renewed.
        Ok(Ending::InOrder | Ending::Requested | Ending::Renewed) => Ok(()),
        Ok(Ending::NameTaken) => Err(format!(
            "another live member is named {}; give this one another name with --name",
            config.name
        )),
        Err(error) if error.kind() == std::io::ErrorKind::BrokenPipe => Ok(()),
        Err(error) => Err(format!("the event loop failed: {error}")),
    }
}

fn serve(
    rails: (Fabric, Rails),
    tree: Tree,
    record: Record,
    inherited: InheritedState,
    agent_directory: &AgentDirectory,
    config: &AgentConfig,
) -> std::io::Result<Ending> {
    let InheritedState {
        table,
        listener,
        resume,
        supervisor,
        renewals,
        ..
    } = inherited;
    let signals = Signals::install()?;
    let last = listener.share()?;
    // The parent waits for the first worker and gets its limitations; it does not wait for later ones.
    let is_first = table.view().generation() == 1;
    let job = RankService::start(
        &table,
        listener,
        resume,
        record,
        agent_directory,
        config,
        &tree,
    )?;
    let path = agent_directory.directory().join(SOCKET);
    let mut admin_endpoint = AdminEndpoint::open(config, Some(agent_directory), Some(&path));
    let failure = admin_endpoint
        .journal
        .as_ref()
        .and_then(|journal| journal.failure());
    let limitation = failure.filter(|_| is_first).map(str::to_owned);
    note_seeds(&mut admin_endpoint, config);
    let mut event_loop = EventLoop::new(
        rails,
        tree,
        Some(job),
        admin_endpoint,
        config.profile,
        signals,
        Descriptors::new(Some(supervisor), renewals),
    )?;
    event_loop.catch_up();
    if config.stay != Stay::Lingering {
        if let Some(what) = limitation {
            printer::print_limitation(&what);
        }
        // The parent may have ended. This is handled elsewhere.
        let _ = printer::print_ready(config.name.as_str());
    }
    let ending = event_loop.run()?;
    info!(?ending, "the worker ends");
    if ending == Ending::Renewed {
        // As if it were killed: attached ranks and peers wait for the next worker.
        return Ok(ending);
    }
    event_loop.close(&ending);
    if getppid() != Some(supervisor) {
        // The supervisor was killed, so this worker removes the files.
        if ending == Ending::InOrder {
            remove_abandoned();
        }
        clean_up(last, agent_directory);
    }
    Ok(ending)
}

/// Seeds of the command line may be participants of age gossip.
fn note_seeds(admin_endpoint: &mut AdminEndpoint, config: &AgentConfig) {
    if let Some(participant_discovery) = &mut admin_endpoint.participant_discovery {
        for seed in &config.seeds {
            participant_discovery.note(seed.to_string().as_bytes());
        }
    }
}

/// The objects that rails are opened with.
struct RailResources {
    libfabric: Libfabric,
    liveness_connection: Option<Arc<LivenessConnection>>,
    cpu_placement: CpuPlacement,
    /// The DSCP of datagrams.
    dscp: u8,
}

/// Opens the rails and starts the engine, new or from a record.
fn start(
    resources: RailResources,
    config: &AgentConfig,
    record: Option<Record>,
) -> Result<((Fabric, Rails), Tree, Record), String> {
    let is_default = config.rails.rails.is_empty();
    let choice = is_default.then(|| DefaultRails::choose(&resources.libfabric));
    let (mut fabric, mut rails) = match &record {
        Some(record) => reopen(resources, record)?,
        None => {
            let mut document = config.rails.clone();
            if let Some(choice) = &choice {
                document.rails = default_entries(choice, config.port)?;
            }
            let opened = open_rails(resources, document, config.port_may_move)?;
            warn_of_seeds(&config.seeds, &opened.0.local_nids());
            opened
        }
    };
    if let Some(choice) = choice {
        let first = record.is_none();
        choice
            .reasons()
            .filter(|_| first)
            .for_each(|reason| info!(reason, "default rails"));
        rails.note_choice(choice);
    }
    let address = fabric.local_nids().to_string();
    let mut record = record.unwrap_or_default();
    let mut engine_config = engine_config(config, rails.document(), &address, fabric.mtu());
    engine_config.key = engine_config.key.or(record.key);
    if let Some(key) = engine_config.key {
        fabric.set_key(key);
    }
    let tree = match (&config.gossip, &config.zones) {
        (Some(gossip), _) => {
            Tree::flat(start_gossip(gossip, &engine_config, &fabric.local_nids())?)
        }
        (None, Some(zones)) => start_zones(zones, config, engine_config, &record)?,
        (None, None) => Tree::flat(start_overlay(engine_config, &record)?),
    };
    record.set_rails(&address, rails.document(), rails.open());
    info!(name = %config.name, rails = address, seed = config.random_seed, "rails are open");
    Ok(((fabric, rails), tree, record))
}

/// Starts the overlay, new or from the last worker's snapshot.
fn start_overlay(config: Config, record: &Record) -> Result<Engine, String> {
    let now = Instant(monotonic_ns() / 1000);
    if !record.engine.is_empty() {
        match Overlay::resume(config.clone(), &record.engine, now) {
            Ok(engine) => return Ok(engine.into()),
            // Other members then see a new incarnation of this node, which is correct.
            Err(reason) => {
                warn!(%reason, "the last worker's snapshot is not valid; a new incarnation starts");
            }
        }
    }
    let engine = Overlay::new(config).map_err(|error| error.to_string())?;
    Ok(engine.into())
}

/// Starts the tree of a job with zones, new or from the last worker's snapshot.
fn start_zones(
    zones: &JobZones,
    config: &AgentConfig,
    mut engine: Config,
    record: &Record,
) -> Result<Tree, String> {
    let (map, now) = (Arc::clone(&zones.map), Instant(monotonic_ns() / 1000));
    let own = map.directory().find(&engine.name);
    let own = own.and_then(|node| map.base_zone(node));
    let mut contacts = vec![Vec::new(); map.directory().len()];
    for (name, nids) in &config.contacts {
        let Some(node) = map.directory().find(name) else {
            return Err(format!(
                "seed {name}={nids}: node {name} is not one of the job's {} nodes; correct its name or the list of \
                 nodes (MUSTER_NODES)",
                contacts.len()
            ));
        };
        let address = nids.to_string().into_bytes();
        if map.base_zone(node) == own && engine.seeds.len() < SEEDS_MAX && *name != engine.name {
            engine.seeds.push(address.clone());
        }
        contacts[node.0 as usize] = address;
    }
    let tree = TreeConfig {
        map,
        engine,
        contacts: Arc::new(contacts),
        degraded_attribute: Some(DegradedAttribute {
            key: status::RAILS_KEY,
            is_degraded: |value| {
                RailStatus::read(value).is_some_and(|status| !status.failing.is_empty())
            },
        }),
    };
    if !record.engine.is_empty() {
        match Tree::resume(tree.clone(), &record.engine, now) {
            Ok(tree) => return Ok(tree),
            Err(reason) => {
                warn!(%reason, "the last worker's snapshot is not valid; a new incarnation starts");
            }
        }
    }
    Tree::new(tree).map_err(|error| error.to_string())
}

/// Starts age gossip. It inherits no state: a few cycles restore all of it.
fn start_gossip(gossip: &GossipConfig, like: &Config, local: &NidList) -> Result<Engine, String> {
    let mut config = gossip.engine(local)?;
    config.key = like.key;
    config.incarnation = like.incarnation;
    config.first_sequence = like.first_sequence;
    config.random_seed = like.random_seed;
    config.mtu = like.mtu;
    let engine = Age::new(config).map_err(|error| error.to_string())?;
    Ok(engine.into())
}

/// Warns about seeds that are on no net of this node's rails. It is not an error, because relays may reach them.
fn warn_of_seeds(seeds: &[NidList], own: &NidList) {
    let shares = |seed: &&NidList| {
        let mut nids = seed.iter();
        nids.any(|nid| own.iter().any(|rail| rail.net == nid.net))
    };
    for seed in seeds.iter().filter(|seed| !shares(seed)) {
        warn!(
            %seed,
            rails = %own,
            "a seed is on none of the nets of this node's rails: it can be reached only through relays; \
             give both nodes a rail on one net (--rail)"
        );
    }
}

/// Opens the rails of a document. Those whose device is not there, or not ready, are retried.
fn open_rails(
    resources: RailResources,
    document: RailsDocument,
    may_move: bool,
) -> Result<(Fabric, Rails), String> {
    let nids = document.rails.iter().map(|entry| entry.nid.clone());
    let (mut fabric, lost) = open_on_free_port(&resources, &document, nids.collect(), may_move)?;
    let opened = fabric.local_nids();
    // Both lists have the order of the document.
    let (mut opened, mut missing) = (opened.iter().cloned(), lost.iter().peekable());
    let planned = document.rails.iter().filter_map(|entry| {
        let is_missing = |one: &&(Nid, OpenError)| one.0.is_same_interface(&entry.nid);
        match missing.next_if(is_missing) {
            Some((nid, _)) => Some(nid.clone()),
            None => opened.next(),
        }
    });
    let planned = planned.collect();
    let mut rails = Rails::new(document, planned, resources.cpu_placement);
    rails.note_lost(lost);
    rails.configure(&mut fabric);
    Ok((fabric, rails))
}

/// Opens the rails of the last worker with the same ports, because peers know them.
fn reopen(resources: RailResources, record: &Record) -> Result<(Fabric, Rails), String> {
    let nids = |text: &str| -> Result<Vec<Nid>, String> {
        let list: NidList = text.parse().map_err(|error: NidError| error.to_string())?;
        Ok(list.iter().cloned().collect())
    };
    let document = RailsDocument::import(&record.document).map_err(|error| error.to_string())?;
    let (open, planned) = (nids(&record.rails)?, nids(&record.opened)?);
    // Rails that the last worker missed are also tried, after those that it had.
    let missing = planned.iter().filter(|nid| !open.contains(nid)).cloned();
    let wanted = open.iter().cloned().chain(missing).collect();
    // A node with a failed rail continues with the others.
    let opened = Fabric::open_some(&fabric_config(&resources, &document, wanted), |_| true);
    let (mut fabric, lost) = opened.map_err(|error| error.to_string())?;
    let mut rails = Rails::new(document, planned, resources.cpu_placement);
    rails.note_lost(lost);
    rails.configure(&mut fabric);
    Ok((fabric, rails))
}

/// Opens rails. If they may have another port, rails without a port get the first port that is free for all of them:
/// the agent of another job on this node may have the default port.
fn open_on_free_port(
    resources: &RailResources,
    document: &RailsDocument,
    mut nids: Vec<Nid>,
    may_move: bool,
) -> Result<(Fabric, Vec<(Nid, OpenError)>), String> {
    let is_unnamed = |nid: &Nid| nid.port == PORT_DEFAULT;
    let unnamed: Vec<bool> = nids.iter().map(is_unnamed).collect();
    let tries = if may_move { PORT_TRIES } else { 1 };
    let mut refused = String::new();
    for port in (PORT_DEFAULT..).step_by(PORT_STEP).take(tries) {
        let moved = nids
            .iter_mut()
            .zip(&unnamed)
            .filter(|(_, unnamed)| **unnamed);
        moved.for_each(|(nid, _)| nid.port = port);
        let config = fabric_config(resources, document, nids.clone());
        let error = match Fabric::open_some(&config, OpenError::is_late_device) {
            Ok(opened) => {
                if port != PORT_DEFAULT {
                    warn!(
                        port,
                        "rails without a port use this one: the default port is in use on this node"
                    );
                }
                return Ok(opened);
            }
            Err(error) => error,
        };
        let (OpenError::PortInUse { nid, .. } | OpenError::NextPortInUse { nid, .. }) = &error
        else {
            return Err(error.to_string());
        };
        let mut own = nids.iter().zip(&unnamed);
        if !own.any(|(one, unnamed)| *unnamed && one.to_string() == *nid) {
            return Err(error.to_string());
        }
        refused = error.to_string();
    }
    let remedy = match may_move {
        true => format!("; so are all ports that were tried, from {PORT_DEFAULT} on"),
        false => {
            "; if another job's agent uses it, set MUSTER_PORT to another port on all nodes of this job"
                .into()
        }
    };
    Err(refused + &remedy)
}

fn fabric_config(
    resources: &RailResources,
    document: &RailsDocument,
    nids: Vec<Nid>,
) -> FabricConfig {
    FabricConfig {
        health: document.health,
        relay: document.relay,
        timeouts: document.timeouts,
        liveness_connection: resources.liveness_connection.clone(),
        dscp: resources.dscp,
        ..FabricConfig::new(resources.libfabric, nids)
    }
}

fn engine_config(
    config: &AgentConfig,
    document: &RailsDocument,
    address: &str,
    mtu: usize,
) -> Config {
    let mut engine = Config::new(config.name.as_str(), address.as_bytes(), config.profile);
    engine.group = config.group.as_str().to_owned();
    engine.minority = config.minority;
    let peers = document.peers.iter();
    engine.seeds = config
        .seeds
        .iter()
        .chain(peers)
        .map(|seed| seed.to_string().into_bytes())
        .collect();
    engine.key = match config.key {
        KeySource::Given(key) => Some(key),
        KeySource::FromClients => None,
    };
    engine.incarnation = incarnation::next();
    engine.previous_incarnation = config.former;
    if config.former.is_some() {
        // The policy of its ranks' MPI. The client that started this agent states it again when it attaches.
        engine.policy = Policy::Stop;
    }
    // Microseconds increase faster than any frame counter, so a successor starts above this agent.
    engine.first_sequence = monotonic_ns() / 1000;
    engine.random_seed = config.random_seed;
    engine.mtu = mtu.min(muster_protocol::MTU_MAX);
    engine
}

/// The rails if none are configured. All are on one net: net numbers would depend on the order of this node's
/// interfaces, which differs from that of other nodes. The fabric pairs them by subnet.
fn default_entries(choice: &DefaultRails, port: u16) -> Result<Vec<RailEntry>, String> {
    let entries = choice.chosen.iter().map(|interface| {
        let nid = default_nid(interface, port).map_err(|error| error.to_string())?;
        Ok(RailEntry {
            nid,
            partitions: Vec::new(),
        })
    });
    entries.collect()
}

/// The NID of a default rail. It names the interface, so that a document with it fits other nodes; loopback has many
/// addresses, and a label (`eth0:1`) cannot be told from a port.
fn default_nid(interface: &Interface, port: u16) -> Result<Nid, NidError> {
    let Interface { name, address } = interface;
    let named = format!("{name}:{port}@udp0").parse().ok();
    let named = named.filter(|nid: &Nid| nid.address == Address::Interface(name.clone()));
    match named.filter(|_| !address.is_loopback()) {
        Some(nid) => Ok(nid),
        None => format!("{address}:{port}@udp0").parse(),
    }
}

#[cfg(test)]
mod tests {
    use super::super::await_free;
    use super::*;
    use std::net::UdpSocket;
    use std::slice;

    fn resources() -> RailResources {
        RailResources {
            libfabric: muster_fabric::load().expect("libfabric is installed where tests run"),
            liveness_connection: None,
            cpu_placement: CpuPlacement::default(),
            dscp: muster_fabric::DSCP_DEFAULT,
        }
    }

    /// Binds a port that another socket has just released.
    fn bind(nid: &Nid) -> UdpSocket {
        await_free(|| UdpSocket::bind(nid.socket_address().unwrap()))
    }

    /// Calls [`reopen`] until all ports are free.
    fn reopen_all(record: &Record) -> (Fabric, Rails) {
        await_free(|| {
            let (fabric, rails) = reopen(resources(), record)?;
            match rails.rail_retry() {
                [] => Ok((fabric, rails)),
                rail_retry => Err(rail_retry[0].reason.clone()),
            }
        })
    }

    fn record(fabric: &Fabric, rails: &Rails) -> Record {
        let mut record = Record::default();
        let address = fabric.local_nids().to_string();
        record.set_rails(&address, rails.document(), rails.open());
        record
    }

    /// A worker was killed, and one of its rails cannot be opened any more.
    #[test]
    fn a_later_worker_continues_with_the_rails_that_it_can_open() {
        let text = "version: 1\nnets:\n  - net: udp0\n    rails:\n      - nid: 127.59.4.1:0@udp0\n      \
                    - nid: 127.59.4.2:0@udp0\n";
        let document = RailsDocument::import(text).unwrap();
        let (fabric, rails) = open_rails(resources(), document, false).unwrap();
        let record = record(&fabric, &rails);
        let (failed, left) = (rails.open()[0].clone(), rails.open()[1].clone());
        drop(fabric);
        let taken = bind(&failed);
        // Another process may have the port of the other one for a moment, too.
        let (fabric, rails) = await_free(|| {
            let (fabric, rails) = reopen(resources(), &record)?;
            match fabric.local_nids().to_string() == left.to_string() {
                true => Ok((fabric, rails)),
                false => Err(fabric.local_nids().to_string()),
            }
        });
        assert_eq!(rails.open(), [failed.clone(), left.clone()]);
        assert_eq!(rails.document().rails.len(), 2, "it stays configured");
        let rail_retry = rails.rail_retry().iter().map(|one| one.nid.clone());
        assert_eq!(rail_retry.collect::<Vec<_>>(), slice::from_ref(&failed));
        assert_eq!(rails.lost(), 1);
        // The worker after it continues, too.
        let record = self::record(&fabric, &rails);
        drop((fabric, taken));
        let (fabric, rails) = reopen_all(&record);
        assert_eq!((fabric.rails().len(), rails.rail_retry().len()), (2, 0));
        assert_eq!(rails.open(), [failed.clone(), left.clone()]);
        drop(fabric);
        let taken = [failed, left].map(|nid| bind(&nid));
        let why = reopen(resources(), &record).map(drop).unwrap_err();
        assert!(why.contains("in use"), "{why}");
        drop(taken);
    }

    /// The device of a rail is not there when the agent starts. It is retried; a node without any rail does not start.
    #[test]
    fn an_agent_starts_without_a_rail_whose_device_is_not_there() {
        let text = "version: 1\nnets:\n  - net: o2ib0\n    rails:\n      - nid: 127.59.6.1@o2ib0\n  - net: udp0\n    \
                    rails:\n      - nid: 127.59.6.2:0@udp0\n";
        let document = RailsDocument::import(text).unwrap();
        let (fabric, rails) = open_rails(resources(), document, false).unwrap();
        assert_eq!(fabric.rails().len(), 1);
        let [absent, open] = rails.open() else {
            panic!("{:?}", rails.open());
        };
        assert_eq!(absent.to_string(), "127.59.6.1@o2ib0");
        assert_eq!(fabric.local_nids().iter().collect::<Vec<_>>(), [open]);
        let [retried] = rails.rail_retry() else {
            panic!("{:?}", rails.rail_retry());
        };
        assert!(
            retried.nid == *absent && retried.reason.contains("finds no device"),
            "{retried:?}"
        );
        let alone = text.split("  - net: udp0").next().unwrap();
        let alone = RailsDocument::import(alone).unwrap();
        let why = open_rails(resources(), alone, false).map(drop).unwrap_err();
        assert!(why.contains("finds no device"), "{why}");
    }

    /// Jobs of one node have the same rails, without a port. The second agent takes the next free port. If other
    /// nodes expect the default port, the error states how to give a job another one.
    #[test]
    fn a_rail_without_a_port_takes_the_next_free_one() {
        let text = "version: 1\nnets:\n  - net: udp0\n    rails:\n      - nid: 127.59.5.1@udp0\n      \
                    - nid: 127.59.5.2@udp0\n";
        let document = RailsDocument::import(text).unwrap();
        let ports =
            |rails: &Rails| -> Vec<u16> { rails.open().iter().map(|nid| nid.port).collect() };
        let (first, rails) = open_rails(resources(), document.clone(), true).unwrap();
        assert_eq!(ports(&rails), [PORT_DEFAULT; 2]);
        // The beats port of one rail is in use: both rails get the next one.
        let other = UdpSocket::bind(("127.59.5.2", PORT_DEFAULT + 5)).unwrap();
        let (second, rails) = open_rails(resources(), document.clone(), true).unwrap();
        assert_eq!(ports(&rails), [PORT_DEFAULT + 8; 2]);
        assert_eq!(
            rails.document().rails[0].nid.port,
            PORT_DEFAULT,
            "as it was configured"
        );
        let record = record(&second, &rails);
        drop((first, second, other));
        // A later worker uses the ports of the first one.
        let (_, rails) = reopen_all(&record);
        assert_eq!(ports(&rails), [PORT_DEFAULT + 8; 2]);

        let taken = await_free(|| UdpSocket::bind(("127.59.5.1", PORT_DEFAULT)));
        let why = open_rails(resources(), document, false)
            .map(drop)
            .unwrap_err();
        assert!(
            why.contains("in use") && why.contains("MUSTER_PORT"),
            "{why}"
        );
        // A port that was configured is not replaced by another one.
        let named = text.replace("5.1@", "5.1:7745@");
        let named = RailsDocument::import(&named).unwrap();
        let also = UdpSocket::bind(("127.59.5.1", 7745)).unwrap();
        let why = open_rails(resources(), named, true).map(drop).unwrap_err();
        assert!(why.contains("7745") && why.contains("in use"), "{why}");
        drop((taken, also));
    }
}
