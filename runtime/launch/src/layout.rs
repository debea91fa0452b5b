//! The layout: which rank runs on which node.

use std::ops::Range;

/// Most nodes and ranks of one job.
const NODES_MAX: usize = 4096;
const RANKS_MAX: usize = 65_536;
/// Most ranks of one node: their launcher's node status has a bound.
pub(crate) const RANKS_OF_NODE_MAX: u32 = 4096;

/// Why a layout is invalid.
#[derive(Debug, PartialEq, Eq, thiserror::Error)]
pub enum LayoutError {
    /// The number of nodes or ranks is out of range, or the arguments contradict each other.
    #[error("{0}")]
    Wrong(String),
}

/// The nodes in order, each with consecutive ranks.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Layout {
    nodes: Vec<String>,
    /// The first rank of each node; at the end the number of ranks.
    starts: Vec<u32>,
}

impl Layout {
    /// Spreads `ranks` evenly over the nodes, the first nodes with one more if the numbers do not divide; or
    /// puts `per_node` on each node.
    ///
    /// # Errors
    /// [`LayoutError`].
    pub fn new(
        nodes: Vec<String>,
        ranks: Option<u32>,
        per_node: Option<u32>,
    ) -> Result<Self, LayoutError> {
        let count = nodes.len();
        let wrong = |why: String| Err(LayoutError::Wrong(why));
        if count == 0 || count > NODES_MAX {
            return wrong(format!("{count} nodes; a job has 1 to {NODES_MAX}"));
        }
        let mut names = nodes.clone();
        names.sort();
        if let Some(pair) = names.windows(2).find(|pair| pair[0] == pair[1]) {
            return wrong(format!(
                "node {} is named twice; name each node once",
                pair[0]
            ));
        }
        let ranks = match (ranks, per_node) {
            (Some(ranks), None) => ranks as usize,
            (None, Some(each)) => each as usize * count,
            (None, None) => count,
            (Some(ranks), Some(each)) if ranks as usize == each as usize * count => ranks as usize,
            (Some(ranks), Some(each)) => {
                return wrong(format!(
                    "-n {ranks} contradicts --ppn {each} on {count} nodes; give only one"
                ));
            }
        };
        if ranks < count || ranks > RANKS_MAX {
            return wrong(format!(
                "{ranks} ranks on {count} nodes; each node needs one, and a job has at most {RANKS_MAX}"
            ));
        }
        let (each, more) = (ranks / count, ranks % count);
        let most = ranks.div_ceil(count);
        if most > RANKS_OF_NODE_MAX as usize {
            return wrong(format!(
                "{most} ranks on one node; a node has at most {RANKS_OF_NODE_MAX}, use more nodes"
            ));
        }
        let start = |node: usize| (node * each + node.min(more)) as u32;
        Ok(Self {
            nodes,
            starts: (0..=count).map(start).collect(),
        })
    }

    /// The nodes' names.
    pub fn nodes(&self) -> &[String] {
        &self.nodes
    }

    /// The name of a node; `?` for an invalid number.
    pub fn name(&self, node: usize) -> &str {
        self.nodes.get(node).map_or("?", String::as_str)
    }

    /// The number of the node of this name.
    pub fn node_named(&self, name: &str) -> Option<usize> {
        self.nodes.iter().position(|node| node == name)
    }

    /// A node's ranks.
    pub fn ranks_of(&self, node: usize) -> Range<u32> {
        match (self.starts.get(node), self.starts.get(node + 1)) {
            (Some(start), Some(end)) => *start..*end,
            _ => 0..0,
        }
    }

    /// The node of a rank.
    pub fn node_of(&self, rank: u32) -> Option<usize> {
        let node = self.starts.partition_point(|start| *start <= rank);
        (node > 0 && node <= self.nodes.len()).then(|| node - 1)
    }

    /// The number of ranks.
    pub fn ranks(&self) -> u32 {
        self.starts.last().copied().unwrap_or(0)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn named(count: usize) -> Vec<String> {
        (1..=count).map(|node| format!("n{node}")).collect()
    }

    #[test]
    fn ranks_are_spread_in_order() {
        let layout = Layout::new(named(3), Some(8), None).unwrap();
        let ranks: Vec<_> = (0..3).map(|node| layout.ranks_of(node)).collect();
        assert_eq!(ranks, [0..3, 3..6, 6..8]);
        for rank in 0..8 {
            let node = layout.node_of(rank).unwrap();
            assert!(layout.ranks_of(node).contains(&rank));
        }
        assert_eq!((layout.node_of(8), layout.ranks()), (None, 8));
        let each = Layout::new(named(3), None, Some(2)).unwrap();
        assert_eq!(each, Layout::new(named(3), Some(6), Some(2)).unwrap());
    }

    #[test]
    fn an_invalid_layout_is_refused_with_its_numbers() {
        for (nodes, ranks, each, text) in [
            (named(4), Some(3), None, "3 ranks on 4 nodes"),
            (named(4), Some(9), Some(2), "-n 9 contradicts --ppn 2 on 4"),
            (vec![], None, None, "0 nodes"),
            (named(1), Some(65_537), None, "65537 ranks"),
            (named(2), Some(8193), None, "4097 ranks on one node"),
            (vec!["a".into(), "a".into()], None, None, "a is named twice"),
        ] {
            let error = Layout::new(nodes, ranks, each).unwrap_err().to_string();
            assert!(error.contains(text), "{error}");
        }
    }
}
