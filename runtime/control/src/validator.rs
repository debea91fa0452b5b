//! Validates changes before the loop gets them.
//!
//! The loop publishes a snapshot of the configuration after each change of its own. A control thread reads the request,
//! makes the document after the change from that snapshot, and hands both on with the snapshot's number. If the loop
//! has published another snapshot by then, it refuses the change, and the client can ask again. So the loop, which
//! must not wait, only gets changes that are valid.

use super::{GossipCommand, Request};
use muster_config::{GossipConfig, RailsDocument};
use muster_fabric::{Nid, NidList};
use muster_protocol::AgeConfig;
use std::sync::{Arc, Condvar, Mutex, PoisonError};
use std::time::Duration;

/// A configuration that is in force.
struct InForce {
    number: u64,
    document: RailsDocument,
    /// What became of each of the document's rails, in its order.
    open: Vec<Nid>,
    /// The node's rails, if it runs age gossip.
    gossips_at: Option<NidList>,
}

/// The last configuration that the loop has published.
#[derive(Default)]
pub(super) struct ConfigSnapshot {
    current: Mutex<Option<Arc<InForce>>>,
    is_new: Condvar,
}

/// The result of validating a request.
pub struct Validated {
    number: u64,
    /// What was validated.
    pub made: Made,
}

/// What the loop puts in force.
pub enum Made {
    /// The document after a change.
    Document(RailsDocument),
    /// Parameters of age gossip; its configuration too, unless others tell the participants.
    Gossip(Box<GossipConfig>, Option<Box<AgeConfig>>),
}

impl ConfigSnapshot {
    pub(super) fn publish(
        &self,
        document: &RailsDocument,
        open: &[Nid],
        gossips_at: Option<NidList>,
    ) {
        let (document, open) = (document.clone(), open.to_vec());
        let mut current = self.current.lock().unwrap_or_else(PoisonError::into_inner);
        let number = current.as_ref().map_or(0, |before| before.number + 1);
        *current = Some(Arc::new(InForce {
            number,
            document,
            open,
            gossips_at,
        }));
        self.is_new.notify_all();
    }

    /// Whether the configuration is the one that this was validated against.
    pub(super) fn is_current(&self, validated: &Validated) -> bool {
        let current = self.current.lock().unwrap_or_else(PoisonError::into_inner);
        current
            .as_ref()
            .is_some_and(|now| now.number == validated.number)
    }

    /// The last configuration. An agent that has just started may not have published one yet.
    fn read(&self, timeout: Duration) -> Option<Arc<InForce>> {
        let current = self.current.lock().unwrap_or_else(PoisonError::into_inner);
        let is_none = |current: &mut Option<_>| current.is_none();
        let waited = self.is_new.wait_timeout_while(current, timeout, is_none);
        waited.unwrap_or_else(PoisonError::into_inner).0.clone()
    }

    /// Validates a request. `None` if it changes neither rails nor participants.
    ///
    /// # Errors
    /// The reason why the change is not possible.
    pub(super) fn validate(
        &self,
        request: &Request,
        timeout: Duration,
    ) -> Result<Option<Validated>, String> {
        let in_force = || {
            let why = "the agent has only just begun, and has done nothing; ask again";
            self.read(timeout).ok_or_else(|| why.to_owned())
        };
        match request {
            Request::Change(change) => {
                let now = in_force()?;
                let next = change.onto(&now.document, &now.open);
                let made = Made::Document(next.map_err(|error| error.to_string())?);
                let number = now.number;
                Ok(Some(Validated { number, made }))
            }
            Request::Gossip(command @ GossipCommand::Init { .. }) => {
                let now = in_force()?;
                // The loop refuses it: there is no age gossip on this node.
                let Some(own) = &now.gossips_at else {
                    return Ok(None);
                };
                let made = gossip(command, own)?;
                let number = now.number;
                Ok(made.map(|made| Validated { number, made }))
            }
            _ => Ok(None),
        }
    }
}

fn gossip(command: &GossipCommand, own: &NidList) -> Result<Option<Made>, String> {
    let GossipCommand::Init {
        interval_ms,
        round_trip_ms,
        allow_fast_interval,
        local,
        participants,
    } = command
    else {
        return Ok(None);
    };
    // A file on the agent's machine may be endless, and the client may not have the right to read it.
    if let Some(file) = participants.iter().find(|word| word.starts_with("file:")) {
        return Err(format!(
            "{file:?}: a running agent opens no files for a client; write what is in it instead, as muster gossip \
             init does"
        ));
    }
    let gossip = GossipConfig::parse(
        participants,
        interval_ms,
        round_trip_ms,
        *allow_fast_interval,
        local.as_deref(),
    );
    let gossip = gossip.map_err(|error| error.to_string())?;
    let config = match gossip.told_by {
        Some(_) => None,
        None => {
            let config = gossip.engine(own)?;
            config.check().map_err(|error| error.to_string())?;
            Some(Box::new(config))
        }
    };
    Ok(Some(Made::Gossip(Box::new(gossip), config)))
}
