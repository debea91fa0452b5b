//! The protocol of the control socket, and what each side says of its version.
//!
//! A request line begins with `muster/1 `; every answer carries `protocol` and `release`. Each side that sees another
//! version states both and does nothing else. A line without the mark comes from a person and counts as the agent's own
//! version. The manual page is `muster-protocol(7)`.

pub use muster_ipc::control_socket::{MARK, PROTOCOL};
use serde_json::Value;

/// The release of this build.
pub const RELEASE: &str = env!("CARGO_PKG_VERSION");
/// The kind of a refusal because of the version.
pub const SKEWED: &str = "version";

/// The request without its mark, or the number of the version that it is of.
pub fn unmark(line: &str) -> Result<&str, String> {
    let Some(rest) = line.strip_prefix(MARK) else {
        return Ok(line);
    };
    let (number, request) = rest.split_once(' ').unwrap_or((rest, ""));
    match number.parse() == Ok(PROTOCOL) {
        true => Ok(request),
        false => Err(number.chars().take(20).collect()),
    }
}

/// Writes protocol version and release into an answer.
pub fn stamp(answer: &mut Value) {
    answer["protocol"] = PROTOCOL.into();
    answer["release"] = RELEASE.into();
}

/// What an agent says to a request of another version.
pub fn refusal(number: &str) -> String {
    format!(
        "you speak version {number} of the control protocol, and this agent (release {RELEASE}) speaks \
         {PROTOCOL}; use the muster of the agent's release"
    )
}

/// What is wrong with an answer of another version; none if it is of ours.
pub fn skew(answer: &Value) -> Option<String> {
    let theirs = answer["protocol"].as_u64();
    if theirs == Some(u64::from(PROTOCOL)) {
        return None;
    }
    let theirs = match (theirs, answer["release"].as_str()) {
        (Some(number), Some(release)) => format!("version {number} (release {release})"),
        (Some(number), None) => format!("version {number}"),
        (None, _) => "a version before 1".to_owned(),
    };
    Some(format!(
        "it speaks {theirs} of the control protocol, and this muster speaks version {PROTOCOL} (release \
         {RELEASE}); use the muster of the agent's release"
    ))
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    #[test]
    fn both_sides_name_both_versions() {
        assert_eq!(unmark("muster/1 members"), Ok("members"));
        assert_eq!(unmark("members"), Ok("members"));
        assert_eq!(unmark("muster/2 members"), Err("2".into()));
        assert_eq!(unmark("muster/x"), Err("x".into()));
        let said = refusal("2");
        assert!(
            said.contains("version 2") && said.contains("speaks 1"),
            "{said}"
        );

        let mut answer = json!({});
        assert!(skew(&answer).unwrap().contains("before 1"));
        stamp(&mut answer);
        assert_eq!(skew(&answer), None);
        let said = skew(&json!({ "protocol": 2, "release": "9.1.0" })).unwrap();
        for word in ["version 2 (release 9.1.0)", "version 1 (release"] {
            assert!(said.contains(word), "{said}");
        }
    }
}
