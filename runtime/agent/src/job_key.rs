//! The check of a job key that a client supplies.

use muster_config::KeySource;

/// The relation of a client's key to the agent's.
#[derive(Debug, PartialEq, Eq)]
pub(super) enum ClientKey {
    /// It becomes the job's key now.
    First,
    /// It is the job's key, or the agent has one already and no key file states that another is right.
    Known,
    /// It differs from the key of the key file.
    Other,
}

/// Compares a client's key; `known` is the key in effect, and whether this agent drew it.
///
/// A key that this agent drew is replaced by the client's: an earlier agent may have drawn the key that all other
/// members have, and its rank 0 supplies that one.
pub(super) fn check_key(
    source: &KeySource,
    known: Option<([u8; 32], bool)>,
    key: &[u8; 32],
) -> ClientKey {
    match source {
        KeySource::Given(own) if own != key => ClientKey::Other,
        KeySource::FromClients
            if known.is_none_or(|(known, is_drawn)| is_drawn && known != *key) =>
        {
            ClientKey::First
        }
        KeySource::Given(_) | KeySource::FromClients => ClientKey::Known,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_key_file_is_not_overruled_by_a_client() {
        let given = KeySource::Given([1; 32]);
        assert_eq!(check_key(&given, None, &[2; 32]), ClientKey::Other);
        assert_eq!(check_key(&given, None, &[1; 32]), ClientKey::Known);
        let open = KeySource::FromClients;
        assert_eq!(check_key(&open, None, &[2; 32]), ClientKey::First);
        let known = |is_drawn| Some(([1; 32], is_drawn));
        assert_eq!(check_key(&open, known(false), &[2; 32]), ClientKey::Known);
        // The agent is new, and drew a key before its rank 0 supplied the one that all others have.
        assert_eq!(check_key(&open, known(true), &[2; 32]), ClientKey::First);
        assert_eq!(check_key(&open, known(true), &[1; 32]), ClientKey::Known);
    }
}
