//! Waiting for a state, with a deadline: on the board, so that any number of threads may.

use std::time::{Duration, Instant};

use super::{Client, Error};
use crate::board::{BoardView, NodeState, RankState};

/// How long a sleeper stays with one board before it looks whether there is another.
const NAP: Duration = Duration::from_millis(250);

impl Client {
    /// Waits until the node of this index is in one of these states, and says in which. `None` if it
    /// was in none of them before the deadline; an index that is not known yet is `Unknown`.
    ///
    /// Without a library thread this dispatches as well. A lost agent is no error here: another one
    /// may come before the deadline.
    pub fn await_node(
        &self,
        node: u32,
        states: &[NodeState],
        deadline: Duration,
    ) -> Result<Option<NodeState>, Error> {
        self.await_board(deadline, |board| {
            Some(board.node_state(node)).filter(|state| states.contains(state))
        })
    }

    /// As [`Client::await_node`], of a rank.
    pub fn await_rank(
        &self,
        rank: u32,
        states: &[RankState],
        deadline: Duration,
    ) -> Result<Option<RankState>, Error> {
        self.await_board(deadline, |board| {
            Some(board.rank_state(rank)).filter(|state| states.contains(state))
        })
    }

    /// Waits until at least so many ranks are in one of these states, and says how many are. `None` if
    /// there were fewer up to the deadline.
    pub fn await_ranks(
        &self,
        count: u32,
        states: &[RankState],
        deadline: Duration,
    ) -> Result<Option<u32>, Error> {
        self.await_board(deadline, |board| {
            let ranks = 0..board.rank_count();
            let found = ranks.filter(|rank| states.contains(&board.rank_state(*rank)));
            let found = found.count() as u32;
            (found >= count).then_some(found)
        })
    }

    fn await_board<T>(
        &self,
        deadline: Duration,
        mut look: impl FnMut(&BoardView) -> Option<T>,
    ) -> Result<Option<T>, Error> {
        let now = Instant::now();
        // What no clock can count is a very long time.
        let until = now
            .checked_add(deadline)
            .unwrap_or(now + Duration::from_secs(1 << 32));
        loop {
            let board = self.board()?;
            let nap = until.min(Instant::now() + NAP);
            if let Some(found) = board.await_change(nap, &mut look) {
                return Ok(Some(found));
            }
            if Instant::now() >= until {
                return Ok(None);
            }
            if !self.inner.setting.options.thread {
                let _ = self.dispatch();
            }
        }
    }
}
