//! `Ending` is the reason why the event loop ended.

/// The reason. It decides what the ranks are told, and what the supervisor does next.
#[derive(Debug, PartialEq, Eq)]
pub(super) enum Ending {
    /// No longer needed.
    InOrder,
    /// A request to end: no rank may start another agent for it.
    Requested,
    /// Another live member has this node's name.
    NameTaken,
    /// Another worker takes over.
    Renewed,
}
