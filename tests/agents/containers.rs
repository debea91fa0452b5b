//! Ranks in containers: another pid namespace, another user namespace. A rank that can be watched is
//! accepted, another one is refused with the reason. No rank hangs, and no process is followed under another
//! process's number.

use muster_tests::nodes::{Nodes, as_user};
use muster_tests::process::wait_for_end;
use muster_tests::rank::{Rank, rank_program};
use muster_tests::skipped;
use std::process::Stdio;

/// A user other than root.
const OTHER_USER: u32 = 65534;

/// Starts a rank through `unshare` with these options.
fn begin(job: &Nodes, rank: u32, options: &[&str]) -> Rank {
    let name = format!("rank {rank} in {options:?}");
    let mut command = job.command("unshare", 1, rank);
    command.args(options).arg(rank_program());
    Rank::start(&mut command, &name)
}

/// Returns the error of a rank that is not accepted.
fn refused(rank: Rank) -> String {
    let text = rank.await_line(|_| true);
    assert!(text.starts_with("REFUSED"), "{text}");
    assert_eq!(rank.await_end(), Some(3), "{text}");
    text
}

fn assert_contains(text: &str, words: &[&str]) {
    for word in words {
        assert!(text.contains(word), "{word:?} is missing in: {text}");
    }
}

/// Whether a user may create such a container here. Root may unless the kernel forbids it to all users; for
/// other users a kernel may have more conditions.
fn may_unshare(user: u32, options: &[&str]) -> bool {
    let mut command = as_user(user, "unshare");
    command.args(options).arg("true").stdin(Stdio::null());
    let why = match command.output() {
        Ok(output) if output.status.success() => return true,
        Ok(output) => String::from_utf8_lossy(&output.stderr).trim().to_owned(),
        Err(error) => error.to_string(),
    };
    let part = match user == root() {
        true => "namespaces",
        false => "namespaces-of-others",
    };
    skipped(
        part,
        &format!("no unshare {options:?} for user {user}: {why}"),
    );
    false
}

const PID: [&str; 3] = ["--pid", "--fork", "--kill-child"];
const PID_AND_PROC: [&str; 4] = ["--pid", "--fork", "--kill-child", "--mount-proc"];

fn root() -> u32 {
    rustix::process::getuid().as_raw()
}

/// The agent sees into the namespaces below its own: such a rank is watched like any other, under its number
/// in the agent's namespace.
#[test]
fn a_rank_in_a_pid_namespace_below_the_agents_is_watched() {
    for options in [&PID[..], &PID_AND_PROC[..]] {
        if !may_unshare(root(), options) {
            continue;
        }
        let job = Nodes::new(1);
        let mut outside = job.start(1, 0);
        let mut inside = begin(&job, 1, options).attached();
        outside.await_states("n1=Alive 0=Alive 1=Alive");
        // Its promise counts, although it has another number in its own namespace.
        inside.send("promise 20");
        inside.await_words(&["PROMISED", "true"]);
        outside.await_words(&["EVENT", "RankHung", "rank=1"]);
        inside.send("promise 0");
        outside.await_words(&["EVENT", "RankResumed", "rank=1"]);
        // Signals to its own number in the agent's namespace do not affect it, and its end is detected.
        inside.kill();
        let event = outside.await_words(&["EVENT", "RankFailed", "rank=1"]);
        assert!(event.contains("cause=KernelFutex"), "{event}");
        let mut another = begin(&job, 2, options).attached();
        another.send("leave 0");
        outside.await_words(&["EVENT", "RankLeft", "rank=2"]);
    }
}

/// An agent that was started in a pid namespace sees only its own namespace.
#[test]
fn a_rank_outside_the_agents_pid_namespace_is_refused() {
    if !may_unshare(root(), &PID_AND_PROC) {
        return;
    }
    let job = Nodes::new(1);
    let inside = begin(&job, 0, &PID_AND_PROC).attached();
    let (supervisor, _) = job.agent(1).pair();
    let text = refused(job.begin(1, 1));
    assert_contains(&text, &["pid namespace", "srun musterd"]);
    // The namespace ends with its first process, and the agent with it.
    inside.kill();
    wait_for_end(supervisor);
    drop(job.start(1, 1));
}

/// If `/proc` belongs to another namespace, an agent would watch the wrong processes: it does not start.
#[test]
fn an_agent_without_its_own_proc_does_not_start() {
    if !may_unshare(root(), &PID) {
        return;
    }
    let job = Nodes::new(1);
    let text = refused(begin(&job, 0, &PID));
    assert_contains(&text, &["/proc", "--mount-proc"]);
}

/// A user namespace maps the user to another number: it is the same user, with the same agent.
#[test]
fn a_rank_in_a_user_namespace_is_of_the_same_user() {
    const MAPPED: [&str; 2] = ["--user", "--map-root-user"];
    for user in [root(), OTHER_USER] {
        if !may_unshare(user, &MAPPED) {
            continue;
        }
        let own = Nodes::new(1);
        std::os::unix::fs::chown(own.directory(), Some(user), None).expect("our own directory");
        let job = if user == root() {
            own
        } else {
            own.of_user(user)
        };
        let mut outside = job.start(1, 0);
        let inside = begin(&job, 1, &MAPPED).attached();
        outside.await_states("n1=Alive 0=Alive 1=Alive");
        assert_eq!(job.agent(1).all.len(), 2, "one agent");
        inside.kill();
        outside.await_words(&["EVENT", "RankFailed", "rank=1"]);
    }
}

/// A user namespace without a map does not show which user it is, so the agent to attach to is unknown.
#[test]
fn a_rank_in_a_user_namespace_without_a_map_is_refused() {
    if !may_unshare(root(), &["--user"]) {
        return;
    }
    let job = Nodes::new(1);
    let text = refused(begin(&job, 0, &["--user"]));
    assert_contains(&text, &["user namespace", "--map-root-user"]);
    assert_eq!(job.agent(1).all, [0; 0]);
}
