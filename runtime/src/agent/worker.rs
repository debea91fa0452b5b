//! The worker: opens the rails, starts the engine, runs the loop.
//!
//! The first worker of an agent starts from the configuration; a later one takes up where the
//! last one stopped, from the board and the resume record, and nobody elsewhere notices more
//! than a late heartbeat.

use super::host::{Ending, Host};
use super::job::Job;
use super::keeper::Estate;
use super::printer;
use super::rails::Rails;
use super::resume::{Record, Resume};
use super::seat::{self, Seat};
use super::signals::Signals;
use crate::cli::agents::{MEMBER_SUFFIX, SOCKET};
use crate::config::{AgentConfig, KeySource, RAILS_MAX, RailEntry, RailsDocument};
use crate::control::Control;
use crate::doorman::{Place, base_directory};
use crate::sys::clock::monotonic_ns;
use crate::sys::limits::remedy;
use crate::sys::schedule::{Granted, ask_real_time};
use crate::sys::signal::keeping_handlers;
use muster_fabric::{Fabric, FabricConfig, Libfabric, Lifeline, Nid, NidError, NidList, Transport};
use muster_protocol::{Config, Instant, Overlay};
use rustix::time::{ClockId, clock_gettime};
use std::path::Path;
use std::sync::Arc;
use tracing::{error, info, warn};

/// Exit code of a worker that is no longer needed.
pub(super) const ENDED: i32 = 0;
/// Exit code of a worker that cannot start, and never will.
pub(super) const GAVE_UP: i32 = 70;
/// A real-time thread that computes this long without a pause is out of its mind, and is
/// put back to normal priority.
const SPIN_US_MAX: u64 = 50_000;

/// Runs a job's worker; returns its exit code.
pub(super) fn run(mut estate: Estate, place: &Place, config: &AgentConfig) -> i32 {
    let record = estate.resume.read().unwrap_or_default();
    let ground = Ground {
        libfabric: estate.libfabric,
        lifeline: estate.lifeline.clone(),
        seat: Seat::look(estate.machine.clone()),
    };
    let (rails, engine, record) = match start(ground, config, record) {
        Ok(started) => started,
        Err(reason) => {
            error!(%reason, "the agent cannot start");
            estate.door.refuse_all(&reason);
            return GAVE_UP;
        }
    };
    let mut last_words = estate.resume.last_words_writer();
    match serve(rails, engine, record, estate, place, config) {
        Ok(Ending::InOrder | Ending::Asked) => ENDED,
        Ok(Ending::NameTaken) => GAVE_UP,
        Err(cause) => {
            let cause = format!("{cause}{}", remedy(&cause));
            error!(cause, "the loop broke");
            if let Some(words) = &mut last_words {
                words.write(&cause);
            }
            1
        }
    }
}

/// Runs a member without a job, in the foreground, until it is asked to end.
pub(super) fn run_alone(config: &AgentConfig) -> Result<(), String> {
    // First of all: who is asked to end while it starts ends in order, too.
    let signals = Signals::install().map_err(|error| format!("cannot receive signals: {error}"))?;
    let libfabric = keeping_handlers(muster_fabric::load).map_err(|error| error.to_string())?;
    let ground = Ground {
        libfabric,
        lifeline: Lifeline::new().ok().map(Arc::new),
        seat: Seat::look(seat::read_machine()),
    };
    let (rails, mut engine, _) = start(ground, config, None)?;
    // A name may hold a slash, a file's name may not.
    let file = config.name.as_str().replace('/', "_") + MEMBER_SUFFIX;
    let control = base_directory()
        .ok()
        .and_then(|base| open_control(&base.join(file)));
    prefer_this_thread(&mut engine, config.profile.deadline_us());
    let mut host = Host::new(rails, engine, None, control, config.profile, signals)
        .map_err(|error| format!("cannot start the loop: {error}"))?;
    host.seeds = config.seeds.len();
    let ready = printer::print_ready(config.name.as_str());
    match ready.and_then(|()| host.run()) {
        Ok(Ending::InOrder | Ending::Asked) => Ok(()),
        Ok(Ending::NameTaken) => Err(format!(
            "another living member is named {}; give this one another name with --name",
            config.name
        )),
        Err(error) if error.kind() == std::io::ErrorKind::BrokenPipe => Ok(()),
        Err(error) => Err(format!("the loop broke: {error}")),
    }
}

fn serve(
    rails: (Fabric, Rails),
    mut engine: Overlay,
    record: Record,
    estate: Estate,
    place: &Place,
    config: &AgentConfig,
) -> std::io::Result<Ending> {
    let Estate {
        board,
        door,
        resume,
        ..
    } = estate;
    let signals = Signals::install()?;
    let job = Job::start(&board, door, resume, record, place, config)?;
    let control = open_control(&place.directory().join(SOCKET));
    prefer_this_thread(&mut engine, config.profile.deadline_us());
    let mut host = Host::new(rails, engine, Some(job), control, config.profile, signals)?;
    host.seeds = config.seeds.len();
    host.catch_up();
    let ending = host.run()?;
    info!(?ending, "the worker ends");
    host.close(&ending);
    Ok(ending)
}

/// The door for questions; an agent that cannot have one does everything else.
fn open_control(path: &Path) -> Option<Control> {
    Control::open(path)
        .inspect_err(|cause| warn!(path = %path.display(), %cause, "no control socket"))
        .ok()
}

/// What the rails are opened with.
struct Ground {
    libfabric: Libfabric,
    lifeline: Option<Arc<Lifeline>>,
    seat: Seat,
}

/// Opens the rails and starts the engine, anew or from a record.
fn start(
    ground: Ground,
    config: &AgentConfig,
    record: Option<Record>,
) -> Result<((Fabric, Rails), Overlay, Record), String> {
    let (mut fabric, rails) = match &record {
        Some(record) => open_again(ground, record)?,
        None => open_rails(ground, &config.rails)?,
    };
    let address = fabric.local_nids().to_string();
    let mut record = record.unwrap_or_default();
    let mut engine_config = engine_config(config, rails.document(), &address, fabric.mtu());
    engine_config.key = engine_config.key.or(record.key);
    if let Some(key) = engine_config.key {
        fabric.set_key(key);
    }
    let now = Instant(monotonic_ns() / 1000);
    let engine = if record.engine.is_empty() {
        Overlay::new(engine_config).map_err(|e| e.to_string())?
    } else {
        match Overlay::resume(engine_config.clone(), &record.engine, now) {
            Ok(engine) => engine,
            Err(reason) => {
                // The others will see a new life of this node, which is the truth.
                warn!(%reason, "the last worker's record cannot be used");
                Overlay::new(engine_config).map_err(|e| e.to_string())?
            }
        }
    };
    record.set_rails(&address, rails.document(), rails.open());
    info!(name = %config.name, rails = address, seed = config.random_seed, "rails are open");
    Ok(((fabric, rails), engine, record))
}

/// Opens the rails that are configured, or all there are.
fn open_rails(ground: Ground, configured: &RailsDocument) -> Result<(Fabric, Rails), String> {
    let mut document = configured.clone();
    if document.rails.is_empty() {
        let entry = |nid| RailEntry {
            nid,
            partitions: Vec::new(),
        };
        let nids = every_interface(&ground.libfabric)?;
        document.rails = nids.into_iter().map(entry).collect();
    }
    let nids = document.rails.iter().map(|entry| entry.nid.clone());
    let mut fabric = open(&ground, &document, nids.collect())?;
    // In the order in which they were given.
    let opened = fabric.local_nids().iter().cloned().collect();
    let mut rails = Rails::new(document, opened, ground.seat);
    rails.settle(&mut fabric);
    Ok((fabric, rails))
}

/// Opens the rails of the last worker, with the ports that they had: the others know us by them.
fn open_again(ground: Ground, record: &Record) -> Result<(Fabric, Rails), String> {
    let nids = |text: &str| -> Result<Vec<Nid>, String> {
        let list: NidList = text.parse().map_err(|error: NidError| error.to_string())?;
        Ok(list.iter().cloned().collect())
    };
    let document = RailsDocument::import(&record.document).map_err(|error| error.to_string())?;
    let mut fabric = open(&ground, &document, nids(&record.rails)?)?;
    let mut rails = Rails::new(document, nids(&record.opened)?, ground.seat);
    rails.settle(&mut fabric);
    Ok((fabric, rails))
}

fn open(ground: &Ground, document: &RailsDocument, nids: Vec<Nid>) -> Result<Fabric, String> {
    let config = FabricConfig {
        health: document.health,
        relay: document.relay,
        timeouts: document.timeouts,
        lifeline: ground.lifeline.clone(),
        ..FabricConfig::new(ground.libfabric, nids)
    };
    Fabric::open(&config).map_err(|error| error.to_string())
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
    let now = clock_gettime(ClockId::Realtime);
    engine.incarnation = now.tv_sec as u64 * 1_000_000_000 + now.tv_nsec as u64;
    // Microseconds run ahead of any number of frames, so a successor starts above us.
    engine.first_sequence = monotonic_ns() / 1000;
    engine.random_seed = config.random_seed;
    engine.mtu = mtu.min(muster_protocol::MTU_MAX);
    engine
}

/// All interfaces that are up; loopback only if there is nothing else.
fn every_interface(libfabric: &Libfabric) -> Result<Vec<Nid>, String> {
    let interfaces = libfabric.interfaces();
    let (loopback, mut chosen): (Vec<_>, Vec<_>) = interfaces
        .into_iter()
        .partition(|interface| interface.address.is_loopback());
    if chosen.is_empty() {
        chosen = loopback;
    }
    chosen.truncate(RAILS_MAX);
    let nids: Result<Vec<Nid>, _> = chosen
        .iter()
        .enumerate()
        .map(|(index, interface)| format!("{}:0@udp{index}", interface.address).parse())
        .collect();
    nids.map_err(|error| error.to_string())
}

/// A detector that waits for its turn behind a rank's busy loop accuses the living, and is accused.
/// Where nothing keeps it from waiting, a deadline's worth of it is expected from the start: the
/// first time would be too late to find out.
fn prefer_this_thread(engine: &mut Overlay, expected_us: u64) {
    if let Granted::Refused(cause) = ask_real_time(SPIN_US_MAX) {
        engine.expect_lateness(expected_us);
        warn!(
            %cause,
            expected_ms = expected_us / 1000,
            "no real-time priority: deadlines are up to three times as long, and widen by what this \
             thread is late, up to 1 s; grant CAP_SYS_NICE or an rtprio limit to avoid that"
        );
    } else {
        info!("real-time priority");
    }
}

/// Makes the record of a worker that has just started the last word.
pub(super) fn keep(resume: &mut Resume, record: &Record) {
    if let Err(cause) = resume.write(record) {
        warn!(%cause, "what a later worker needs cannot be kept");
    }
}
