//! Chooses one of several agents. Agents are distinguished by their jobs. Of the agents of one job, the agent that
//! knows the most alive members is preferred: an agent that was declared failed (an outcast) may know only itself.

use super::answer::{array, text};
use super::sockets::{no_agent, run_of};
use muster_control::explanation::ranges;
use muster_control::{Question, ask};
use muster_hostlist::fold;
use muster_launch::command::emulate::PREFIX;
use muster_terminal::CliError;
use serde_json::Value;
use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::sync::mpsc;
use std::thread;
use std::time::{Duration, Instant};

/// Time in which agents that are asked in parallel must answer; an agent that is later is not preferred. Long in
/// tests, so that all answer.
const ANSWER_TIMEOUT: Duration = Duration::from_secs(if cfg!(test) { 60 } else { 1 });
/// Maximum characters of a command in the list of jobs.
const COMMAND_MAX: usize = 60;

/// The socket to use, of those found. `wanted` is the job that MUSTER_JOB names, or empty. An agent of another job
/// than `wanted` is never chosen, even if it is the only one.
pub(super) fn choose(mut found: Vec<PathBuf>, wanted: &str) -> Result<PathBuf, CliError> {
    let first = found.first().and_then(|path| run_of(path));
    let is_one_run = first.is_some() && found.iter().all(|path| run_of(path) == first);
    if wanted.is_empty() {
        match found.len() {
            1 => return Ok(found.remove(0)),
            _ if is_one_run => return Ok(best(found)),
            _ => {}
        }
    }
    let abouts = ask_all(&found, &Question::About);
    let silent = abouts.iter().filter(|about| about.is_none()).count();
    let mut jobs: BTreeMap<String, Job> = BTreeMap::new();
    for (path, about) in found.into_iter().zip(abouts) {
        let job = jobs.entry(job_of(&path, about.as_ref())).or_default();
        job.abouts.extend(about);
        job.sockets.push(path);
    }
    match jobs.remove(wanted) {
        Some(job) if job.is_run() => return Ok(best(job.sockets)),
        Some(mut job) if job.sockets.len() == 1 => return Ok(job.sockets.remove(0)),
        Some(job) => jobs = [(wanted.to_owned(), job)].into(),
        None => {}
    }
    let list: Vec<String> = jobs.iter().map(|(name, job)| job.line(name)).collect();
    let list = list.join("\n  ");
    if !wanted.is_empty() && !jobs.contains_key(wanted) {
        let silent = match silent {
            0 => String::new(),
            count => format!(" ({count} did not answer)"),
        };
        let why = format!(
            "MUSTER_JOB={wanted}, and no agent of that job runs on this node{silent}; others are:\n  {list}"
        );
        return Err(no_agent(why).hint(
            "set MUSTER_JOB to one of these jobs or unset it, or choose an agent with --agent PATH",
        ));
    }
    let hint = match wanted.is_empty() {
        true => "choose one with --agent PATH, or a job with MUSTER_JOB=NAME",
        false => "choose one with --agent PATH",
    };
    Err(CliError::new("several agents run here", format!("choose one:\n  {list}")).hint(hint))
}

/// The name that distinguishes agents: the name of their job, or the socket of an agent without a job.
fn job_of(socket: &Path, about: Option<&Value>) -> String {
    let run = run_of(socket).and_then(Path::file_name);
    if let Some(number) = run.and_then(|name| name.to_str()?.strip_prefix(PREFIX)) {
        return format!("run-{number}");
    }
    match about.map(|about| text(about, "job")) {
        Some(job) if job != "-" => job.to_owned(),
        _ => socket.display().to_string(),
    }
}

/// The agents of one job on this node.
#[derive(Default)]
struct Job {
    sockets: Vec<PathBuf>,
    abouts: Vec<Value>,
}

impl Job {
    fn is_run(&self) -> bool {
        self.sockets.iter().all(|path| run_of(path).is_some())
    }

    /// The line in the list of jobs: nodes, ranks, age, command, and the argument that selects the job.
    fn line(&self, name: &str) -> String {
        let mut parts = vec![];
        let mut nodes: Vec<&str> = self
            .abouts
            .iter()
            .map(|about| text(about, "node"))
            .collect();
        nodes.sort_unstable();
        if !nodes.is_empty() {
            parts.push(format!("nodes {}", fold(nodes)));
        }
        let clients = self.abouts.iter().flat_map(|about| array(about, "clients"));
        let mut ranks: Vec<u64> = clients
            .filter_map(|client| client["rank"].as_u64())
            .collect();
        ranks.sort_unstable();
        if !ranks.is_empty() {
            parts.push(format!("ranks {}", ranges(&ranks)));
        }
        let age = self
            .abouts
            .iter()
            .filter_map(|about| about["since_s"].as_u64())
            .max();
        parts.extend(age.map(|age| format!("since {} ago", duration_text(age))));
        let run = self.sockets.first().and_then(|path| run_of(path));
        parts.extend(run.and_then(command_of));
        let path = match (&self.sockets[..], run) {
            (_, Some(run)) => run.display().to_string(),
            (sockets, None) => {
                let sockets = sockets.iter().map(|path| path.display().to_string());
                sockets.collect::<Vec<_>>().join("\n      --agent ")
            }
        };
        match parts.is_empty() {
            true => format!("{name}:\n      --agent {path}"),
            false => format!("{name}: {}\n      --agent {path}", parts.join("; ")),
        }
    }
}

fn duration_text(seconds: u64) -> String {
    match seconds {
        0..120 => format!("{seconds} s"),
        120..7200 => format!("{} min", seconds / 60),
        _ => format!("{} h", seconds / 3600),
    }
}

/// The command line of a `muster run`, found by its pid, which is part of the directory's name.
fn command_of(run: &Path) -> Option<String> {
    let number = run.file_name()?.to_str()?.strip_prefix(PREFIX)?;
    let command = std::fs::read(format!("/proc/{number}/cmdline")).ok()?;
    let command = String::from_utf8_lossy(&command)
        .trim_end_matches('\0')
        .replace(['\0', '\n'], " ");
    let short: String = command.chars().take(COMMAND_MAX).collect();
    match command.len() > short.len() {
        true => Some(format!("{short}...")),
        false => Some(short).filter(|short| !short.is_empty()),
    }
}

/// Of the agents of one job, the agent that knows the most alive members; of equal ones the first. An outcast is
/// chosen only if there is no other.
fn best(found: Vec<PathBuf>) -> PathBuf {
    let rating = |answer: Option<Value>| {
        answer.map_or((false, 0), |answer| {
            (
                answer["outcast"] != true,
                answer["alive"].as_u64().unwrap_or(0),
            )
        })
    };
    let all = (true, found.len() as u64);
    let mut found = found.into_iter();
    let first = found.next().expect("the caller found at least one agent");
    let mut most = rating(ask_all(std::slice::from_ref(&first), &Question::Members).remove(0));
    if most >= all {
        return first;
    }
    let mut chosen = first;
    let others: Vec<PathBuf> = found.collect();
    let answers = ask_all(&others, &Question::Members);
    for (path, answer) in others.into_iter().zip(answers) {
        let rated = rating(answer);
        if rated > most {
            (chosen, most) = (path, rated);
        }
    }
    chosen
}

/// Asks all agents in parallel. An agent that does not answer within `ANSWER_TIMEOUT` has no answer.
fn ask_all(paths: &[PathBuf], question: &Question) -> Vec<Option<Value>> {
    let (sender, answers) = mpsc::channel();
    for (at, path) in paths.iter().cloned().enumerate() {
        let (sender, question) = (sender.clone(), question.clone());
        thread::spawn(move || sender.send((at, ask(&path, &question).ok())));
    }
    drop(sender);
    let mut all = vec![None; paths.len()];
    let end = Instant::now() + ANSWER_TIMEOUT;
    while let Ok((at, answer)) = answers.recv_timeout(end.saturating_duration_since(Instant::now()))
    {
        all[at] = answer;
    }
    all
}

#[cfg(test)]
mod tests {
    use super::*;
    use muster_control::protocol;
    use serde_json::json;
    use std::io::{BufRead, BufReader, Write};
    use std::os::unix::net::UnixListener;

    /// An agent that gives these answers to every client.
    fn agent(base: &Path, run: &str, node: &str, alive: u64, outcast: bool) -> PathBuf {
        let directory = base.join(run).join("m").join(node);
        std::fs::create_dir_all(&directory).unwrap();
        let path = directory.join("control");
        let listener = UnixListener::bind(&path).unwrap();
        let about = json!({ "job": run.replace(PREFIX, "run-"), "node": node, "since_s": 7,
            "clients": [{ "rank": alive }] });
        let members = json!({ "self": node, "alive": alive, "outcast": outcast });
        let mark = (protocol::MARK, protocol::PROTOCOL);
        let answer = move |line: &str| {
            let mut answer = if line.contains("about") {
                about.clone()
            } else {
                members.clone()
            };
            answer["protocol"] = mark.1.into();
            answer
        };
        thread::spawn(move || {
            for client in listener.incoming().flatten() {
                let mut line = String::new();
                let _ = BufReader::new(&client).read_line(&mut line);
                let _ = (&client).write_all(format!("{}\n", answer(&line)).as_bytes());
            }
        });
        path
    }

    /// run-2: the agent that was started again for a node that was declared failed comes first by its name.
    #[test]
    fn of_one_job_the_agent_that_knows_most_members_is_chosen() {
        let place = tempfile::tempdir().unwrap();
        let make =
            |node: &str, alive, outcast| agent(place.path(), "muster-run-7", node, alive, outcast);
        let single = make("a", 1, false);
        let outcast = make("b", 4, true);
        let (third, fourth) = (make("c", 3, false), make("d", 3, false));
        let all = vec![single.clone(), outcast.clone(), third.clone(), fourth];
        assert_eq!(choose(all, "").unwrap(), third);
        assert_eq!(
            choose(vec![outcast.clone(), single.clone()], "").unwrap(),
            single
        );
        assert_eq!(choose(vec![outcast.clone()], "").unwrap(), outcast);
    }

    #[test]
    fn several_jobs_are_listed_and_one_is_chosen_by_name() {
        let place = tempfile::tempdir().unwrap();
        let seven =
            ["n1", "n2"].map(|node| agent(place.path(), "muster-run-7000007", node, 2, false));
        let eight = agent(place.path(), "muster-run-8000008", "n1", 1, false);
        let all = || [&seven[..], std::slice::from_ref(&eight)].concat();
        let message = choose(all(), "").unwrap_err().to_string();
        for run in ["7", "8"].map(|number| format!("{number}00000{number}")) {
            let directory = place.path().join(format!("muster-run-{run}"));
            assert_eq!(
                message
                    .matches(&format!("--agent {}\n", directory.display()))
                    .count(),
                1,
                "{message}"
            );
        }
        assert!(
            message.contains("run-7000007: nodes n[1-2]; ranks 2,2; since 7 s ago\n"),
            "{message}"
        );
        assert!(
            message.contains("run-8000008: nodes n1; ranks 1; since 7 s ago\n"),
            "{message}"
        );
        assert_eq!(choose(all(), "run-8000008").unwrap(), eight);
        assert_eq!(choose(all(), "run-7000007").unwrap(), seven[0]);
        // Neither a single agent nor the agents of a single run are used for another job's name.
        for (found, name) in [
            (all(), "nosuch"),
            (seven.to_vec(), "run-9"),
            (seven.to_vec(), "nosuch"),
            (vec![eight], "nosuch"),
        ] {
            let message = choose(found, name).unwrap_err();
            assert_eq!(message.code, 3, "{message}");
            let message = message.to_string();
            let why = format!("MUSTER_JOB={name}, and no agent of that job runs on this node;");
            assert!(
                message.contains(&why) && message.contains("unset it"),
                "{message}"
            );
        }
    }

    /// A job whose emulated nodes share a MUSTER_DIR: MUSTER_JOB is already set, so the hint does not propose it.
    #[test]
    fn of_several_agents_of_the_named_job_one_is_chosen_by_its_path() {
        let place = tempfile::tempdir().unwrap();
        let two = ["a", "b"].map(|node| agent(place.path(), "servers", node, 2, false));
        let message = choose(two.to_vec(), "servers").unwrap_err().to_string();
        assert!(message.contains("several agents run here"), "{message}");
        assert!(
            message.ends_with("hint: choose one with --agent PATH"),
            "{message}"
        );
        assert_eq!(choose(two[..1].to_vec(), "servers").unwrap(), two[0]);
    }
}
