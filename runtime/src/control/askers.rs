//! How many clients of one other user are served at the door for all at a time.
//!
//! Each client that is served holds one thread, and one that says nothing holds it for as long as it may take
//! to ask. Without this bound the silent clients of one user would hold all of them.

use super::BUSY;
use serde_json::{Value, json};
use std::sync::{Mutex, MutexGuard, PoisonError};

/// Clients of one user that are served at a time: a third of the threads.
pub(super) const OF_ONE_USER_MAX: usize = 2;

/// Those who are served: the user of each.
#[derive(Debug, Default)]
pub(super) struct Askers(Mutex<Vec<u32>>);

/// A connection that is served, until it is dropped.
#[derive(Debug)]
pub(super) struct Asker<'a> {
    askers: &'a Askers,
    user: u32,
}

impl Askers {
    /// One more client of this user; none if as many are served as may be.
    pub(super) fn enter(&self, user: u32) -> Option<Asker<'_>> {
        let mut served = self.served();
        if served.iter().filter(|one| **one == user).count() >= OF_ONE_USER_MAX {
            return None;
        }
        served.push(user);
        Some(Asker { askers: self, user })
    }

    fn served(&self) -> MutexGuard<'_, Vec<u32>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Drop for Asker<'_> {
    fn drop(&mut self) {
        let mut served = self.askers.served();
        if let Some(at) = served.iter().position(|one| *one == self.user) {
            served.swap_remove(at);
        }
    }
}

/// What a client hears for whom there is no room.
pub(super) fn refusal(user: u32) -> Value {
    let why = format!(
        "{OF_ONE_USER_MAX} clients of uid {user} are served at this moment, and no more at a time; ask again"
    );
    json!({ "error": why, "kind": BUSY })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_user_has_its_own_room() {
        let askers = Askers::default();
        let first: Vec<_> = (0..OF_ONE_USER_MAX).map(|_| askers.enter(7)).collect();
        assert!(first.iter().all(Option::is_some) && askers.enter(7).is_none());
        let other = askers.enter(8);
        assert!(other.is_some());
        drop(first);
        assert!(askers.enter(7).is_some() && askers.served().as_slice() == [8]);
    }
}
