//! The connections of this node's ranks to the PMIx server.

use std::collections::BTreeMap;

/// A rank's connections. With MPI Sessions a rank connects and disconnects any number of times. A process that the
/// rank has started in its own environment counts as the rank there.
#[derive(Debug, Default, Clone)]
pub(crate) struct Connections {
    connected: u32,
    disconnected: u32,
    /// Two connections were open at once.
    overlapped: bool,
}

impl Connections {
    pub(crate) fn connect(&mut self) {
        self.overlapped |= self.connected > self.disconnected;
        self.connected += 1;
    }

    pub(crate) fn disconnect(&mut self) {
        self.disconnected += 1;
    }

    pub(crate) fn any(&self) -> bool {
        self.connected > 0
    }

    /// Whether the rank, which ended with this status, had connected and had disconnected in order. The end of
    /// a child process that did not disconnect is not reported; then the rank's own status decides.
    pub(crate) fn are_over(&self, status: u8) -> bool {
        self.any()
            && (self.disconnected >= self.connected
                || self.overlapped && self.disconnected > 0 && status == 0)
    }
}

/// The ranks of this node that run.
#[derive(Debug, Default)]
pub(crate) struct Running(BTreeMap<u32, Connections>);

impl Running {
    pub(crate) fn start(&mut self, rank: u32) {
        self.0.insert(rank, Connections::default());
    }

    pub(crate) fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    pub(crate) fn of(&mut self, rank: u32) -> Option<&mut Connections> {
        self.0.get_mut(&rank)
    }

    pub(crate) fn end(&mut self, rank: u32) -> Option<Connections> {
        self.0.remove(&rank)
    }

    /// Whether one has connected to the PMIx server.
    pub(crate) fn any_connected(&self) -> bool {
        self.0.values().any(Connections::any)
    }

    /// Ranks that never connected to the PMIx server.
    pub(crate) fn absent(&self) -> impl Iterator<Item = u32> {
        let absent = self.0.iter().filter(|(_, connections)| !connections.any());
        absent.map(|(rank, _)| *rank)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Builds connections from text: `C` connects and `L` disconnects.
    fn connections(text: &str) -> Connections {
        let mut connections = Connections::default();
        for character in text.chars() {
            match character {
                'C' => connections.connect(),
                _ => connections.disconnect(),
            }
        }
        connections
    }

    #[test]
    fn a_rank_has_left_only_when_it_has_disconnected_itself() {
        for (text, status, disconnected) in [
            ("", 0, false),
            ("", 3, false),
            ("CL", 0, true),
            ("CL", 3, true),
            ("C", 0, false),
            // MPI Sessions.
            ("CLC", 0, false),
            ("CLCL", 0, true),
            // A child process that disconnects, and the rank after it, or not.
            ("CCLL", 3, true),
            ("CCL", 137, false),
            // A child process that ends without disconnecting.
            ("CCL", 0, true),
            ("CC", 0, false),
        ] {
            assert_eq!(
                connections(text).are_over(status),
                disconnected,
                "{text} {status}"
            );
        }
    }
}
