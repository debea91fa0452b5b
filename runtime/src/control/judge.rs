//! Changes, judged at the door: what can be wrong with one is found by the server thread, and the loop meets only
//! what is good.
//!
//! Intuition: who builds asks for the permit at the counter, with the plan that hangs there, and does not stop
//! the workers for it. The loop hangs up a copy of what is in force after each change of its own. A server thread reads
//! the words, however many names they stand for, makes the document after the change, and hands on both with
//! the number of the copy. If another one hangs there by then, the change is refused and can be asked for again.

use super::{GossipCommand, Request};
use crate::config::{GossipConfig, RailsDocument};
use muster_fabric::{Nid, NidList};
use muster_protocol::AgeConfig;
use std::sync::{Arc, Condvar, Mutex, PoisonError};
use std::time::Duration;

/// What is in force.
struct InForce {
    number: u64,
    document: RailsDocument,
    /// What became of each of the document's rails, in its order.
    open: Vec<Nid>,
    /// The node's rails, if it runs age gossip.
    gossips_at: Option<NidList>,
}

/// Where the loop hangs it up.
#[derive(Default)]
pub(super) struct Board {
    hangs: Mutex<Option<Arc<InForce>>>,
    is_new: Condvar,
}

/// What was made of a request before the loop has it.
pub(crate) struct Judged {
    number: u64,
    pub(crate) made: Made,
}

/// What the loop is to put in force.
pub(crate) enum Made {
    /// The document after a change.
    Document(RailsDocument),
    /// Parameters of age gossip; its configuration too, unless others tell the participants.
    Gossip(Box<GossipConfig>, Option<Box<AgeConfig>>),
}

impl Board {
    pub(super) fn hang(&self, document: &RailsDocument, open: &[Nid], gossips_at: Option<NidList>) {
        let (document, open) = (document.clone(), open.to_vec());
        let mut hangs = self.hangs.lock().unwrap_or_else(PoisonError::into_inner);
        let number = hangs.as_ref().map_or(0, |before| before.number + 1);
        *hangs = Some(Arc::new(InForce {
            number,
            document,
            open,
            gossips_at,
        }));
        self.is_new.notify_all();
    }

    /// Whether nothing has changed since this was judged.
    pub(super) fn still_holds(&self, judged: &Judged) -> bool {
        let hangs = self.hangs.lock().unwrap_or_else(PoisonError::into_inner);
        hangs
            .as_ref()
            .is_some_and(|now| now.number == judged.number)
    }

    /// What hangs there; an agent that has only just begun may need a moment.
    fn read(&self, patience: Duration) -> Option<Arc<InForce>> {
        let hangs = self.hangs.lock().unwrap_or_else(PoisonError::into_inner);
        let is_bare = |hangs: &mut Option<_>| hangs.is_none();
        let waited = self.is_new.wait_timeout_while(hangs, patience, is_bare);
        waited.unwrap_or_else(PoisonError::into_inner).0.clone()
    }

    /// Judges a request; there is nothing to judge of one that changes neither rails nor participants.
    ///
    /// # Errors
    /// Why it cannot be done.
    pub(super) fn judge(
        &self,
        request: &Request,
        patience: Duration,
    ) -> Result<Option<Judged>, String> {
        let in_force = || {
            let why = "the agent has only just begun, and has done nothing; ask again";
            self.read(patience).ok_or_else(|| why.to_owned())
        };
        match request {
            Request::Change(change) => {
                let now = in_force()?;
                let next = change.onto(&now.document, &now.open);
                let made = Made::Document(next.map_err(|error| error.to_string())?);
                let number = now.number;
                Ok(Some(Judged { number, made }))
            }
            Request::Gossip(command @ GossipCommand::Init { .. }) => {
                let now = in_force()?;
                // The loop says that there is no age gossip here.
                let Some(own) = &now.gossips_at else {
                    return Ok(None);
                };
                let made = gossip(command, own)?;
                let number = now.number;
                Ok(made.map(|made| Judged { number, made }))
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
    // A file of the agent's machine may have no end, and nobody has to be told what is in it.
    if let Some(file) = participants.iter().find(|word| word.starts_with("file:")) {
        return Err(format!(
            "{file:?}: a running agent opens no files for who asks; write what is in it instead, as muster gossip \
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
