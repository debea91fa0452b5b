//! Waits for a state, with a deadline: on the state table, so that any number of threads may wait.

use std::sync::atomic::{AtomicU32, Ordering};
use std::time::{Duration, Instant};

use super::{Client, Error};
use muster_shm::{Event, NodeState, RankState, TableView};
use muster_sys::poll;
use std::os::fd::AsFd;

/// Without a library thread, a waiting thread dispatches this often. With one, no thread wakes without a reason.
const DISPATCH_PERIOD: Duration = Duration::from_millis(250);
/// How long [`Client::wake_takers`] waits for the threads that wait for events.
const WAKE_DEADLINE: Duration = Duration::from_secs(1);

impl Client {
    /// Waits until the node of this index is in one of these states, and returns the state. `None` if it was in none
    /// of them before the deadline; an index that is not known yet is `Unknown`. Another agent that starts meanwhile
    /// may number the nodes differently: the wait is for the node that had the index at first, by its name.
    ///
    /// Without a library thread this dispatches as well. A lost agent is no error here: another one may start before
    /// the deadline.
    pub fn wait_node(
        &self,
        node: u32,
        states: &[NodeState],
        deadline: Duration,
    ) -> Result<Option<NodeState>, Error> {
        let mut named_node = NamedNode::new(node);
        self.await_table(deadline, |table| {
            let state = named_node
                .index_in(table)
                .map(|node| table.node_state(node));
            Some(state.unwrap_or(NodeState::Unknown)).filter(|state| states.contains(state))
        })
    }

    /// As [`Client::wait_node`], for a rank.
    pub fn wait_rank(
        &self,
        rank: u32,
        states: &[RankState],
        deadline: Duration,
    ) -> Result<Option<RankState>, Error> {
        self.await_table(deadline, |table| {
            Some(table.rank_state(rank)).filter(|state| states.contains(state))
        })
    }

    /// Waits until at least `count` ranks are in one of these states, and returns their number. `None` if there were
    /// fewer up to the deadline.
    pub fn wait_ranks(
        &self,
        count: u32,
        states: &[RankState],
        deadline: Duration,
    ) -> Result<Option<u32>, Error> {
        self.await_table(deadline, |table| {
            let ranks = 0..table.rank_count();
            let found = ranks.filter(|rank| states.contains(&table.rank_state(*rank)));
            let found = found.count() as u32;
            (found >= count).then_some(found)
        })
    }

    /// The next event; waits for one if there is none. `None` if none came before the deadline. Without a library
    /// thread this dispatches as well. If the agent is lost, it waits for another one, and for its events, up to the
    /// deadline.
    ///
    /// # Errors
    /// As [`Client::next_event`]; a lost agent is reported at the deadline only.
    pub fn wait_event(&self, deadline: Duration) -> Result<Option<Event>, Error> {
        self.wait_event_while(deadline, || true)
    }

    /// As [`Client::wait_event`], as long as `goes_on` returns true. It is called before and after each check for
    /// events and after [`Client::wake_takers`]. Returns `None` also when it returns false.
    ///
    /// # Errors
    /// As [`Client::wait_event`].
    pub fn wait_event_while(
        &self,
        deadline: Duration,
        goes_on: impl Fn() -> bool,
    ) -> Result<Option<Event>, Error> {
        let _waiting = Waiting::begin(&self.inner.waiting);
        let until = end_of(deadline);
        if !self.inner.setting.options.thread {
            let _ = self.dispatch_until(Some(until));
        }
        while goes_on() {
            match self.next_event() {
                Ok(Some(event)) => return Ok(Some(event)),
                Err(error @ (Error::Finalized | Error::Forked)) => return Err(error),
                Err(error) if Instant::now() >= until => return Err(error),
                Ok(None) if Instant::now() >= until => return Ok(None),
                Ok(None) | Err(_) => {}
            }
            // The check drains the eventfd. If it was raised to end this wait, `goes_on` returns false now.
            if !goes_on() {
                break;
            }
            let left = self
                .sleep_until(until)
                .saturating_duration_since(Instant::now());
            poll::readable(&[self.inner.setting.event.as_fd()], Some(left))
                .map_err(Error::system("wait for events"))?;
            if !self.inner.setting.options.thread {
                let _ = self.dispatch_until(Some(until));
            }
        }
        Ok(None)
    }

    /// Makes all threads that wait for events in [`Client::wait_event_while`] call `goes_on` again, and returns when
    /// they have.
    pub fn wake_takers(&self) {
        let until = Instant::now() + WAKE_DEADLINE;
        // A thread that takes events may drain the signal for another thread: repeat until none waits.
        while self.inner.waiting.load(Ordering::Acquire) > 0 && Instant::now() < until {
            self.inner.setting.event.raise();
            std::thread::sleep(Duration::from_millis(1));
        }
    }

    /// Until when a waiting thread may sleep.
    fn sleep_until(&self, until: Instant) -> Instant {
        if self.inner.setting.options.thread {
            until
        } else {
            until.min(Instant::now() + DISPATCH_PERIOD)
        }
    }

    fn await_table<T>(
        &self,
        deadline: Duration,
        mut check: impl FnMut(&TableView) -> Option<T>,
    ) -> Result<Option<T>, Error> {
        let until = end_of(deadline);
        loop {
            let table = self.table()?;
            let found = table.await_change(self.sleep_until(until), |table| {
                // Another state table is current by now, or none.
                if !self.table().is_ok_and(|now| std::ptr::eq(now, table)) {
                    return Some(None);
                }
                check(table).map(Some)
            });
            match found {
                Some(Some(found)) => return Ok(Some(found)),
                Some(None) => continue,
                None => {}
            }
            if Instant::now() >= until {
                return Ok(None);
            }
            if !self.inner.setting.options.thread {
                let _ = self.dispatch_until(Some(until));
            }
        }
    }
}

/// A node that a caller has given by an index.
struct NamedNode {
    /// Its name, as soon as there is a node of that index.
    name: Option<String>,
    /// The identity of a state table and the node's index in it; none if it is not in that one yet.
    found: Option<(u64, u32)>,
    index: u32,
}

impl NamedNode {
    fn new(index: u32) -> Self {
        Self {
            name: None,
            found: None,
            index,
        }
    }

    /// The node's index in this state table.
    fn index_in(&mut self, table: &TableView) -> Option<u32> {
        let identity = table.identity();
        if let Some((_, node)) = self.found.filter(|(of, _)| *of == identity) {
            return Some(node);
        }
        let node = match &self.name {
            Some(name) => table.node_find(name),
            None => {
                self.name = table.node_name(self.index);
                self.name.as_ref().map(|_| self.index)
            }
        };
        self.found = node.map(|node| (identity, node));
        node
    }
}

/// A thread that waits for events; counted until it is dropped.
struct Waiting<'a>(&'a AtomicU32);

impl<'a> Waiting<'a> {
    fn begin(count: &'a AtomicU32) -> Self {
        count.fetch_add(1, Ordering::AcqRel);
        Self(count)
    }
}

impl Drop for Waiting<'_> {
    fn drop(&mut self) {
        self.0.fetch_sub(1, Ordering::AcqRel);
    }
}

/// The end of a wait that begins now.
fn end_of(deadline: Duration) -> Instant {
    let now = Instant::now();
    // A time beyond the range of the clock becomes a very long one.
    now.checked_add(deadline)
        .unwrap_or(now + Duration::from_secs(1 << 32))
}
