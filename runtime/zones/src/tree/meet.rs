//! Where the sides of a zone meet after a split.
//!
//! The sides of a split zone send members to the zone above, each its own. As soon as that zone is whole, its members
//! see who runs on the other side of theirs, and ask them to join. Otherwise they would find each other only by the
//! rare join requests to members that are held failed, and tell their ranks meanwhile that zones have failed that run.

use muster_protocol::{Input, Instant, MemberId};

use crate::tree::Tree;

impl Tree {
    /// Asks members of the zone at this level to join the zone below, if they come from the local node's and are not in
    /// the view there; once a deadline.
    pub(super) fn meet(&mut self, level: usize) {
        let (above, own) = (&self.levels[level], &self.levels[level - 1]);
        let is_apart =
            |(id, number): &&(MemberId, u32)| *number == own.zone.number && !own.sees(*id);
        let apart = above.origins.iter().filter(is_apart);
        let addresses =
            apart.filter_map(|(id, _)| Some(above.engine.member(*id)?.address().to_vec()));
        let addresses: Vec<Vec<u8>> = addresses.collect();
        let (now, deadline_us) = (self.now, self.config.deadline_us);
        let meet_at = &mut self.levels[level].meet_at;
        if addresses.is_empty() {
            *meet_at = Instant::NEVER;
            return;
        }
        if *meet_at == Instant::NEVER {
            // One that has just died is soon out of this view too.
            *meet_at = now.after(deadline_us);
        }
        if now < *meet_at {
            return;
        }
        *meet_at = now.after(deadline_us);
        for address in addresses {
            // It is refused only if the engine has stopped.
            let input = Input::Contact { address: &address };
            let _ = self.levels[level - 1].engine.handle(now, input);
        }
    }
}
