//! Faults and inputs of a node: crash, restart, worker change, stop, slowness, cuts.

use muster_protocol::{Input, Instant, Overlay, RankDetail, RankState, Reject, Told};

use super::{Happening, NodeIndex, World};

impl World {
    /// Hands an input to a node's engine now.
    ///
    /// # Errors
    /// Returns the engine's refusal.
    pub fn input(&mut self, node: NodeIndex, input: Input<'_>) -> Result<(), Reject> {
        self.touch(node, input)
    }

    /// A node's kernel reports a rank's state.
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
            .expect("a rank fact of the node itself");
    }

    /// Power off: nothing of the node is left, and no member is notified.
    pub fn crash(&mut self, index: NodeIndex) {
        let now = self.now;
        let node = &mut self.nodes[index];
        node.engine = None;
        node.gone_at = now;
        node.paused = false;
        node.drops_input = false;
        node.restless = 0;
        node.continues_at = Instant::default();
        node.inbox.clear();
        node.alarm.stop();
        self.clear_sockets(index);
        self.note_view(index);
        self.rails.forget(index);
    }

    /// A crashed or running node starts a new incarnation.
    ///
    /// # Panics
    /// If the configuration is refused.
    pub fn restart(&mut self, node: NodeIndex) {
        self.crash(node);
        self.checker.forget(node);
        self.forget_excuse(node);
        let entry = &mut self.nodes[node];
        let own_now = entry.clock.own(self.now);
        // Launch times only grow here; tests of their own cover a clock that was set back.
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
        entry.engine = Some(engine.expect("the snapshot was made just before"));
        entry.paused = true;
        entry.continues_at = now;
        self.queue.push(now, Happening::Continue(node as u32));
    }

    /// SIGSTOP: the node does nothing for this time; its socket keeps what arrives, up to a bound.
    pub fn pause(&mut self, node: NodeIndex, duration_us: u64) {
        self.note_stop(node, duration_us);
        let until = self.now.after(duration_us);
        let entry = &mut self.nodes[node];
        entry.paused = true;
        entry.continues_at = until.max(entry.continues_at);
        self.note_view(node);
        self.queue.push(until, Happening::Continue(node as u32));
    }

    /// The whole machine stops for this time, and what arrives meanwhile is lost.
    pub fn suspend(&mut self, node: NodeIndex, duration_us: u64) {
        self.nodes[node].drops_input = true;
        self.pause(node, duration_us);
    }

    /// Cuts a node off in both directions.
    pub fn isolate(&mut self, node: NodeIndex) {
        let others: Vec<NodeIndex> = (0..self.nodes.len())
            .filter(|other| *other != node)
            .collect();
        self.split(&[node], &others);
    }

    /// Cuts all paths between two groups.
    pub fn split(&mut self, left: &[NodeIndex], right: &[NodeIndex]) {
        for a in left {
            for b in right {
                self.note_cut(*a, *b, false);
                self.network.cut(*a, *b);
                self.network.cut(*b, *a);
            }
        }
    }

    /// From now on the node handles every event late, each time by up to `slow_us`.
    pub fn slow(&mut self, node: NodeIndex, slow_us: u64) {
        self.note_lateness(node, slow_us);
        self.nodes[node].slow_us = slow_us;
    }

    /// From now on the node's clock gains `rate_ppm` microseconds per second.
    pub fn set_clock_rate(&mut self, node: NodeIndex, rate_ppm: i64) {
        let now = self.now;
        self.nodes[node].clock.set_rate(now, rate_ppm);
        // The alarm that is set follows the new rate.
        self.set_alarm(node);
    }

    /// Nothing that `from` sends arrives at `to` any more. One such link is within bounds. Of several ones,
    /// or in a zone so small that no other member is left to probe, the pair is excused.
    pub fn cut_one_way(&mut self, from: NodeIndex, to: NodeIndex) {
        let is_alone = !self.network.has_cuts();
        self.note_cut(from, to, is_alone);
        self.network.cut(from, to);
    }

    /// More is lost than the guarantees allow: all members are excused until the storm is over.
    pub fn storm(&mut self, loss_permille: u32) {
        self.note_storm(false);
        self.network.loss_permille = loss_permille;
    }

    /// Ends the storm; the loss is now `loss_permille`.
    pub fn end_storm(&mut self, loss_permille: u32) {
        self.network.loss_permille = loss_permille;
        self.note_storm(true);
    }

    /// Ends the slowness of all nodes.
    pub fn end_slowness(&mut self) {
        (0..self.nodes.len()).for_each(|node| self.slow(node, 0));
    }
}
