//! The limit of a job that is one zone: its agents cannot agree on more members, so a larger job is refused at
//! start.
//!
//! Only the launcher, or the bootstrap records of all processes, tell how many nodes there are. Agents are not
//! asked: each would learn of the others one by one, and of the last ones never.

use super::Error;
use muster_shm::TableView;

/// Most members of a zone.
const MEMBERS_MAX: usize = 4096;

/// Refuses a job of more nodes than one zone can have, unless it is divided into zones.
pub(crate) fn refuse_too_many(nodes: usize, table: &TableView) -> Result<(), Error> {
    // Age gossip has no zones and other limits, which the agent checks.
    let is_gossip = std::env::var_os("MUSTER_PROTOCOL").is_some_and(|value| value == "age");
    match nodes > MEMBERS_MAX && table.zone_count() == 1 && !is_gossip {
        true => Err(Error::OneZone {
            nodes,
            most: MEMBERS_MAX,
        }),
        false => Ok(()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use muster_shm::{TableLimits, TableWriter};

    #[test]
    fn only_a_job_with_zones_has_more_nodes_than_one_zone() {
        assert_eq!(MEMBERS_MAX, muster_zones::ZONE_MEMBERS_MAX);
        let mut writer = TableWriter::create(TableLimits::default()).expect("a state table");
        let view = writer.view();
        assert!(refuse_too_many(MEMBERS_MAX, &view).is_ok());
        let error = refuse_too_many(MEMBERS_MAX + 1, &view).unwrap_err();
        let text = error.to_string();
        for part in ["4097 nodes", "at most 4096", "MUSTER_NODES"] {
            assert!(text.contains(part), "{part}: {text}");
        }
        for zone in 0..2 {
            assert!(writer.set_zone(zone, "z"));
        }
        assert!(refuse_too_many(MEMBERS_MAX + 1, &view).is_ok());
    }
}
