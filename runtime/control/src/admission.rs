//! `Admission` limits how many clients of one other user are served at a time on the socket for other users.
//!
//! Each client takes a thread until it has asked or its time is over. Without the limit, silent clients of one user
//! would take all threads.

use super::BUSY;
use serde_json::{Value, json};
use std::sync::{Mutex, MutexGuard, PoisonError};

/// Clients of one user that are served at a time: a third of the threads.
pub(super) const OF_ONE_USER_MAX: usize = 2;

/// The user of each client that is served.
#[derive(Debug, Default)]
pub(super) struct Admission(Mutex<Vec<u32>>);

/// A connection that is served, until it is dropped.
#[derive(Debug)]
pub(super) struct Admitted<'a> {
    admission: &'a Admission,
    user: u32,
}

impl Admission {
    /// Admits one more client of this user; none if the limit is reached.
    pub(super) fn enter(&self, user: u32) -> Option<Admitted<'_>> {
        let mut served = self.served();
        if served.iter().filter(|one| **one == user).count() >= OF_ONE_USER_MAX {
            return None;
        }
        served.push(user);
        Some(Admitted {
            admission: self,
            user,
        })
    }

    fn served(&self) -> MutexGuard<'_, Vec<u32>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Drop for Admitted<'_> {
    fn drop(&mut self) {
        let mut served = self.admission.served();
        if let Some(at) = served.iter().position(|one| *one == self.user) {
            served.swap_remove(at);
        }
    }
}

/// The answer to a client that is not admitted.
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
        let admission = Admission::default();
        let first: Vec<_> = (0..OF_ONE_USER_MAX).map(|_| admission.enter(7)).collect();
        assert!(first.iter().all(Option::is_some) && admission.enter(7).is_none());
        let other = admission.enter(8);
        assert!(other.is_some());
        drop(first);
        assert!(admission.enter(7).is_some() && admission.served().as_slice() == [8]);
    }
}
