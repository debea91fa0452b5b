//! Requests to the agents of members: counters and evidence. Members of other systems have none.

use muster_control::{Question, ask};
use muster_ipc::control_socket::MEMBER_SUFFIX;
use serde_json::Value;
use std::path::Path;

/// Bytes that IP and UDP add to each message.
const IP_UDP_BYTES: u64 = 28;

/// Bytes sent, from `muster rails` of the member; none for members of other systems.
pub(super) fn sent_counted(directory: &Path, name: &str) -> Option<u64> {
    let answer = ask_member(directory, name, &Question::Rails)?;
    let rails = answer["rails"].as_array()?;
    let sum = |key: &str| -> u64 { rails.iter().filter_map(|rail| rail[key].as_u64()).sum() };
    Some(sum("send_bytes") + IP_UDP_BYTES * sum("sends"))
}

/// The version of a member in the view of another member: incarnation and minor.
pub(super) fn version_seen(directory: &Path, by: &str, name: &str) -> Option<(u64, u64)> {
    let answer = ask_member(directory, by, &Question::Members)?;
    let members = answer["members"].as_array()?;
    let member = members.iter().find(|member| member["name"] == name)?;
    Some((member["incarnation"].as_u64()?, member["minor"].as_u64()?))
}

/// The evidence of one member about another, as text.
pub(super) fn explanation(directory: &Path, by: &str, name: &str) -> Option<String> {
    let answer = ask_member(directory, by, &Question::Why(name.to_owned()))?;
    answer["explanation"].as_str().map(str::to_owned)
}

/// How often a member lost its real-time priority since its loop ran too long; 0 for other systems.
pub(super) fn demotions(directory: &Path, name: &str) -> u64 {
    let answer = ask_member(directory, name, &Question::Stats);
    let demotions = answer.and_then(|answer| answer["agent"]["priority_demotions"].as_u64());
    demotions.unwrap_or(0)
}

/// How late the timers of a member were, by its own counters.
pub(super) fn lateness(directory: &Path, name: &str) -> Option<String> {
    let answer = ask_member(directory, name, &Question::Stats)?;
    Some(format!(
        "{} ms late recently, {} times late in total, {} times reduced to normal priority",
        answer["lateness_ms"],
        answer["counters"]["own_late"],
        answer["agent"]["priority_demotions"]
    ))
}

fn ask_member(directory: &Path, name: &str, question: &Question) -> Option<Value> {
    let path = directory.join(format!("{name}{MEMBER_SUFFIX}"));
    path.exists().then(|| ask(&path, question).ok())?
}
