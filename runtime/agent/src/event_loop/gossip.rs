//! Age gossip in the loop: its start once the participants are known, an operator's commands, and its log lines.

use super::{EventLoop, instant};
use crate::difference::words;
use crate::gossip_files::local_factor;
use crate::incarnation;
use crate::participant_discovery::ParticipantDiscovery;
use muster_config::{GossipConfig, GroupName, Teller, draw_seed, written};
use muster_control::{GossipCommand, Made};
use muster_fabric::Transport;
use muster_protocol::age::Participant;
use muster_protocol::{Age, AgeConfig, CauseKind, Engine, Event, EventKind, Input};
use muster_sys::clock::monotonic_ns;
use muster_zones::Tree;
use serde_json::{Value, json};
use tracing::{error, info, warn};

/// AG-17: logs each change of a member's state with the clock, and with the clock of the message that caused it, if
/// any. Changes of ages alone are not logged.
pub(super) fn log(age: &Age, event: &Event) {
    let (clock, peer) = (age.clock(), age.name_of(event.member).unwrap_or("?"));
    let is_silence = event.cause.kind == CauseKind::Silence;
    let message_clock = age.message_clock().filter(|_| !is_silence);
    let what = event.kind;
    match what {
        EventKind::NodeFailed | EventKind::NodeSuspect => {
            warn!(clock, message_clock, peer, event = ?what, "gossip");
        }
        EventKind::Refused(difference) => {
            let [parameter, own, other] = words(difference);
            error!(
                clock,
                message_clock,
                peer,
                parameter,
                own,
                other,
                "gossip stops: the peer has another value of this parameter"
            );
        }
        _ => info!(clock, message_clock, peer, event = ?what, "gossip"),
    }
}

/// AG-17: parameters, clock, ages and members, for `muster gossip`.
pub(super) fn status(engine: &Engine) -> Value {
    let Some(engine) = engine.age() else {
        return json!({ "error": "this agent runs the overlay, which has no ages" });
    };
    let config = engine.config();
    let digest: String = engine
        .participants_digest()
        .iter()
        .map(|byte| format!("{byte:02x}"))
        .collect();
    let ages: Vec<Value> = engine
        .ages()
        .map(|(participant, age)| {
            let Participant { nid, name, .. } = participant;
            let id = muster_protocol::MemberId::of(name);
            let state = engine.member(id).map_or("unknown", |member| {
                muster_control::state_word(member.state())
            });
            json!({ "nid": nid, "name": name, "age": age, "state": state })
        })
        .collect();
    json!({
        "schema": "muster/gossip/v1",
        "running": engine.is_gossiping(),
        "waiting": config.is_waiting,
        "refused": engine.refused().map(|(id, difference)| json!({
            "member": engine.name_of(id),
            "values": words(difference)[1..],
            "parameter": words(difference)[0],
        })),
        "clock": engine.clock(),
        "cycles": engine.cycles(),
        "own": config.own,
        "interval_ms": config.interval_us as f64 / 1e3,
        "round_trip_ms": config.round_trip_us as f64 / 1e3,
        "suspect_after": config.suspect_after,
        "dead_after": config.dead_after,
        "obsolete_after": config.rules.obsolete_after,
        "laziness": config.rules.laziness,
        "local": local_factor(engine),
        "random_seed": config.random_seed,
        "digest": digest,
        "participants": ages,
    })
}

impl EventLoop {
    /// Takes the list of participants when it is complete, and starts gossip.
    pub(super) fn discover_participants(&mut self) {
        let Engine::Age(engine) = self.tree.base() else {
            return;
        };
        let key = engine.config().key;
        let Some(participant_discovery) = &mut self.admin_endpoint.participant_discovery else {
            return;
        };
        let own = self.fabric.local_nids();
        let Some(gossip) = participant_discovery.poll(key, &own) else {
            return;
        };
        self.admin_endpoint.participant_discovery = None;
        match self.init_gossip(&gossip, None) {
            Ok(_) => {
                if let Some(job) = &mut self.job {
                    job.save_participants(written(&gossip.participants));
                }
                self.expect_present();
                if let Engine::Age(engine) = self.tree.base_mut() {
                    engine.resume_gossip();
                }
            }
            Err(reason) => error!(
                reason,
                "gossip cannot start with the discovered participants"
            ),
        }
    }

    /// Executes one command. Commands arrive one at a time.
    pub(super) fn gossip(
        &mut self,
        command: &GossipCommand,
        made: Option<Made>,
    ) -> Result<String, String> {
        let Engine::Age(engine) = self.tree.base_mut() else {
            return Err("this agent runs the overlay; start it with --protocol age \
                        (MUSTER_PROTOCOL=age)"
                .into());
        };
        match command {
            GossipCommand::Start => {
                engine.resume_gossip();
                info!(clock = engine.clock(), "gossip continues");
                Ok(format!("gossip continues at clock {}", engine.clock()))
            }
            GossipCommand::Stop => {
                engine.halt();
                info!(clock = engine.clock(), "gossip is stopped");
                Ok(format!("gossip is stopped at clock {}", engine.clock()))
            }
            GossipCommand::Init { .. } => {
                let Some(Made::Gossip(gossip, config)) = made else {
                    return Err("it was not validated; retry".into());
                };
                // Where a gossip server or seeds supply the participants, this node stays in its group.
                let own = engine.config().participants.iter();
                let own = own.clone().find(|one| one.nid == engine.config().own);
                let group = own.map_or("", |own| &own.group);
                let own_group = GroupName::new(group).map_err(|error| error.to_string())?;
                if matches!(gossip.told_by, Some(Teller::Seeds(_))) {
                    return Err(
                        "seeds:N: seeds are known only at the start of an agent; name the participants, or a gossip \
                         server (server:HOST:PORT)"
                            .into(),
                    );
                }
                let gossip = GossipConfig {
                    own_group,
                    own_name: Some(self.admin_endpoint.node().to_owned()),
                    ..*gossip
                };
                self.init_gossip(&gossip, config.map(|config| *config))
            }
        }
    }

    /// Replaces the engine by a new one without any state of the old one. Uses this configuration, if the parameters
    /// were made into one already. Gossip is stopped until an operator starts it.
    fn init_gossip(
        &mut self,
        gossip: &GossipConfig,
        made: Option<AgeConfig>,
    ) -> Result<String, String> {
        let local = self.fabric.local_nids();
        let mut config = made.map_or_else(|| gossip.engine(&local), Ok)?;
        let Engine::Age(before) = self.tree.base_mut() else {
            return Err("this agent runs the overlay".into());
        };
        let is_waiting = config.is_waiting;
        config.key = before.config().key;
        config.mtu = before.config().mtu;
        config.incarnation = incarnation::next();
        config.first_sequence = monotonic_ns() / 1000;
        config.random_seed = draw_seed();
        let mut engine = Age::new(config).map_err(|error| error.to_string())?;
        before.disband();
        self.handle_events(None)
            .map_err(|error| error.to_string())?;
        let _ = engine.handle(instant(monotonic_ns()), Input::Wake);
        engine.halt();
        let count = engine.config().participants.len();
        self.tree = Tree::flat(engine.into());
        self.admin_endpoint.participant_discovery = ParticipantDiscovery::of(gossip);
        if is_waiting {
            info!("gossip is initialised and waits for its participants");
            return Ok("initialised; it begins when all participants are known".into());
        }
        info!(participants = count, "gossip is initialised");
        Ok(format!(
            "initialised with {count} participants; start it with muster gossip start"
        ))
    }
}
