//! What is known about a member, told for people: the same words from the command and from the C API.

use muster_fabric::fold;
use serde_json::Value;
use std::fmt::Write as _;

/// A line with the state, and one for each observation.
pub(super) fn tell(member: &Value) -> String {
    let text = |key: &str| member[key].as_str().unwrap_or("-");
    let mut story = format!("{} is {}: {}\n", text("name"), text("state"), known(member));
    for seen in member["evidence"].as_array().into_iter().flatten() {
        let text = |key: &str| seen[key].as_str().unwrap_or("-");
        let ms = seen["ms_ago"].as_f64().unwrap_or(0.0);
        let cause = seen["cause"]
            .as_str()
            .map_or(String::new(), |cause| format!(" ({cause})"));
        let _ = writeln!(
            story,
            "{:>12.3} s ago  {}{cause}, says {}; version {}.{}",
            ms / 1000.0,
            text("what"),
            text("by"),
            seen["incarnation"],
            seen["minor"],
        );
    }
    story
}

/// Cause and reporters in a few words.
pub(crate) fn known(member: &Value) -> String {
    let reporters = member["reporters"].as_array().into_iter().flatten();
    let reporters: Vec<&str> = reporters.filter_map(Value::as_str).collect();
    let cause = member["cause"].as_str().unwrap_or("-");
    if reporters.is_empty() {
        cause.to_owned()
    } else {
        format!("{cause}, by {}", fold(reporters))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    #[test]
    fn the_story_lists_the_evidence() {
        let member = json!({ "name": "n2", "state": "suspect", "cause": "silence on every rail",
            "reporters": ["n3", "n1", "n2"], "evidence": [{ "ms_ago": 1500.0, "what": "was reported",
            "cause": "silence on every rail", "by": "n1", "incarnation": 7, "minor": 1 }] });
        let story = tell(&member);
        assert!(
            story.starts_with("n2 is suspect: silence on every rail, by n[1-3]\n"),
            "{story}"
        );
        assert!(
            story.contains("1.500 s ago") && story.contains("says n1"),
            "{story}"
        );
    }
}
