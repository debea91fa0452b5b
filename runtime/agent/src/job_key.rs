//! The key that a client brings to the agent of a job, and what it is there.

use muster_config::KeySource;

/// What the key that a client brings is here.
#[derive(Debug, PartialEq, Eq)]
pub(super) enum Brought {
    /// The job's, from now on.
    First,
    /// There is one, and no file that says which.
    Known,
    /// Not the one that was given.
    Other,
}

/// Judges it; `known` is the key that is in force, and whether it was drawn here.
///
/// One that was drawn here, for want of another, gives way: an agent before us may have drawn the one that
/// all others have, and its rank 0 brings that.
pub(super) fn brought(
    source: &KeySource,
    known: Option<([u8; 32], bool)>,
    key: &[u8; 32],
) -> Brought {
    match source {
        KeySource::Given(own) if own != key => Brought::Other,
        KeySource::FromClients
            if known.is_none_or(|(known, is_drawn)| is_drawn && known != *key) =>
        {
            Brought::First
        }
        KeySource::Given(_) | KeySource::FromClients => Brought::Known,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_key_file_is_not_overruled_by_a_client() {
        let given = KeySource::Given([1; 32]);
        assert_eq!(brought(&given, None, &[2; 32]), Brought::Other);
        assert_eq!(brought(&given, None, &[1; 32]), Brought::Known);
        let open = KeySource::FromClients;
        assert_eq!(brought(&open, None, &[2; 32]), Brought::First);
        let known = |is_drawn| Some(([1; 32], is_drawn));
        assert_eq!(brought(&open, known(false), &[2; 32]), Brought::Known);
        // The agent is new, and drew one before its rank 0 brought the one that all others have.
        assert_eq!(brought(&open, known(true), &[2; 32]), Brought::First);
        assert_eq!(brought(&open, known(true), &[1; 32]), Brought::Known);
    }
}
