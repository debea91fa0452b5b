//! The work of an idle member, which must not grow unseen: what it allocates. Its CPU time is measured by
//! `muster sim idle`.

use muster_protocol::Profile;
use muster_sim::{CompareSetting, Contender, Network, record_idle};

/// B10: a heartbeat that says nothing new is sent and received without an allocation, at any size of the job.
#[test]
fn a_quiet_heartbeat_allocates_nothing() {
    for members in [16, 128] {
        let setting = CompareSetting {
            members,
            contender: Contender::Overlay(Profile::Standard),
            network: Network::with_round_trip(1000),
            quiet_us: 1_000_000,
        };
        let recorded = record_idle(&setting, 1, 4).expect("the job boots");
        for member in recorded {
            let mut counts = Vec::new();
            let replayed = member.replay(|work| {
                counts.push(allocation_counter::measure(work).count_total);
            });
            assert!(replayed.sent > 90, "{replayed:?}");
            // The copy of an engine has no room to spare: it makes some in its first heartbeat.
            let (first, others) = counts.split_at(10);
            assert!(first.iter().sum::<u64>() > 0, "nothing was counted");
            assert_eq!(
                others.iter().sum::<u64>(),
                0,
                "{members} members: {others:?}"
            );
        }
    }
}
