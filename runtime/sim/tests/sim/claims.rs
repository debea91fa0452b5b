//! Failure claims ("the view holds you failed") that are outdated when they arrive.

use muster_protocol::{Config, Input, Instant, NodeState, Overlay, Profile, Target};

use crate::common::{MS, SECOND};

const CLAIM: u8 = 12;
const DISCOVER: u8 = 10;
const VIEW: u8 = 11;
const NAMES: [&str; 6] = ["a", "b", "c", "d", "e", "f"];
/// The member that is cut off or stopped; it is not the first or last one.
const CAST_OUT: usize = 2;

/// Six engines and a network that cuts and records.
struct Zone {
    engines: Vec<Overlay>,
    now: Instant,
    /// Members that are stopped or gone.
    stopped: Vec<usize>,
    /// Frames sent to this member are not delivered.
    cut_off: Option<usize>,
    /// Claims that were sent to the member that is cut off, with their senders.
    claims: Vec<(usize, Vec<u8>)>,
    /// Frames of this kind are lost.
    lost: Option<u8>,
}

impl Zone {
    fn booted() -> Self {
        let engine = |(index, name): (usize, &&str)| {
            let mut config = Config::new(name, name.as_bytes(), Profile::Standard);
            config.key = Some([1; 32]);
            config.seeds = vec![b"a".to_vec()];
            config.random_seed = index as u64;
            Overlay::new(config).unwrap()
        };
        let mut zone = Self {
            engines: NAMES.iter().enumerate().map(engine).collect(),
            now: Instant(SECOND),
            stopped: Vec::new(),
            cut_off: None,
            claims: Vec::new(),
            lost: None,
        };
        zone.run(SECOND);
        assert!(zone.engines.iter().all(|engine| engine.live() == 6));
        zone
    }

    fn run(&mut self, for_us: u64) {
        let until = self.now.after(for_us);
        while self.now < until {
            for sender in 0..self.engines.len() {
                if !self.stopped.contains(&sender) {
                    self.engines[sender].handle(self.now, Input::Wake).unwrap();
                    self.deliver(sender);
                }
            }
            self.now = self.now.after(MS);
        }
    }

    /// Delivers what this member sends. The seed address is the first engine's.
    fn deliver(&mut self, sender: usize) {
        let mut buffer = vec![0; 2000];
        while let Some(transmit) = self.engines[sender].poll_transmit(self.now, &mut buffer) {
            let bytes = &buffer[..transmit.size];
            let to = match transmit.target {
                Target::Member(id) => self.engines.iter().position(|engine| engine.id() == id),
                Target::Seed(_) => Some(0),
                target @ Target::Address(_) => {
                    let address = self.engines[sender].address_of(target);
                    let address = address.expect("it was just written");
                    NAMES.iter().position(|name| name.as_bytes() == address)
                }
            };
            let Some(to) = to.filter(|_| self.lost != Some(bytes[3])) else {
                continue;
            };
            if self.cut_off == Some(to) {
                let is_claim = bytes[3] == CLAIM || bytes[3] == DISCOVER;
                if is_claim {
                    self.claims.push((sender, bytes.to_vec()));
                }
            } else if !self.stopped.contains(&to) {
                // A refusal does not matter here.
                let _ = self.engines[to].handle(self.now, Input::Datagram { bytes });
            }
        }
    }

    fn outcasts(&self, member: usize) -> u64 {
        self.engines[member].counters().outcasts
    }
}

/// Returns a zone in which no frame reaches one member, which still sends. The others hold it failed and send
/// claims, which the network keeps.
fn held_failed() -> Zone {
    let mut zone = Zone::booted();
    // It is stopped, is declared failed, sends again, and receives a claim.
    zone.stopped.push(CAST_OUT);
    zone.run(500 * MS);
    zone.stopped.clear();
    zone.cut_off = Some(CAST_OUT);
    // Its own lateness widens its deadlines for a while.
    zone.run(3 * SECOND);
    zone
}

/// ZM-04: a claim that the network delayed until its writer had died is about an earlier incarnation. The
/// present one queries the writer, receives no answer, and stays.
#[test]
fn a_claim_of_a_dead_writer_casts_no_member_out() {
    let mut zone = held_failed();
    zone.cut_off = None;
    let claims = core::mem::take(&mut zone.claims);
    zone.run(6 * SECOND);
    assert!(zone.engines.iter().all(|engine| engine.live() == 6));
    let outcasts = zone.outcasts(CAST_OUT);
    assert!(outcasts > 0, "it came back with another incarnation");
    // The writers of the claims die, so that the member holds them failed, and then the claims arrive.
    let mut queried = 0;
    for writer in [0, 1, 3, 4] {
        zone.stopped.push(writer);
        zone.run(SECOND);
        let before = zone.engines[CAST_OUT].counters().failure_claims_requeried;
        for (_, bytes) in claims.iter().filter(|(by, _)| *by == writer) {
            let _ = zone.engines[CAST_OUT].handle(zone.now, Input::Datagram { bytes });
        }
        queried += zone.engines[CAST_OUT].counters().failure_claims_requeried - before;
        zone.run(SECOND);
        assert_eq!(zone.outcasts(CAST_OUT), outcasts, "{}", NAMES[writer]);
    }
    assert!(queried > 0, "no claim led to a query");
    assert_eq!(zone.engines[CAST_OUT].live(), 2);
}

/// A confirmed claim is believed: a member that a larger side holds failed yields within a round trip.
#[test]
fn a_confirmed_claim_casts_the_member_out() {
    let mut zone = held_failed();
    let live = zone.engines[CAST_OUT].live();
    assert_eq!(live, 1, "it holds all others failed");
    zone.cut_off = None;
    zone.run(6 * SECOND);
    assert_eq!(zone.outcasts(CAST_OUT), 1);
    assert!(zone.engines.iter().all(|engine| engine.live() == 6));
}

/// ZM-04: a member that comes back learns which members the others hold failed, even if all answers to its
/// contact requests are lost. After a split, only this shows which members were on which side.
#[test]
fn an_outcast_learns_whom_the_others_hold_failed() {
    let mut zone = Zone::booted();
    zone.stopped.push(5);
    zone.run(SECOND);
    zone.stopped.push(CAST_OUT);
    zone.run(500 * MS);
    zone.stopped.retain(|node| *node == 5);
    zone.lost = Some(VIEW);
    zone.run(SECOND);
    assert_eq!(zone.outcasts(CAST_OUT), 1);
    let dead = zone.engines[5].id();
    for engine in &zone.engines[..5] {
        let held = engine.member(dead).map(|member| member.state());
        assert_eq!(held, Some(NodeState::Failed));
    }
}
