//! The ledger on the overlay: an entry is news on every link, acknowledged and repaired like all news.
//!
//! The digest in beats covers the ledger too, so that a member that missed an entry is found.

use crate::identity::MemberId;
use crate::interface::Phase;
use crate::ledger::{LedgerEntry, LedgerKey, Merged};
use crate::overlay::Overlay;
use crate::planted::{self, Fault};
use crate::reject::Reject;
use crate::subjects::Subject;

impl Overlay {
    /// The entry with this key.
    #[must_use]
    pub fn ledger_entry(&self, key: LedgerKey) -> Option<&LedgerEntry> {
        self.ledger.get(key)
    }

    /// All entries, in the order of their keys.
    pub fn ledger(&self) -> impl Iterator<Item = &LedgerEntry> {
        self.ledger.iter()
    }

    /// The next key whose entry has changed, by the host or by another member. Each change is told once; of several
    /// changes of one key only the last one.
    #[must_use]
    pub fn poll_ledger(&mut self) -> Option<LedgerKey> {
        self.ledger.pop_changed()
    }

    /// What two members compare in beats and link requests: view and ledger.
    pub(super) fn view_digest(&self) -> u64 {
        self.table.digest().wrapping_add(self.ledger.digest())
    }

    /// Takes an entry of the host.
    pub(super) fn record(&mut self, entry: LedgerEntry) -> Result<(), Reject> {
        if self.phase != Phase::Running {
            return Err(Reject::Stopped);
        }
        match self.ledger.merge(entry) {
            Merged::New => self.spread(Subject::Record(entry.key()), None),
            Merged::Known | Merged::Old => {}
            Merged::Refused => {
                self.counters.facts_refused += 1;
                return Err(Reject::Full);
            }
        }
        Ok(())
    }

    /// Takes an entry of another member.
    pub(super) fn merge_record(&mut self, from: MemberId, entry: LedgerEntry) {
        let subject = Subject::Record(entry.key());
        if planted::on(Fault::LostRecord) && entry.node_state().is_some() {
            return;
        }
        match self.ledger.merge(entry) {
            Merged::New => self.spread(subject, Some(from)),
            Merged::Refused => self.counters.facts_refused += 1,
            merged => {
                if let Some(link) = self.links.get_mut(&from) {
                    match merged {
                        Merged::Old => link.mark(subject),
                        _ => link.unmark(subject),
                    }
                }
            }
        }
    }
}
