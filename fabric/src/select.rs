//! Which paths a message takes.
//!
//! A peer's paths come with what is known about each ([`Candidate`]); the answer is an order
//! ([`Selection`]): try these until so many copies are out, and send one copy along each of those
//! beside it, as a probe. Now the order is a round over the healthy paths. NUMA distance, credits
//! and policies will be further fields of a candidate and further keys of the same order.
//!
//! Health is a preference, never a condition: when no path is healthy, all are tried. And a path
//! that is avoided is probed with a copy of a real message now and then, so that it can show that it
//! works again; both ends avoid a cut rail, so without probes it would stay silent for ever.

use crate::nid::NIDS_MAX;
use crate::transport::Route;

/// Paths to one peer, at most: each rail and each remote NID has a part in at most one pair beyond
/// the other side's number.
pub(crate) const PATHS_MAX: usize = 2 * NIDS_MAX;

/// What is known about one path when a message is to be sent.
#[derive(Debug, Clone, Copy, Default)]
pub(crate) struct Candidate {
    /// Nothing speaks against the path.
    pub(crate) healthy: bool,
    /// The path is avoided, and it is time to try it again.
    pub(crate) probe_due: bool,
}

/// The paths of one message, by their index among the peer's paths.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Selection {
    candidates: PathList,
    probes: PathList,
    wanted: u8,
}

#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
struct PathList {
    paths: [u8; PATHS_MAX],
    count: usize,
}

impl PathList {
    fn push(&mut self, path: usize) {
        self.paths[self.count] = path as u8;
        self.count += 1;
    }

    fn as_slice(&self) -> &[u8] {
        &self.paths[..self.count]
    }
}

impl Selection {
    /// Paths to try in this order, until [`wanted`](Selection::wanted) copies are out. Empty only
    /// if the peer is unknown.
    #[must_use]
    pub fn candidates(&self) -> &[u8] {
        self.candidates.as_slice()
    }

    /// Paths to send one more copy along, as a probe.
    #[must_use]
    pub fn probes(&self) -> &[u8] {
        self.probes.as_slice()
    }

    /// Copies wanted along the candidates.
    #[must_use]
    pub fn wanted(&self) -> u8 {
        self.wanted
    }
}

/// Chooses. The cursor is the peer's place in the round; it moves on by one for each message.
pub(crate) fn choose(paths: &[Candidate], cursor: &mut usize, route: Route) -> Selection {
    let mut selection = Selection::default();
    if paths.is_empty() {
        return selection;
    }
    if route == Route::All {
        (0..paths.len()).for_each(|path| selection.candidates.push(path));
        selection.wanted = paths.len() as u8;
        return selection;
    }
    let any_healthy = paths.iter().any(|path| path.healthy);
    *cursor = (*cursor + 1) % paths.len();
    for step in 0..paths.len() {
        let path = (*cursor + step) % paths.len();
        if paths[path].healthy || !any_healthy {
            selection.candidates.push(path);
        } else if paths[path].probe_due {
            selection.probes.push(path);
        }
    }
    // The round goes on behind the path that was taken, or a skipped path would double the share
    // of the one that follows it.
    *cursor = usize::from(selection.candidates()[0]);
    selection.wanted = 1;
    selection
}

#[cfg(test)]
mod tests {
    use super::*;

    const GOOD: Candidate = Candidate {
        healthy: true,
        probe_due: false,
    };
    const BAD: Candidate = Candidate {
        healthy: false,
        probe_due: false,
    };
    const DUE: Candidate = Candidate {
        healthy: false,
        probe_due: true,
    };

    fn first_of(paths: &[Candidate], rounds: usize) -> Vec<u8> {
        let mut cursor = 0;
        (0..rounds)
            .map(|_| choose(paths, &mut cursor, Route::Next).candidates()[0])
            .collect()
    }

    #[test]
    fn next_goes_round_the_healthy_paths_in_equal_shares() {
        assert_eq!(first_of(&[GOOD, GOOD, GOOD], 6), [1, 2, 0, 1, 2, 0]);
        assert_eq!(first_of(&[GOOD, BAD, GOOD], 4), [2, 0, 2, 0]);
        assert_eq!(first_of(&[GOOD], 2), [0, 0]);
    }

    #[test]
    fn the_other_healthy_paths_stand_by_for_a_refused_send() {
        let selection = choose(&[GOOD, BAD, GOOD], &mut 0, Route::Next);
        assert_eq!(
            (selection.candidates(), selection.wanted()),
            (&[2, 0][..], 1)
        );
    }

    #[test]
    fn an_avoided_path_gets_a_probe_when_it_is_due_and_no_other_copy() {
        let selection = choose(&[DUE, GOOD, BAD], &mut 0, Route::Next);
        assert_eq!(
            (selection.candidates(), selection.probes()),
            (&[1][..], &[0][..])
        );
    }

    #[test]
    fn without_a_healthy_path_all_are_tried() {
        let selection = choose(&[BAD, DUE], &mut 0, Route::Next);
        assert_eq!(
            (selection.candidates(), selection.probes()),
            (&[1, 0][..], &[][..])
        );
    }

    #[test]
    fn all_means_a_copy_on_every_path_whatever_its_health() {
        let selection = choose(&[BAD, GOOD, DUE], &mut 0, Route::All);
        assert_eq!(
            (selection.candidates(), selection.wanted()),
            (&[0, 1, 2][..], 3)
        );
    }
}
