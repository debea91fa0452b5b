//! `RailStatus` is what a node says about its rails in an attribute.
//!
//! ```text
//! muster.rails = multi-rail [policy=DIGEST] [NID ...]
//! ```
//! The first token names the feature of the publisher. The digest is that of rules and limits other than the defaults,
//! so that `muster doctor` can tell which nodes differ. The NIDs are the rails that do not work now.

use muster_fabric::Nid;

/// The attribute's key. Only the agent writes it.
pub const KEY: &str = "muster.rails";
/// The feature of a member that publishes the attribute.
const FEATURE: &str = "multi-rail";
/// What is before the digest.
const POLICY: &str = "policy=";

/// What the attribute says.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct RailStatus {
    /// The rails that do not work now.
    pub failing: Vec<Nid>,
    /// The digest; none for the defaults.
    pub policy: Option<String>,
}

impl RailStatus {
    /// Reads the value of the attribute; none if it is not valid.
    #[must_use]
    pub fn read(value: &[u8]) -> Option<RailStatus> {
        let text = str::from_utf8(value).ok()?;
        let rest = text.strip_prefix(FEATURE)?;
        let mut tokens = rest.split(' ').skip(1).peekable();
        let policy = tokens.next_if(|token| token.starts_with(POLICY));
        let nids: Option<Vec<Nid>> = tokens.map(|token| token.parse().ok()).collect();
        let is_feature = rest.is_empty() || rest.starts_with(' ');
        Some(RailStatus {
            failing: nids.filter(|_| is_feature)?,
            policy: policy.map(|token| token[POLICY.len()..].to_owned()),
        })
    }

    /// The value of the attribute.
    #[must_use]
    pub fn write(&self) -> String {
        let policy = self.policy.iter();
        let policy = policy.map(|digest| format!(" {POLICY}{digest}"));
        let nids = self.failing.iter().map(|nid| format!(" {nid}"));
        policy
            .chain(nids)
            .fold(FEATURE.to_owned(), |text, token| text + &token)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_status_is_read_as_it_was_written() {
        for text in [
            "multi-rail",
            "multi-rail policy=0badcafe",
            "multi-rail 10.0.0.2@udp1",
            "multi-rail policy=0badcafe 10.0.0.2@udp1 10.0.1.2@udp2",
        ] {
            let status = RailStatus::read(text.as_bytes()).unwrap();
            assert_eq!(status.write(), text);
        }
    }

    /// dyn-010.
    #[test]
    fn an_invalid_value_is_ignored() {
        for value in [
            &b""[..],
            b"other",
            b"multi-rail x",
            b"multi-rails",
            b"multi-rail policy=1 policy=2",
            b"\xff",
            b"multi-rail  ",
        ] {
            assert_eq!(RailStatus::read(value), None, "{value:?}");
        }
    }
}
