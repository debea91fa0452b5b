//! Senders of frames with another key: what they state about themselves, and since when their frames are rejected.
//!
//! Two agents with different keys never become members of one job, and each drops the frames of the other. This file
//! records known members and senders at an address of the bootstrap list, since these are expected; of all others it
//! records the last one. What a frame states about its sender is unverified, as any process can send to a rail's port.
//! So no decision depends on it, its memory and time are bounded, and the log gets at most one line a minute, about a
//! sender that it has not named yet.

use muster_control::unreachable::UnauthenticatedSender;
use muster_fabric::NidList;
use muster_protocol::{Engine, MemberId, Target, unverified_sender};
use std::time::Duration;
use tracing::warn;

/// Maximum number of expected senders. A new one replaces the one that has been silent for longest.
const EXPECTED_MAX: usize = 64;
/// Minimum time between two frames that are examined; the others are only counted.
const CHECK_PAUSE_US: u64 = 50_000;
/// Minimum time between two log lines.
const LINE_PAUSE_US: u64 = 60_000_000;
/// A sender that was silent for this long is forgotten: join requests are more frequent.
const FORGET_US: u64 = 600_000_000;

/// A sender.
#[derive(Debug)]
struct Entry {
    name: String,
    /// Its NIDs: from its frame, or from the time when it was a member.
    address: String,
    /// It was a member, or has an address of the bootstrap list: it should have this agent's key.
    expected: bool,
    first_us: u64,
    last_us: u64,
    is_logged: bool,
}

impl Entry {
    /// Whether it is to be forgotten, or is a member by now: then it has this agent's key.
    fn is_over(&self, now_us: u64, engine: &Engine) -> bool {
        now_us.saturating_sub(self.last_us) > FORGET_US
            || is_in_view(engine, MemberId::of(&self.name))
    }

    fn describe(&self, now_us: u64) -> UnauthenticatedSender {
        let ago = |at_us| Duration::from_micros(now_us.saturating_sub(at_us));
        UnauthenticatedSender {
            name: self.name.clone(),
            address: self.address.clone(),
            expected: self.expected,
            since: ago(self.first_us),
            last: ago(self.last_us),
        }
    }
}

/// The senders of frames with another key.
#[derive(Debug, Default)]
pub(super) struct UnauthenticatedSenders {
    known: Vec<Entry>,
    check_us: u64,
    line_us: u64,
}

impl UnauthenticatedSenders {
    /// Examines a frame whose authentication failed.
    pub(super) fn note(&mut self, now_us: u64, engine: &Engine, bytes: &[u8]) {
        if now_us < self.check_us {
            return;
        }
        self.check_us = now_us + CHECK_PAUSE_US;
        let Some((name, address, expected)) = sender_of(engine, bytes) else {
            return;
        };
        self.known.retain(|one| !one.is_over(now_us, engine));
        self.remember(Entry {
            name,
            address,
            expected,
            first_us: now_us,
            last_us: now_us,
            is_logged: false,
        });
        if let Some(peers) = self.list_new(now_us) {
            warn!(
                peers,
                "frames of these senders are rejected: they are authenticated with another job key. The nodes cannot \
                 become members of one job; run muster doctor for the remedy"
            );
        }
    }

    /// The senders whose frames are rejected now.
    pub(super) fn current(&self, now_us: u64, engine: &Engine) -> Vec<UnauthenticatedSender> {
        let known = self.known.iter();
        let known = known.filter(|one| !one.is_over(now_us, engine));
        known.map(|one| one.describe(now_us)).collect()
    }

    fn remember(&mut self, new: Entry) {
        // One address has one entry, whatever name its frames state.
        let same = |one: &Entry| match new.expected {
            true => one.expected && one.address == new.address,
            false => !one.expected,
        };
        if let Some(one) = self.known.iter_mut().find(|one| same(one)) {
            let is_it = (&one.name, &one.address) == (&new.name, &new.address);
            let (first_us, is_logged) = match is_it {
                true => (one.first_us, one.is_logged),
                false => (new.first_us, new.expected && one.is_logged),
            };
            *one = Entry {
                first_us,
                is_logged,
                ..new
            };
            return;
        }
        if self.known.len() > EXPECTED_MAX {
            let last_us = |at: &usize| self.known[*at].last_us;
            let oldest = (0..self.known.len()).min_by_key(last_us);
            oldest.map(|at| self.known.swap_remove(at));
        }
        self.known.push(new);
    }

    /// The senders that were not logged yet, as text, if it is time for a line.
    fn list_new(&mut self, now_us: u64) -> Option<String> {
        if now_us < self.line_us || self.known.iter().all(|one| one.is_logged) {
            return None;
        }
        self.line_us = now_us + LINE_PAUSE_US;
        let mut peers = Vec::new();
        for one in self.known.iter_mut().filter(|one| !one.is_logged) {
            one.is_logged = true;
            peers.push(format!("{} ({})", one.name, one.address));
        }
        Some(peers.join(", "))
    }
}

/// The sender that a frame states: name, address, and whether it should have this agent's key. None if the frame
/// names no sender, or a member in the view: such a frame was damaged, or its statement is false.
fn sender_of(engine: &Engine, bytes: &[u8]) -> Option<(String, String, bool)> {
    let stated = unverified_sender(bytes)?;
    if is_in_view(engine, stated.sender) {
        return None;
    }
    if let (Some(name), Some(address)) = (
        engine.name_of(stated.sender),
        engine.address_of(Target::Member(stated.sender)),
    ) {
        let address = String::from_utf8_lossy(address).into_owned();
        return Some((name.to_owned(), address, true));
    }
    let (name, address) = stated.introduction?;
    // An address that is not a list of NIDs is not displayed.
    let address: NidList = str::from_utf8(address).ok()?.parse().ok()?;
    let is_there = |seed: &&[u8]| {
        let nids = str::from_utf8(seed).ok().and_then(|text| text.parse().ok());
        nids.is_some_and(|nids: NidList| {
            nids.iter().any(|nid| address.iter().any(|one| one == nid))
        })
    };
    let is_taken = |seed: &[u8]| {
        let mut live = engine.members().filter(|one| one.state().in_view());
        live.any(|one| one.address() == seed)
    };
    let seed = engine.seeds().find(is_there).filter(|seed| !is_taken(seed));
    Some(match seed {
        Some(seed) => (
            name.to_owned(),
            String::from_utf8_lossy(seed).into_owned(),
            true,
        ),
        None => (name.to_owned(), address.to_string(), false),
    })
}

fn is_in_view(engine: &Engine, id: MemberId) -> bool {
    id == engine.id() || engine.member(id).is_some_and(|one| one.state().in_view())
}

#[cfg(test)]
mod tests {
    use super::*;
    use muster_protocol::{Config, Input, Instant, Overlay, Profile, Reject};

    /// An engine with this key, at 10.0.0.NUMBER, that has these seeds.
    fn engine(number: usize, key: u8, seeds: &[&str]) -> Engine {
        let address = format!("10.0.0.{number}@udp0,10.1.0.{number}@udp1");
        let name = format!("n{number}");
        let mut config = Config::new(&name, address.as_bytes(), Profile::Standard);
        config.seeds = seeds.iter().map(|seed| seed.as_bytes().to_vec()).collect();
        config.key = Some([key; 32]);
        config.incarnation = 1;
        Overlay::new(config).unwrap().into()
    }

    /// The join request of such an engine.
    fn join_request(number: usize) -> Vec<u8> {
        next_frame(&mut engine(number, 2, &["10.0.0.1@udp0"]), 1000)
    }

    /// The next frame that an engine sends, from this time on.
    fn next_frame(engine: &mut Engine, from_us: u64) -> Vec<u8> {
        let mut buffer = vec![0; 1500];
        for us in (0..10_000).map(|beat| from_us + beat * 1000) {
            engine.handle(Instant(us), Input::Wake).unwrap();
            if let Some(sent) = engine.poll_transmit(Instant(us), &mut buffer) {
                buffer.truncate(sent.size);
                return buffer;
            }
        }
        panic!("the engine sends nothing for ten seconds");
    }

    fn receive(
        senders: &mut UnauthenticatedSenders,
        now_us: u64,
        engine: &mut Engine,
        bytes: &[u8],
    ) {
        let refused = engine.handle(Instant(now_us), Input::Datagram { bytes });
        assert_eq!(refused, Err(Reject::Forged));
        senders.note(now_us, engine, bytes);
    }

    #[test]
    fn a_sender_at_a_listed_address_is_expected_and_of_others_only_the_last_is_kept() {
        let mut own = engine(1, 1, &["10.1.0.2@udp1", "10.0.0.1@udp0"]);
        let mut senders = UnauthenticatedSenders::default();
        for (number, second) in (2..6).zip(1..) {
            let now_us = second * 1_000_000;
            receive(&mut senders, now_us, &mut own, &join_request(number));
        }
        let known = senders.current(5_000_000, &own);
        let known: Vec<_> = known
            .iter()
            .map(|one| {
                (
                    one.name.as_str(),
                    one.address.as_str(),
                    one.expected,
                    one.last.as_secs(),
                )
            })
            .collect();
        let of_n5 = "10.0.0.5@udp0,10.1.0.5@udp1";
        assert_eq!(
            known,
            [("n2", "10.1.0.2@udp1", true, 4), ("n5", of_n5, false, 1)]
        );
        assert_eq!(senders.current(5_000_000 + FORGET_US, &own), []);
    }

    /// Any process that reaches the port can state any name. That costs bounded memory, and one log line a minute.
    #[test]
    fn a_flood_of_names_costs_bounded_memory_and_a_line_a_minute() {
        let seeds: Vec<String> = (2..200)
            .map(|number| format!("10.0.0.{number}@udp0"))
            .collect();
        let seeds: Vec<&str> = seeds.iter().map(String::as_str).collect();
        let mut own = engine(1, 1, &seeds);
        let mut senders = UnauthenticatedSenders::default();
        let mut lines = 0;
        let requests: Vec<Vec<u8>> = (2..400).map(join_request).collect();
        for (bytes, at) in requests.iter().cycle().zip(0..40_000_u64) {
            let now_us = at * 10_000;
            receive(&mut senders, now_us, &mut own, bytes);
            lines += u64::from(senders.line_us == now_us + LINE_PAUSE_US);
        }
        assert!(
            senders.known.len() <= EXPECTED_MAX + 1,
            "{}",
            senders.known.len()
        );
        assert!((1..=7).contains(&lines), "{lines} lines in 400 s");
    }

    #[test]
    fn an_admitted_sender_and_an_invalid_frame_are_not_listed() {
        let mut own = engine(1, 1, &["10.0.0.2@udp0"]);
        let mut senders = UnauthenticatedSenders::default();
        senders.note(0, &own, b"no frame");
        assert_eq!(senders.current(0, &own), []);
        receive(&mut senders, 1_000_000, &mut own, &join_request(2));
        assert_eq!(senders.current(1_000_000, &own).len(), 1);
        // The same node with this agent's key, as after a restart: a join request to any member, the answer to it,
        // and the request to this node.
        let mut again = engine(2, 1, &["10.0.0.1@udp0"]);
        let request = next_frame(&mut again, 1000);
        let taken = own.handle(Instant(2_000_000), Input::Datagram { bytes: &request });
        assert_eq!(taken, Err(Reject::Unproven));
        let is_answered = (1..10).any(|ms| {
            let answer = next_frame(&mut own, 2_000_000 + ms * 1000);
            again.handle(
                Instant(1000 + ms * 1000),
                Input::Datagram { bytes: &answer },
            ) == Ok(())
        });
        assert!(is_answered);
        let is_taken = (1..10).any(|ms| {
            let proven = next_frame(&mut again, 20_000 + ms * 1000);
            own.handle(Instant(2_100_000), Input::Datagram { bytes: &proven }) == Ok(())
        });
        assert!(is_taken);
        assert_eq!(senders.current(2_100_000, &own), []);
    }
}
