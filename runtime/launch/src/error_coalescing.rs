//! What several launchers have to say is said by one of them, for all.
//!
//! Picture a class that is asked who has lost his book: the first in the row says it for everybody who has. A launcher
//! that fails writes so on its bell before it says a word, and listens for a moment to those who may have the same to
//! say.

use std::collections::BTreeSet;
use std::time::{Duration, Instant};

use super::node::{Launcher, TICK};
use super::node_status::NodeStatus;
use super::{Error, stdin_control};
use muster_sys::poll::readable;

/// How long is waited for others who may have the same to say: as long as launchers on a busy machine may take to come
/// after each other.
const ECHO: Duration = Duration::from_secs(10);

impl Launcher {
    /// The error as it is to be said here, or the exit status alone if another launcher says it. It stands on the
    /// bell already.
    pub(super) fn settle_who_speaks(&mut self, error: Error) -> Result<Option<u8>, Error> {
        let status = error.status();
        let Error::Program { program, why, .. } = &error else {
            let said = self.listen(|launcher| launcher.any_before_has_aborted(), false);
            return if said { Ok(Some(status)) } else { Err(error) };
        };
        let (program, why) = (program.clone(), why.clone());
        let is_before = |launcher: &Self| {
            let failing = launcher.failing_alike(&program, &why);
            failing.first().is_some_and(|first| *first < launcher.own)
        };
        if self.listen(is_before, true) {
            return Ok(Some(status));
        }
        let mut failing = self.failing_alike(&program, &why);
        failing.insert(self.own);
        let names = failing.iter().map(|node| self.plan.layout.name(*node));
        let node = muster_hostlist::fold(names);
        Err(Error::Program { program, node, why })
    }

    /// Waits until somebody says it, or those before this one (or all) have said how they are. Whether somebody does.
    fn listen(&mut self, is_said: impl Fn(&Self) -> bool, to_all: bool) -> bool {
        let until = Instant::now() + ECHO;
        let (own, has_met) = (self.own, self.has_met);
        let spoke = |node_status: &NodeStatus| {
            let goes_on = node_status.connected || !node_status.ended.is_empty();
            node_status.abort.is_some() || if has_met { goes_on } else { node_status.ready }
        };
        loop {
            let silent = self.peers.without(spoke);
            // Who was not started never comes.
            let lost = stdin_control::lost();
            let awaited = silent
                .iter()
                .any(|node| (to_all || *node < own) && !lost.contains(node));
            if is_said(self) || !awaited || Instant::now() >= until {
                return is_said(self);
            }
            self.ranks.look();
            self.reap();
            // Not at all that wakes the launcher: signals are for later.
            let descriptor = self.client.descriptor();
            let is_woken = descriptor.is_ok_and(|one| readable(&[one], Some(TICK)).is_ok());
            if !is_woken || self.peers.take_events().is_err() {
                return false;
            }
        }
    }

    /// Whether the launcher of an earlier node has ended the job itself: one that repeats what another says is silent.
    fn any_before_has_aborted(&self) -> bool {
        let mut aborts = self
            .peers
            .node_statuses()
            .filter_map(|(_, node_status)| node_status.abort.as_ref());
        aborts.any(|abort| abort.by < self.own)
    }

    /// Other nodes on which this program cannot be started either, for the same reason. Those who have only heard of it
    /// say the same of them.
    fn failing_alike(&self, program: &str, why: &str) -> BTreeSet<usize> {
        let aborts = self
            .peers
            .node_statuses()
            .filter_map(|(_, node_status)| node_status.abort.as_ref());
        let names = aborts.filter_map(|abort| node_of(&abort.why, program, why));
        let nodes = names.filter_map(|name| self.plan.layout.node_named(name));
        nodes.filter(|node| *node != self.own).collect()
    }
}

/// The node of which these words say that the program cannot be started there for this reason.
fn node_of<'a>(text: &'a str, program: &str, why: &str) -> Option<&'a str> {
    const NODE: char = '\0';
    let error = Error::Program {
        program: program.to_owned(),
        node: NODE.into(),
        why: why.to_owned(),
    };
    let all = error.to_string();
    let (before, after) = all.split_once(NODE)?;
    text.strip_prefix(before)?.strip_suffix(after)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_same_of_another_node_is_recognized() {
        let error = |node: &str, why: &str| Error::Program {
            program: "./a".into(),
            node: node.into(),
            why: why.into(),
        };
        let text = error("n3", "it is a directory").to_string();
        assert_eq!(node_of(&text, "./a", "it is a directory"), Some("n3"));
        assert_eq!(node_of(&text, "./b", "it is a directory"), None);
        assert_eq!(node_of(&text, "./a", "it may not be executed"), None);
        assert_eq!(node_of("ended by signal 2", "./a", "no"), None);
    }
}
