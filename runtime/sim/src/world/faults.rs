//! What can be done to a node: told, crashed, restarted, handed over, stopped, slowed, cut off.

use muster_protocol::{Input, Instant, Overlay, RankDetail, RankState, Reject, Told};

use super::{Happening, NodeIndex, World};

impl World {
    /// Hands an input to a node's engine now.
    ///
    /// # Errors
    /// What the engine said.
    pub fn input(&mut self, node: NodeIndex, input: Input<'_>) -> Result<(), Reject> {
        self.touch(node, input)
    }

    /// The kernel of a node says what became of a rank.
    ///
    /// # Panics
    /// If the engine refuses it.
    pub fn rank(&mut self, node: NodeIndex, rank: u32, state: RankState) {
        let detail = RankDetail {
            code: 1,
            argument: 9,
        };
        let told = Told::Rank {
            rank,
            state,
            detail,
        };
        self.touch(node, Input::Told(told))
            .expect("a rank fact of one's own node");
    }

    /// Power off: nothing of the node is left, and nobody is told.
    pub fn crash(&mut self, index: NodeIndex) {
        let now = self.now;
        let node = &mut self.nodes[index];
        node.engine = None;
        node.gone_at = now;
        node.paused = false;
        node.deaf = false;
        node.restless = 0;
        node.continues_at = Instant::default();
        node.inbox.clear();
        node.alarm.stop();
        self.clear_desk(index);
        self.note_view(index);
        self.rails.forget(index);
    }

    /// A crashed node (or one that runs) starts a new life.
    ///
    /// # Panics
    /// If the configuration is refused.
    pub fn restart(&mut self, node: NodeIndex) {
        self.crash(node);
        self.checker.forget(node);
        self.forget_excuse(node);
        let entry = &mut self.nodes[node];
        let own_now = entry.clock.own(self.now);
        // Launch times only grow; a clock that was set back is stories' matter.
        entry.config.incarnation = (own_now.0 * 1000).max(entry.version.incarnation + 1);
        entry.config.first_sequence = own_now.0;
        entry.started_at = self.now;
        entry.engine = Some(Overlay::new(entry.config.clone()).expect("checked before"));
        self.touch(node, Input::Wake).ok();
    }

    /// The worker of a node dies and another takes over from its snapshot, `gap_us` later.
    ///
    /// # Panics
    /// If the node is crashed or its snapshot cannot be read.
    pub fn resume_worker(&mut self, node: NodeIndex, gap_us: u64) {
        let mut bytes = Vec::new();
        self.engine(node).snapshot(&mut bytes);
        self.crash(node);
        self.checker.hand_over(node);
        let now = self.now.after(gap_us);
        let entry = &mut self.nodes[node];
        let own_now = entry.clock.own(now);
        entry.config.first_sequence = own_now.0;
        let engine = Overlay::resume(entry.config.clone(), &bytes, own_now);
        entry.engine = Some(engine.expect("a snapshot made just now"));
        entry.paused = true;
        entry.continues_at = now;
        self.queue.push(now, Happening::Continue(node as u32));
    }

    /// SIGSTOP: the node does nothing for so long; its socket holds what arrives, up to a bound.
    pub fn pause(&mut self, node: NodeIndex, duration_us: u64) {
        self.note_stop(node, duration_us);
        let until = self.now.after(duration_us);
        let entry = &mut self.nodes[node];
        entry.paused = true;
        entry.continues_at = until.max(entry.continues_at);
        self.note_view(node);
        self.queue.push(until, Happening::Continue(node as u32));
    }

    /// The whole machine stands still for so long, and what arrives meanwhile is lost.
    pub fn suspend(&mut self, node: NodeIndex, duration_us: u64) {
        self.nodes[node].deaf = true;
        self.pause(node, duration_us);
    }

    /// Cuts a node off, both ways.
    pub fn isolate(&mut self, node: NodeIndex) {
        let others: Vec<NodeIndex> = (0..self.nodes.len())
            .filter(|other| *other != node)
            .collect();
        self.split(&[node], &others);
    }

    /// Cuts all ways between two groups.
    pub fn split(&mut self, left: &[NodeIndex], right: &[NodeIndex]) {
        for a in left {
            for b in right {
                self.note_cut(*a, *b, false);
                self.network.cut(*a, *b);
                self.network.cut(*b, *a);
            }
        }
    }

    /// From now on the node is late for whatever comes, each time by up to so much.
    pub fn slow(&mut self, node: NodeIndex, slow_us: u64) {
        self.note_lateness(node, slow_us);
        self.nodes[node].slow_us = slow_us;
    }

    /// From now on the node's clock gains so many microseconds in a second.
    pub fn set_clock_rate(&mut self, node: NodeIndex, rate_ppm: i64) {
        let now = self.now;
        self.nodes[node].clock.set_rate(now, rate_ppm);
        // The alarm that is set goes by the new rate.
        self.set_alarm(node);
    }

    /// Nothing from `from` arrives at `to` any more. One such link is within bounds; of more than
    /// one, or in a zone so small that nobody is left to look, the pair is excused.
    pub fn cut_one_way(&mut self, from: NodeIndex, to: NodeIndex) {
        let is_alone = !self.network.has_cuts();
        self.note_cut(from, to, is_alone);
        self.network.cut(from, to);
    }

    /// More is lost than the promises allow for: everybody is excused, until it is over.
    pub fn storm(&mut self, loss_permille: u32) {
        self.note_storm(false);
        self.network.loss_permille = loss_permille;
    }

    /// The storm is over, and so many in a thousand are lost.
    pub fn end_storm(&mut self, loss_permille: u32) {
        self.network.loss_permille = loss_permille;
        self.note_storm(true);
    }

    /// All slow nodes are quick again.
    pub fn quick(&mut self) {
        (0..self.nodes.len()).for_each(|node| self.slow(node, 0));
    }
}
