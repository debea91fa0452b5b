//! The launcher's map of the job: which rank is on which node.
//!
//! Every process received this map when PMIx was initialised; reading it sends no request. Each node has one
//! bootstrap publisher, its lowest rank, so that sixteen ranks on a node do not publish the same data sixteen times,
//! and every process knows the publisher of each node without a request.

use super::{Error, Session, ffi};

/// One node of the job.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct JobNode {
    /// The launcher's name for it; empty if the launcher does not state one.
    pub name: String,
    /// The bootstrap publisher: the lowest rank on it.
    pub publisher: u32,
}

/// The job as the launcher laid it out.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Job {
    /// The launcher's name for the job.
    pub namespace: String,
    /// Ranks in the job.
    pub size: u32,
    /// The nodes, in the order of their lowest ranks.
    pub nodes: Vec<JobNode>,
    /// For each rank the index of its node in `nodes`.
    pub node_of_rank: Vec<u32>,
}

impl Job {
    /// Reads the map; one look-up per rank (some microseconds each) and one per node.
    pub(super) fn read(session: &Session) -> Result<Self, Error> {
        let library = session.library;
        let namespace = session.namespace();
        let name_of = |rank| library.get_text(namespace, rank, ffi::HOST_NAME);
        let size = library.get_number(namespace, ffi::EVERY_RANK, ffi::JOB_SIZE)?;
        let ids: Result<Vec<u32>, Error> = (0..size)
            .map(|rank| library.get_number(namespace, rank, ffi::NODE_ID))
            .collect();
        let (publishers, node_of_rank) = match ids {
            Ok(ids) => arrange(&ids),
            // A process on its own has no launcher that numbers nodes.
            Err(_) if size == 1 => arrange(&[0]),
            // libpmix 4.2 knows the ids of this node's ranks only, but all names.
            Err(_) => arrange(
                &(0..size)
                    .map(name_of)
                    .collect::<Result<Vec<String>, Error>>()?,
            ),
        };
        let nodes = publishers
            .into_iter()
            .map(|publisher| JobNode {
                name: name_of(publisher).unwrap_or_default(),
                publisher,
            })
            .collect();
        Ok(Self {
            namespace: namespace.to_string_lossy().into_owned(),
            size,
            nodes,
            node_of_rank,
        })
    }
}

impl Job {
    /// The ranks on the node of this name; none if the launcher knows no such node.
    pub fn ranks_on(&self, name: &str) -> Vec<u32> {
        let Some(index) = self.nodes.iter().position(|node| node.name == name) else {
            return Vec::new();
        };
        let nodes = self.node_of_rank.iter().zip(0u32..);
        nodes
            .filter(|(node, _)| **node as usize == index)
            .map(|(_, rank)| rank)
            .collect()
    }
}

impl Job {
    /// The ranks on the node of this rank, itself included.
    pub fn ranks_with(&self, rank: u32) -> Vec<u32> {
        let node = self.node_of_rank.get(rank as usize);
        let nodes = self.node_of_rank.iter().zip(0u32..);
        nodes
            .filter(|(one, _)| Some(*one) == node)
            .map(|(_, rank)| rank)
            .collect()
    }
}

/// From an id of the node of each rank: the lowest rank of each node, and the index of each rank's node.
fn arrange<Id: Ord>(ids: &[Id]) -> (Vec<u32>, Vec<u32>) {
    let mut index_of_id = std::collections::BTreeMap::new();
    let mut publishers = Vec::new();
    let mut node_of_rank = Vec::with_capacity(ids.len());
    for (rank, id) in ids.iter().enumerate() {
        let index = *index_of_id.entry(id).or_insert_with(|| {
            publishers.push(rank as u32);
            publishers.len() as u32 - 1
        });
        node_of_rank.push(index);
    }
    (publishers, node_of_rank)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_lowest_rank_of_each_node_publishes() {
        // Launchers place by node, by slot or at random, and number nodes in any order.
        assert_eq!(arrange(&[7, 7, 3, 3]), (vec![0, 2], vec![0, 0, 1, 1]));
        assert_eq!(arrange(&[1, 0, 1, 0]), (vec![0, 1], vec![0, 1, 0, 1]));
        assert_eq!(arrange(&[5]), (vec![0], vec![0]));
        assert_eq!(arrange(&["b", "a", "b"]), (vec![0, 1], vec![0, 1, 0]));
        assert_eq!(arrange::<u32>(&[]), (vec![], vec![]));
    }

    #[test]
    fn ranks_of_a_node_are_found_by_one_of_them() {
        let job = Job {
            namespace: "job".into(),
            size: 4,
            nodes: Vec::new(),
            node_of_rank: vec![0, 1, 0, 1],
        };
        assert_eq!(job.ranks_with(2), [0, 2]);
        assert_eq!(job.ranks_with(1), [1, 3]);
        assert!(job.ranks_with(9).is_empty());
    }
}
