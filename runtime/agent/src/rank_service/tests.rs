//! The rank service's knowledge of its job, tested without processes.

use super::inherited::ranks_here;
use super::*;
use crate::watch::Finding;
use muster_shm::{Claim, Hold, TableLimits};

/// With age gossip a worker inherits no ranks: the state table shows which ranks are on this node.
#[test]
fn the_ranks_of_a_node_with_age_gossip_come_from_its_state_table() {
    use muster_protocol::age::Participant;
    use muster_protocol::{Age, AgeConfig, Config, Overlay, Profile};
    let limits = TableLimits {
        nodes: 4,
        ranks: 8,
        slots: 4,
        events: 16,
    };
    let mut table = TableWriter::create(limits).unwrap();
    let nids = ["a@udp0", "b@udp0"];
    let mut own = nids.map(|nid| table.add_node(nid).unwrap()).into_iter();
    let (own, other) = (own.next().unwrap(), own.next().unwrap());
    for (rank, node, state) in [
        (0, own, muster_shm::RankState::Alive),
        (1, other, muster_shm::RankState::Alive),
        (2, own, muster_shm::RankState::Hung),
        (3, own, muster_shm::RankState::Left),
        (4, own, muster_shm::RankState::Failed),
    ] {
        table.set_rank_node(rank, node);
        table.set_rank_state(rank, state);
    }
    let config = AgeConfig::new(nids[0], nids.map(Participant::new).into());
    let engine = Engine::from(Age::new(config).unwrap());
    assert_eq!(ranks_here(&table.view(), &engine), BTreeSet::new());
    table.set_own_node(own);
    assert_eq!(ranks_here(&table.view(), &engine), BTreeSet::from([0, 2]));
    // The overlay has a snapshot. The table shows ends that are newer than it.
    let config = Config::new("n1", b"a@udp0", Profile::Standard);
    let engine = Engine::from(Overlay::new(config).unwrap());
    assert_eq!(ranks_here(&table.view(), &engine), BTreeSet::from([3, 4]));
}

/// A notice of an end may arrive after another process got the rank or the slot. It does not apply to that process.
#[test]
fn a_late_notice_does_not_affect_the_next_process() {
    let limits = TableLimits {
        nodes: 4,
        ranks: 8,
        slots: 4,
        events: 16,
    };
    let mut table = TableWriter::create(limits).unwrap();
    let claim = |pid, rank| Claim {
        pid,
        start_ticks: 1,
        rank: Some(rank),
        hold: Hold::Thread,
    };
    let mut claimed = |pid, rank| table.claim_slot(&claim(pid, rank), &|_, _| false).unwrap();
    let first = claimed(11, 3);
    let other = claimed(12, 4);
    let restarted = claimed(13, 3);
    // The process is not armed yet, so this is a new image of the same process.
    let again = claimed(12, 4);
    assert_eq!((other.0, other.1 + 1), again);
    let view = table.view();
    let about = |(slot, generation), rank| {
        let notice = RankNotice {
            slot,
            generation,
            rank: Some(rank),
            finding: Finding::Left { exit_code: 0 },
            at_ns: 0,
        };
        notice_state(&view, &notice)
    };
    assert_eq!(about(first, 3), (true, true));
    assert_eq!(about(other, 4), (false, true));
    assert_eq!(about(again, 4), (true, false));
    table.release_slot(first.0);
    assert_eq!(about(restarted, 3), (true, false));
}
