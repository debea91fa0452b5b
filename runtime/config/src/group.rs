//! Two settings for correlated failures: a node's failure group, and what it does in a minority.

use super::ConfigError;
use muster_protocol::{GROUP_MAX, Minority};

/// A checked group name: up to 31 printable ASCII characters without spaces; empty for none.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct GroupName(String);

impl GroupName {
    /// Checks a name.
    ///
    /// # Errors
    /// Refuses a name that is too long, or contains anything but printable ASCII.
    pub fn new(name: &str) -> Result<Self, ConfigError> {
        let bad = |why| {
            Err(ConfigError::Group {
                name: name.to_owned(),
                why,
            })
        };
        if name.len() > GROUP_MAX {
            return bad("it is longer than 31 bytes");
        }
        if !name.bytes().all(|byte| byte.is_ascii_graphic()) {
            return bad("only printable ASCII without spaces is allowed");
        }
        Ok(Self(name.to_owned()))
    }

    /// The name as text.
    #[must_use]
    pub fn as_str(&self) -> &str {
        &self.0
    }
}

/// The policy of this name.
///
/// # Errors
/// If there is none.
pub fn parse_minority(text: &str) -> Result<Minority, ConfigError> {
    match text {
        "continue" => Ok(Minority::Continue),
        "hold" => Ok(Minority::Hold),
        _ => Err(ConfigError::Minority {
            text: text.to_owned(),
        }),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_bad_group_or_policy_is_refused_with_the_remedy() {
        for (name, why) in [("rack 3", "printable"), ("\u{e4}", "printable")] {
            let error = GroupName::new(name).unwrap_err().to_string();
            assert!(
                error.contains(why) && error.contains("MUSTER_GROUP"),
                "{error}"
            );
        }
        let error = GroupName::new(&"x".repeat(32)).unwrap_err().to_string();
        assert!(error.contains("31"), "{error}");
        assert_eq!(GroupName::new("rack3").unwrap().as_str(), "rack3");
        assert_eq!(GroupName::new("").unwrap(), GroupName::default());
        assert_eq!(parse_minority("hold").unwrap(), Minority::Hold);
        for text in ["", "Hold", "stop"] {
            let error = parse_minority(text).unwrap_err().to_string();
            assert!(error.contains("continue or hold"), "{error}");
        }
    }
}
