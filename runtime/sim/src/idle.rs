//! Members of a quiet job, recorded so that the work of one engine can be measured alone.
//!
//! In a world of N members each engine finds the caches filled by the others, so its CPU time grows with N
//! whatever it does. Here the inputs of a few members are recorded, with their engines as they were before.
//! Later the same inputs are given to copies of these engines: with warm caches, or after the caller has
//! emptied them, but under the same conditions for any N.

use muster_protocol::{Engine, Input};

use crate::compare::{CompareSetting, Job, Recorded};

/// A member of a quiet job, with the inputs of a while.
pub struct IdleMember {
    engine: Engine,
    inputs: Vec<Recorded>,
}

/// The inputs and results of a while.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Replayed {
    /// Datagrams received.
    pub received: u64,
    /// Datagrams sent.
    pub sent: u64,
    /// Inputs, wake-ups included.
    pub inputs: u64,
}

/// Boots a job and records some of its members, spread over all, for `quiet_us`; `None` if the boot took too
/// long.
#[must_use]
pub fn record_idle(setting: &CompareSetting, seed: u64, members: usize) -> Option<Vec<IdleMember>> {
    let mut job = Job::new(setting, seed, &|| 0);
    if !job.boot() {
        return None;
    }
    job.settle();
    let members = members.min(setting.members);
    let nodes = (0..members).map(|member| member * setting.members / members);
    let before: Vec<(usize, Engine)> = nodes
        .filter_map(|node| Some((node, job.engines[node].clone()?)))
        .collect();
    job.record = Some((0..setting.members).map(|_| Vec::new()).collect());
    job.run(setting.quiet_us);
    let mut record = job.record.take()?;
    let recorded = before.into_iter().map(|(node, engine)| IdleMember {
        engine,
        inputs: core::mem::take(&mut record[node]),
    });
    Some(recorded.collect())
}

impl IdleMember {
    /// Gives the inputs to a copy of the engine, and takes all results. `measure` is called for each input
    /// with the work that it causes.
    pub fn replay(&self, mut measure: impl FnMut(&mut dyn FnMut())) -> Replayed {
        let mut engine = self.engine.clone();
        let mut buffer = vec![0; 65_536];
        let mut replayed = Replayed::default();
        for Recorded { at, datagram } in &self.inputs {
            let input = match datagram {
                Some(bytes) => Input::Datagram { bytes },
                None => Input::Wake,
            };
            measure(&mut || {
                engine.handle(*at, input).ok();
                while engine.poll_transmit(*at, &mut buffer).is_some() {
                    replayed.sent += 1;
                }
                while engine.poll_event().is_some() {}
                _ = engine.poll_timeout();
            });
            replayed.inputs += 1;
            replayed.received += u64::from(datagram.is_some());
        }
        replayed
    }
}

#[cfg(test)]
mod tests {
    use muster_protocol::Profile;

    use super::*;
    use crate::compare::Contender;
    use crate::network::Network;

    /// A copy of the engine does the same as the engine did, as often as it is asked. In a quiet job each
    /// member sends two beats per heartbeat and receives as many, at any size.
    #[test]
    fn the_recorded_members_of_a_job_at_rest_do_the_same_again() {
        for members in [16, 48] {
            let setting = CompareSetting {
                members,
                contender: Contender::Overlay(Profile::Standard),
                network: Network::with_round_trip(1000),
                quiet_us: 1_000_000,
            };
            let recorded = record_idle(&setting, 3, 4).expect("the job boots");
            assert_eq!(recorded.len(), 4);
            for member in recorded {
                let mut measured = 0;
                let replayed = member.replay(|work| {
                    measured += 1;
                    work();
                });
                assert_eq!(replayed.inputs, measured);
                assert_eq!(replayed, member.replay(|work| work()));
                assert!((98..=102).contains(&replayed.sent), "{replayed:?}");
                assert!((98..=102).contains(&replayed.received), "{replayed:?}");
            }
        }
    }
}
