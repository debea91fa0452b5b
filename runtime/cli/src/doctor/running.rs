//! Checks of the agents that run here: releases, priority, cores, and the members that are heard over each pair of
//! rails.

use super::{Finding, Level};
use crate::agents::{self, AgentArgs};
use crate::answer::{array, text};
use muster_control::explanation::ranges;
use muster_control::rail_status::{self, RailStatus};
use muster_control::unreachable::{Obstacle, obstacles};
use muster_control::{AskError, Followed, Follower, Question, ask};
use muster_hostlist::fold;
use muster_terminal::{CliError, Progress};
use rustix::process::Pid;
use rustix::thread::sched_getaffinity;
use serde_json::{Value, json};
use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::time::Duration;

/// Maximum number of NIDs that a finding names. Further NIDs are counted.
const NIDS_NAMED: usize = 3;

/// Checks every agent. The second result is the matrix of the members heard over each pair.
pub(super) fn look(args: &AgentArgs, listen_ms: u64) -> Result<(Vec<Finding>, Value), CliError> {
    let paths = agents::find_all(args);
    if paths.is_empty() {
        let found = "no agent of this user runs on this node, so no agent was checked";
        return Ok((vec![Finding::ok("agents", found)], json!([])));
    }
    let mut findings = Vec::new();
    let mut answering: Vec<(PathBuf, Value)> = Vec::new();
    for path in &paths {
        match ask(path, &Question::About) {
            Ok(about) => answering.push((path.clone(), about)),
            Err(error) => {
                findings.push(unanswered(&error));
            }
        }
    }
    let names: Vec<&str> = answering
        .iter()
        .map(|(_, about)| text(about, "node"))
        .collect();
    if !names.is_empty() {
        let found = format!("{}, release {}", fold(names), env!("CARGO_PKG_VERSION"));
        findings.push(Finding::ok("agents", found));
    }
    for (path, about) in &answering {
        findings.push(priority(about));
        findings.extend(cores(about, &affinity));
        findings.extend(refused(path, text(about, "node")));
        findings.extend(unreachable(path));
        // The agents of one job report the same.
        let is_new = |one: &Finding| findings.iter().all(|other| other.found != one.found);
        let policies = policies(path).filter(is_new);
        findings.extend(policies);
    }
    let matrix = listen(&answering, listen_ms, &mut findings);
    findings.extend(firewall(&matrix));
    Ok((findings, matrix.into()))
}

/// The finding for an agent that did not answer. The other agents are checked all the same.
fn unanswered(error: &AskError) -> Finding {
    let remedy = match error {
        AskError::NoAgent { .. } => "start an agent with musterd, or name another with --agent",
        AskError::Denied { .. } => "run the command as its user or as root",
        AskError::NoAnswer { .. } => {
            "check its log, and whether it is stopped (ps -o stat); if so, restart it"
        }
        AskError::Skewed { .. } | AskError::Busy { .. } | AskError::Refused { .. } => {
            "install one release on all nodes, and restart the agent"
        }
    };
    Finding::bad("agents", Level::Error, error.to_string(), remedy)
}

fn priority(about: &Value) -> Finding {
    let node = text(about, "node");
    match about["real_time"] == true {
        true => Finding::ok("priority", format!("{node} runs in real time")),
        false => Finding::bad(
            "priority",
            Level::Warning,
            format!(
                "{node} runs without real-time priority: its deadlines are up to three times as long"
            ),
            "give the user that starts it an rtprio limit of 1, or CAP_SYS_NICE; see real time above",
        ),
    }
}

/// The hardware threads of a process; none if it has ended.
fn affinity(pid: i32) -> Option<Vec<u64>> {
    let set = sched_getaffinity(Some(Pid::from_raw(pid)?)).ok()?;
    Some(
        (0..1024)
            .filter(|thread| set.is_set(*thread))
            .map(|thread| thread as u64)
            .collect(),
    )
}

/// Checks whether the agent shares all its cores with ranks.
fn cores(about: &Value, affinity: &dyn Fn(i32) -> Option<Vec<u64>>) -> Option<Finding> {
    let node = text(about, "node");
    let own: Vec<u64> = array(about, "cores")
        .iter()
        .filter_map(Value::as_u64)
        .collect();
    let pids = array(about, "clients")
        .iter()
        .filter_map(|client| client["pid"].as_i64());
    let used: Vec<Vec<u64>> = pids.filter_map(|pid| affinity(pid as i32)).collect();
    if used.is_empty() {
        return None;
    }
    let is_used = |core: &&u64| used.iter().any(|cores| cores.contains(core));
    let shared: Vec<u64> = own.iter().filter(is_used).copied().collect();
    Some(if shared.len() < own.len() {
        Finding::ok("cores", format!("{node} has one that no rank uses"))
    } else if about["real_time"] == true {
        Finding::ok(
            "cores",
            format!(
                "{node} shares {} with ranks, and has precedence there",
                ranges(&shared)
            ),
        )
    } else {
        Finding::bad(
            "cores",
            Level::Warning,
            format!(
                "{node} shares all of its cores ({}) with ranks, and must wait for them",
                ranges(&shared)
            ),
            "leave a core to the agent (srun --core-spec=1, mpirun --cpu-set), or give it real-time priority",
        )
    })
}

/// Members that are not heard at all, if the agent knows why.
fn unreachable(path: &Path) -> Vec<Finding> {
    // An agent that ends meanwhile is a finding of `listen`.
    let Ok(members) = ask(path, &Question::Members) else {
        return Vec::new();
    };
    let finding = |one: Obstacle| {
        let level = match one.is_error {
            true => Level::Error,
            false => Level::Warning,
        };
        let what = if members["outcast"] == true {
            "agents"
        } else {
            "keys"
        };
        Finding::bad(what, level, one.found, one.remedy)
    };
    obstacles(&members).into_iter().map(finding).collect()
}

/// Whether the members have the same rules and limits for rails. Those with the defaults publish no digest.
fn policies(path: &Path) -> Option<Finding> {
    let (members, attributes) = ask(path, &Question::Members)
        .and_then(|members| Ok((members, ask(path, &Question::Attributes(None))?)))
        .ok()?;
    let attributes = array(&attributes, "attributes").iter();
    let published: BTreeMap<&str, String> = attributes
        .filter(|one| one["key"] == rail_status::KEY)
        .filter_map(|one| {
            let status = RailStatus::read(text(one, "value").as_bytes())?;
            Some((text(one, "node"), status.policy?))
        })
        .collect();
    let is_up = |member: &&Value| ["alive", "degraded"].contains(&text(member, "state"));
    let mut groups: BTreeMap<&str, Vec<&str>> = BTreeMap::new();
    for member in array(&members, "members").iter().filter(is_up) {
        let name = text(member, "name");
        let digest = published.get(name).map_or("default", String::as_str);
        groups.entry(digest).or_default().push(name);
    }
    let sides = groups.iter();
    let sides = sides.map(|(digest, names)| format!("{} ({digest})", fold(names.iter().copied())));
    let sides: Vec<String> = sides.collect();
    (sides.len() > 1).then(|| {
        Finding::bad(
            "policy",
            Level::Warning,
            format!("rules and limits for rails differ between {}", sides.join(" and ")),
            "print those of one node with muster export, and put them in force on the others with muster import",
        )
    })
}

/// Members that are refused, since their release or settings differ. A member that was accepted since is not listed.
fn refused(path: &Path, node: &str) -> Vec<Finding> {
    let mut follower = match Follower::open(path, 0, false) {
        Ok(follower) => follower,
        // An agent without a journal is reported elsewhere.
        Err(_) => return Vec::new(),
    };
    let mut of_member: BTreeMap<String, [String; 3]> = BTreeMap::new();
    // An agent that ends meanwhile refuses no member.
    while let Ok(Followed::Event(event)) = follower.next(None) {
        let member = text(&event, "member").to_owned();
        match text(&event, "event") {
            "node-refused" => {
                let [setting, own, other] =
                    ["setting", "own", "other"].map(|key| text(&event, key));
                of_member.insert(member, [setting, own, other].map(str::to_owned));
            }
            "node-up" => {
                of_member.remove(&member);
            }
            _ => {}
        }
    }
    let mut settings: BTreeMap<[String; 3], Vec<String>> = BTreeMap::new();
    for (member, setting) in of_member {
        settings.entry(setting).or_default().push(member);
    }
    let finding = |([setting, own, other], members): ([String; 3], Vec<String>)| {
        let members = fold(members.iter().map(String::as_str));
        let remedy = match setting.as_str() {
            "wire version" => "install one release on all nodes",
            _ => {
                "give all nodes of the job the same setting; muster config show --origin shows its source"
            }
        };
        let found = format!(
            "{node} and {members} do not listen to each other: {setting} is {own} here and {other} there"
        );
        Finding::bad("versions", Level::Error, found, remedy)
    };
    settings.into_iter().map(finding).collect()
}

/// The members that are heard over each pair within the time: a row for each NID of each alive member. An agent that
/// ends meanwhile is a finding.
fn listen(agents: &[(PathBuf, Value)], listen_ms: u64, findings: &mut Vec<Finding>) -> Vec<Value> {
    let mut get = |path: &Path, question: &Question| {
        let answer = ask(path, question);
        answer
            .map_err(|error| findings.push(unanswered(&error)))
            .ok()
    };
    let mut before = Vec::new();
    for (path, about) in agents {
        before.extend(get(path, &Question::peers()).map(|peers| (path, about, peers)));
    }
    if before.is_empty() {
        return Vec::new();
    }
    let progress = Progress::default();
    progress.show(format_args!("listening for beats, {listen_ms} ms"));
    std::thread::sleep(Duration::from_millis(listen_ms));
    drop(progress);
    let mut matrix = Vec::new();
    for (path, about, before) in &before {
        let Some(now) = get(path, &Question::peers()) else {
            continue;
        };
        let Some(members) = get(path, &Question::Members) else {
            continue;
        };
        let is_alive = |name: &str| {
            array(&members, "members").iter().any(|member| {
                text(member, "name") == name
                    && member["self"] == false
                    && ["alive", "degraded", "suspect"].contains(&text(member, "state"))
            })
        };
        let peers = array(&now, "peers")
            .iter()
            .filter(|peer| is_alive(text(peer, "name")));
        for peer in peers {
            matrix.extend(rows(text(about, "node"), peer, before));
        }
    }
    matrix
}

fn rows(node: &str, peer: &Value, before: &Value) -> Vec<Value> {
    let earlier = |nid: &str| {
        let nids = array(before, "peers")
            .iter()
            .flat_map(|peer| array(peer, "nids"));
        nids.filter(|one| text(one, "nid") == nid)
            .filter_map(|one| one["receives"].as_u64())
            .max()
    };
    let row = |nid: &Value| {
        let came = nid["receives"].as_u64().unwrap_or(0);
        let heard = came.saturating_sub(earlier(text(nid, "nid")).unwrap_or(0));
        json!({ "at": node, "member": peer["name"], "nid": nid["nid"], "over": nid["rails"],
            "state": nid["state"], "heard": heard, "heard_ever": came > 0 })
    };
    array(peer, "nids").iter().map(row).collect()
}

/// The silent NIDs, and their members, that are reached over one local rail.
#[derive(Default)]
struct Silence<'a> {
    members: Vec<&'a str>,
    nids: Vec<&'a str>,
}

/// Finds members that are heard over one pair and not over another, which means an obstacle in between. A member that
/// is heard over no pair is not watched by this node, but by others. A rail over which many members are silent is one
/// finding.
fn firewall(matrix: &[Value]) -> Vec<Finding> {
    let mut members: BTreeMap<(&str, &str), Vec<&Value>> = BTreeMap::new();
    // A net that this node is not on is not an obstacle.
    let shared = matrix.iter().filter(|row| !array(row, "over").is_empty());
    for row in shared {
        members
            .entry((text(row, "at"), text(row, "member")))
            .or_default()
            .push(row);
    }
    let mut cuts: BTreeMap<(&str, String, bool), Silence<'_>> = BTreeMap::new();
    let mut heard = 0;
    for ((at, member), rows) in members {
        let silent: Vec<&&Value> = rows.iter().filter(|row| row["heard"] == 0).collect();
        heard += rows.len() - silent.len();
        if silent.len() == rows.len() {
            continue;
        }
        for row in silent {
            let over: Vec<&str> = array(row, "over")
                .iter()
                .filter_map(Value::as_str)
                .collect();
            let key = (at, over.join(", "), row["heard_ever"] == true);
            let cut = cuts.entry(key).or_default();
            cut.members.push(member);
            cut.nids.push(text(row, "nid"));
        }
    }
    let mut findings: Vec<Finding> = cuts
        .iter()
        .map(|((at, over, ever), cut)| cut.finding(at, over, *ever))
        .collect();
    if findings.is_empty() && !matrix.is_empty() {
        findings.push(Finding::ok(
            "rails",
            format!("heard over {heard} of {} pairs, none is cut", matrix.len()),
        ));
    }
    findings
}

impl Silence<'_> {
    fn finding(&self, at: &str, over: &str, ever: bool) -> Finding {
        let members = fold(self.members.iter().copied());
        let since = if ever { "any more" } else { "ever" };
        let more = match self.nids.len().saturating_sub(NIDS_NAMED) {
            0 => String::new(),
            more => format!(" and {more} more"),
        };
        let nids = self.nids[..self.nids.len().min(NIDS_NAMED)].join(", ");
        let here = if over.is_empty() { "no rail" } else { over };
        Finding::bad(
            "rails",
            Level::Error,
            format!(
                "{at} hears {members} over other rails, and not {since} from {nids}{more} ({here} here)"
            ),
            "open the ports of the rail in the firewall between them (udp: UDP P and P+1, TCP P+1; tcp: TCP P, P+1 and \
             P+3; P is 7741 if it is not set; muster-rails(7)); see cable, switch and route of that interface",
        )
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_silent_pair_is_found_and_a_member_that_others_watch_is_not() {
        let row = |member: &str, nid: &str, heard: u64| {
            json!({ "at": "n1", "member": member, "nid": nid, "over": ["a@udp0"], "heard": heard,
                "heard_ever": false })
        };
        let well = [
            row("n2", "x@udp0", 9),
            row("n2", "y@udp1", 9),
            row("n9", "z@udp0", 0),
        ];
        let findings = firewall(&well);
        assert!(
            findings[0].level == Level::Ok && findings[0].found.contains("2 of 3"),
            "{findings:?}"
        );
        let cut = [row("n2", "x@udp0", 9), row("n2", "y@udp1", 0)];
        let findings = firewall(&cut);
        assert_eq!(findings.len(), 1);
        assert!(
            findings[0].found.contains("n1 hears n2") && findings[0].found.contains("y@udp1"),
            "{findings:?}"
        );
        assert!(findings[0].remedy.as_ref().unwrap().contains("7741"));
        // A switch that is off makes all members silent on a rail: one finding.
        let many: Vec<Value> = (1..=9)
            .flat_map(|number| {
                let (member, nid) = (format!("n{number}"), format!("y{number}@udp1"));
                [row(&member, "x@udp0", 9), row(&member, &nid, 0)]
            })
            .collect();
        let findings = firewall(&many);
        assert_eq!(findings.len(), 1);
        let found = &findings[0].found;
        let expected =
            "hears n[1-9] over other rails, and not ever from y1@udp1, y2@udp1, y3@udp1 and 6 more";
        assert!(found.contains(expected), "{found}");
    }

    #[test]
    fn shared_cores_are_a_warning_without_priority() {
        let about = |real_time: bool| {
            let clients = json!([{ "pid": 7 }]);
            json!({ "node": "n1", "cores": [0, 1], "real_time": real_time, "clients": clients })
        };
        let level = |real_time, used: Option<Vec<u64>>| {
            cores(&about(real_time), &move |_| used.clone()).map(|finding| finding.level)
        };
        assert_eq!(level(false, Some(vec![0, 1])), Some(Level::Warning));
        assert_eq!(level(true, Some(vec![0, 1])), Some(Level::Ok));
        assert_eq!(level(false, Some(vec![1])), Some(Level::Ok));
        assert_eq!(level(false, None), None);
    }
}
