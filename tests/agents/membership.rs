//! The agent of a job, end to end: ranks as processes on several emulated nodes, agents that they start
//! themselves; each kind of process is killed.
//!
//! Every wait is for an event. That an event does *not* occur is shown by a later one: a rank's events have
//! an order, so what is not there before a later event did not occur.

use muster_ipc::AgentDirectory;
use muster_tests::nodes::Nodes;
use muster_tests::process::{signal, wait_for_end};
use muster_tests::rank::{Rank, rank_program};
use muster_tests::{skipped, until};
use rustix::process::Signal;
use std::path::Path;
use std::process::Command;

/// Ranks on each node.
const PER_NODE: u32 = 2;
const FAILURES: [&str; 4] = ["NodeFailed", "RankFailed", "Outcast", "LOST"];

/// A job and its ranks; ranks 0 and 1 are on n1, 2 and 3 on n2, and so on.
struct World {
    ranks: Vec<Option<Rank>>,
    job: Nodes,
}

impl World {
    /// Starts all ranks; each of them sees all nodes and ranks.
    fn start(nodes: usize) -> Self {
        Self::start_in(nodes, "standard")
    }

    fn start_in(nodes: usize, profile: &'static str) -> Self {
        Self::start_job(Nodes::new(nodes).with_profile(profile))
    }

    fn start_job(job: Nodes) -> Self {
        let ranks = job.start_all(PER_NODE).into_iter().map(Some).collect();
        let world = Self { job, ranks };
        world.forget_passed();
        world
    }

    /// Waits until every rank sees all nodes and ranks alive, and the `ended` ranks as `state`.
    fn await_states(&mut self, ended: &[u32], state: &str) {
        let nodes = (1..=self.ranks.len() / PER_NODE as usize).map(|node| format!("n{node}=Alive"));
        let ranks = (0..self.ranks.len() as u32).map(|rank| {
            let state = if ended.contains(&rank) {
                state
            } else {
                "Alive"
            };
            format!("{rank}={state}")
        });
        let expected = nodes.chain(ranks).collect::<Vec<_>>().join(" ");
        for rank in self.ranks.iter_mut().flatten() {
            rank.await_states(&expected);
        }
    }

    fn kill(&mut self, rank: u32) {
        self.take(rank).kill();
    }

    fn take(&mut self, rank: u32) -> Rank {
        self.ranks[rank as usize].take().expect("the rank runs")
    }

    /// The running ranks, with their numbers.
    fn living(&self) -> impl Iterator<Item = (u32, &Rank)> {
        let ranks = (0..).zip(&self.ranks);
        ranks.filter_map(|(number, rank)| Some((number, rank.as_ref()?)))
    }

    fn on_node(&self, node: usize) -> impl Iterator<Item = &Rank> {
        let ranks = self.living();
        ranks
            .filter(move |(number, _)| node_of(*number) == node)
            .map(|(_, rank)| rank)
    }

    fn elsewhere(&self, node: usize) -> impl Iterator<Item = &Rank> {
        let ranks = self.living();
        ranks
            .filter(move |(number, _)| node_of(*number) != node)
            .map(|(_, rank)| rank)
    }

    fn forget_passed(&self) {
        self.living().for_each(|(_, rank)| drop(rank.take_passed()));
    }

    /// Kills a rank; all others are notified. No other failure may have been reported since the last call.
    fn kill_and_expect_nothing_else(&mut self, victim: u32) {
        self.kill(victim);
        for (number, rank) in self.living() {
            rank.await_words(&["EVENT", "RankFailed", &format!("rank={victim}")]);
            assert_eq!(
                rank.take_passed_with(&FAILURES),
                [""; 0],
                "at rank {number}"
            );
        }
    }
}

fn node_of(rank: u32) -> usize {
    (rank / PER_NODE) as usize + 1
}

/// The death of a killed rank is reported to every other rank on every node, with the kernel as evidence, and
/// no other rank is reported. Ranks whose thread ends, or that leave in order, have not failed.
#[test]
fn a_killed_rank_is_reported_to_all_ranks_and_no_other_failure_is() {
    let mut world = World::start(3);
    let mut other = world.take(0);
    other.send("thread");
    other.await_words(&["THREAD", "true"]);
    world.ranks[0] = Some(other);

    world.kill(3);
    for (number, rank) in world.living() {
        let event = rank.await_words(&["EVENT", "RankFailed"]);
        for part in ["node=n2", "rank=3", "cause=KernelFutex"] {
            assert!(event.contains(part), "{part} at rank {number}: {event}");
        }
    }
    // An exit without a detach is a failure, too, and not one by the signal of that number.
    let mut ending = world.take(5);
    // Its parent, this test, must not reap it before it is reported: then the exit code would be unknown.
    ending.send("exit 9");
    for (number, rank) in world.living() {
        let event = rank.await_words(&["EVENT", "RankFailed", "rank=5"]);
        assert!(event.contains("code=-9 "), "at rank {number}: {event}");
    }
    assert_eq!(ending.await_end(), Some(9));
    let mut leaving = world.take(4);
    leaving.send("leave 7");
    leaving.await_words(&["LEFT", "true"]);
    assert_eq!(leaving.await_end(), Some(7));
    for (number, rank) in world.living() {
        let event = rank.await_words(&["EVENT", "RankLeft"]);
        for part in ["node=n3", "rank=4", "cause=Announced", "code=7"] {
            assert!(event.contains(part), "{part} at rank {number}: {event}");
        }
        assert_eq!(
            rank.take_passed_with(&FAILURES),
            [""; 0],
            "at rank {number}"
        );
    }
}

/// A stopped node is declared failed with its ranks. When it continues it is notified, and comes back with them.
#[test]
fn a_stopped_node_fails_with_its_ranks_and_returns_with_them() {
    let mut world = World::start(3);
    let (supervisor, worker) = world.job.agent(2).pair();
    let mut node: Vec<u32> = world.on_node(2).map(Rank::pid).collect();
    node.extend([supervisor, worker]);
    node.iter().for_each(|pid| signal(*pid, Signal::STOP));
    for rank in world.elsewhere(2) {
        let event = rank.await_words(&["EVENT", "NodeFailed", "node=n2"]);
        assert!(event.contains("cause=Silence"), "{event}");
        let (_, reporters) = event
            .rsplit_once("reporters=")
            .expect("the reporters of an event");
        assert!(
            !reporters.is_empty() && !reporters.contains("n2"),
            "{event}"
        );
        for number in ["rank=2", "rank=3"] {
            let event = rank.await_words(&["EVENT", "RankFailed", number]);
            assert!(event.contains("cause=NodeFailed"), "{event}");
        }
        assert_eq!(rank.take_passed_with(&FAILURES), [""; 0]);
    }
    node.iter().for_each(|pid| signal(*pid, Signal::CONT));
    for rank in world.elsewhere(2) {
        rank.await_words(&["EVENT", "NodeUp", "node=n2"]);
    }
    for rank in world.on_node(2) {
        rank.await_words(&["EVENT", "Outcast"]);
    }
    world.await_states(&[], "");
    // The node that was stopped reports no failure.
    for rank in world.on_node(2) {
        assert_eq!(rank.take_passed_with(&FAILURES), [""; 0]);
    }
}

/// A dead worker has no effect on others: no event, no changed view, no lost rank; its successor continues.
#[test]
fn a_killed_worker_is_replaced_without_an_event() {
    // On a busy machine the next worker may take longer than standard's deadline.
    let mut world = World::start_in(3, "quiet");
    let (supervisor, worker) = world.job.agent(2).pair();
    signal(worker, Signal::KILL);
    for rank in world.on_node(2) {
        rank.await_words(&["ATTACHED"]);
    }
    let (same_supervisor, new_worker) = world.job.agent(2).pair();
    assert_eq!(same_supervisor, supervisor);
    assert_ne!(new_worker, worker);
    // Of its own node and of another one: the new worker sends and receives events.
    world.kill_and_expect_nothing_else(2);
    world.kill_and_expect_nothing_else(0);
    world.await_states(&[0, 2], "Failed");
    let mut newcomer = world.job.start(2, 6);
    for (_, rank) in world.living() {
        rank.await_words(&["EVENT", "RankUp", "rank=6"]);
    }
    newcomer.send("leave 0");
    newcomer.await_words(&["LEFT", "true"]);
    for (_, rank) in world.living() {
        rank.await_words(&["EVENT", "RankLeft", "rank=6"]);
    }
}

/// Workers that die one after another leave no resources in the supervisor. If they continue to die, the
/// agent gives up and states the reason.
#[test]
fn an_agent_whose_workers_keep_dying_gives_up_with_the_reason() {
    let world = World::start(1);
    let (supervisor, mut worker) = world.job.agent(1).pair();
    let before = descriptors(supervisor);
    for _ in 0..4 {
        signal(worker, Signal::KILL);
        for rank in world.on_node(1) {
            rank.await_words(&["ATTACHED"]);
        }
        worker = world.job.agent(1).pair().1;
        assert_eq!(
            tasks(supervisor),
            1,
            "the supervisor has one thread, or it must not fork"
        );
    }
    // A descriptor left open in the supervisor by each of the four would be inherited by the next.
    assert!(
        descriptors(supervisor) < before + 4,
        "descriptors were left open"
    );
    signal(worker, Signal::KILL);
    for rank in world.on_node(1) {
        let event = rank.await_words(&["LOST"]);
        assert_contains(&event, &["the worker died 5 times", "log"]);
        assert_eq!(rank.take_passed_with(&FAILURES), [""; 0]);
    }
    assert_nothing_remains(&world.job, 1);
}

fn descriptors(pid: u32) -> usize {
    entries(&format!("/proc/{pid}/fd"))
}

fn tasks(pid: u32) -> usize {
    entries(&format!("/proc/{pid}/task"))
}

fn entries(path: &str) -> usize {
    std::fs::read_dir(path).expect("the process runs").count()
}

/// Two nodes with one name in one job: the earlier one keeps it, the later one stops and states the remedy.
#[test]
fn a_node_whose_name_is_taken_reports_it() {
    let (mut first, second) = (World::start(1), Nodes::new(1));
    let mut command = second.rank(1, 2);
    command.env("MUSTER_SEEDS", first.job.rails(1));
    let rank = Rank::start(&mut command, "rank of the second n1");
    // It may have been attached before, or not.
    let event = rank.await_line(|line| line.starts_with("LOST") || line.starts_with("REFUSED"));
    assert_contains(&event, &["is named n1", "MUSTER_NODE"]);
    assert_nothing_remains(&second, 1);
    for (_, rank) in first.living() {
        assert_eq!(rank.take_passed_with(&FAILURES), [""; 0]);
    }
    first.kill_and_expect_nothing_else(0);
}

/// A node is gone when supervisor and worker are killed and no rank is left to start them again. The broken
/// liveness connections show that, long before the silence of this profile would. Row ZM-06.
#[test]
fn a_broken_liveness_connection_reveals_a_killed_agent_without_ranks() {
    // It must not leave by itself before it is killed.
    let job = Nodes::new(3).with_profile("quiet").with_linger_ms(60_000);
    let mut world = World::start_job(job);
    let (supervisor, _) = world.job.agent(2).pair();
    for rank in [2, 3] {
        world.kill_and_expect_nothing_else(rank);
    }
    world
        .job
        .agent(2)
        .all
        .into_iter()
        .for_each(|pid| signal(pid, Signal::KILL));
    wait_for_end(supervisor);
    for rank in world.elsewhere(2) {
        let event = rank.await_words(&["EVENT", "NodeFailed", "node=n2"]);
        assert!(event.contains("cause=Unreachable"), "{event}");
    }
}

/// A worker without its supervisor continues, serves new ranks, and ends in order.
#[test]
fn a_worker_whose_supervisor_was_killed_continues_alone() {
    let mut world = World::start(2);
    let (supervisor, worker) = world.job.agent(2).pair();
    signal(supervisor, Signal::KILL);
    wait_for_end(supervisor);
    let newcomer = world.job.start(2, 4);
    for (_, rank) in world.living() {
        rank.await_words(&["EVENT", "RankUp", "rank=4"]);
    }
    newcomer.kill();
    for (_, rank) in world.living() {
        rank.await_words(&["EVENT", "RankFailed", "rank=4"]);
    }
    world.kill_and_expect_nothing_else(2);
    world.kill_and_expect_nothing_else(0);
    assert_eq!(world.job.agent(2).all, [worker]);
    let mut last = world.take(3);
    last.send("leave 0");
    assert_eq!(last.await_end(), Some(0));
    wait_for_end(worker);
    // The files that the supervisor would have removed; the log was requested.
    assert_eq!(files_at(&world.job.agent_directory(2)), ["log"]);
    for (_, rank) in world.living() {
        rank.await_words(&["EVENT", "NodeLeft", "node=n2"]);
    }
}

/// Supervisor and worker are both lost: a rank starts another agent, and finally all ranks see the node and
/// its ranks alive.
#[test]
fn an_agent_that_was_lost_is_started_again_and_the_node_returns() {
    let mut world = World::start(3);
    let (supervisor, worker) = world.job.agent(2).pair();
    signal(supervisor, Signal::KILL);
    signal(worker, Signal::KILL);
    wait_for_end(worker);
    for rank in world.on_node(2) {
        rank.await_each(&[&["ATTACHED"], &["EVENT", "Overflow"]]);
    }
    let (new_supervisor, new_worker) = world.job.agent(2).pair();
    assert!(
        ![supervisor, worker].contains(&new_supervisor)
            && ![supervisor, worker].contains(&new_worker)
    );
    // The node is up again, not still up from before.
    for rank in world.elsewhere(2) {
        rank.await_words(&["EVENT", "NodeUp", "node=n2"]);
    }
    world.await_states(&[], "");
    world.forget_passed();
    // Running ranks are watched again, on both sides.
    world.kill_and_expect_nothing_else(3);
    world.kill_and_expect_nothing_else(5);
    world.await_states(&[3, 5], "Failed");
}

/// A rank that dies together with its node's agent is not taken for alive for ever, even if the next agent
/// starts before the node's deadline and no node is declared failed.
#[test]
fn a_rank_that_died_with_its_agent_does_not_stay_alive() {
    let mut world = World::start_in(2, "quiet");
    let (supervisor, worker) = world.job.agent(2).pair();
    let victim = world.take(2);
    for pid in [supervisor, worker] {
        signal(pid, Signal::KILL);
    }
    wait_for_end(worker);
    victim.kill();
    for rank in world.ranks.iter_mut().flatten() {
        rank.await_view(|view| {
            let has = |part: &str| view.split(' ').any(|word| word == part);
            has("n2=Alive") && has("3=Alive") && !has("2=Alive")
        });
    }
}

/// A reported death stays reported, also by a new agent that never received news of that node, which had left
/// before.
#[test]
fn a_death_is_not_undone_by_another_agent() {
    let mut world = World::start(3);
    let gone: Vec<u32> = (0..3 * PER_NODE)
        .filter(|rank| node_of(*rank) == 3)
        .collect();
    gone.iter().for_each(|rank| world.kill(*rank));
    for rank in world.on_node(2) {
        rank.await_words(&["EVENT", "NodeLeft", "node=n3"]);
    }
    let (supervisor, worker) = world.job.agent(2).pair();
    for pid in [supervisor, worker] {
        signal(pid, Signal::KILL);
    }
    for rank in world.on_node(2) {
        rank.await_each(&[&["ATTACHED"], &["EVENT", "Overflow"]]);
    }
    for rank in world.ranks.iter_mut().take(2 * PER_NODE as usize).flatten() {
        rank.await_view(|view| {
            let has = |part: &String| view.split(' ').any(|word| word == part);
            let alive = (0..2 * PER_NODE).map(|rank| format!("{rank}=Alive"));
            let failed = gone.iter().map(|rank| format!("{rank}=Failed"));
            alive.chain(failed).all(|part| has(&part))
        });
    }
    // A new rank was never notified of that node; the agent knows it from the others.
    let mut newcomer = world.job.start(2, 6);
    newcomer.await_in_view("n3=Left");
    let printed = |words: &[&str]| {
        let control = world.job.agent_directory(2).directory().join("control");
        let mut muster = Command::new(muster_tests::program("muster"));
        let output = muster.args(words).env("MUSTER_CONTROL", control).output();
        let output = output.expect("muster can be started");
        assert!(output.status.success(), "{words:?}: {output:?}");
        String::from_utf8_lossy(&output.stdout).into_owned()
    };
    let members = printed(&["members", "-o", "json"]);
    let members: serde_json::Value = members.parse().expect("JSON");
    let members = members["members"].as_array().expect("members");
    let gone = members.iter().find(|member| member["name"] == "n3");
    assert_eq!(gone.expect("n3")["state"], "left");
    // A rank can be queried like a member, and events can be filtered for it.
    newcomer.kill();
    let two = ["--follow", "--count", "2", "--timeout", "60"];
    let events = printed(&[&["events", "--rank", "6"], &two[..]].concat());
    let kinds = events
        .lines()
        .filter_map(|line| line.split_whitespace().nth(1));
    assert_eq!(kinds.collect::<Vec<_>>(), ["rank-up", "rank-failed"]);
    let why = printed(&["why", "6"]);
    let wanted = "rank 6 on n2 is failed: kernel futex, signal 9\nn2 is alive";
    assert!(why.starts_with(wanted), "{why}");
    let events = printed(&["events", "--member", "n1"]);
    assert!(events.lines().count() > 0 && events.lines().all(|line| line.contains(" n1")));
}

/// An agent that gets SIGTERM leaves in order, and no node is declared failed. Its ranks are notified, and
/// start no other agent until another process has done so.
#[test]
fn a_terminated_agent_stays_ended() {
    let mut world = World::start(2);
    let (supervisor, worker) = world.job.agent(2).pair();
    signal(supervisor, Signal::TERM);
    wait_for_end(worker);
    wait_for_end(supervisor);
    for rank in world.elsewhere(2) {
        rank.await_words(&["EVENT", "NodeLeft", "node=n2"]);
        assert_eq!(rank.take_passed_with(&FAILURES), [""; 0]);
    }
    for number in [2, 3] {
        let mut rank = world.take(number);
        let event = rank.await_words(&["EVENT", "NodeLeft", "node=n2"]);
        assert!(event.contains("cause=Announced"), "{event}");
        let event = rank.await_words(&["LOST"]);
        assert_contains(&event, &["requested to end", "SIGTERM", "dispatch"]);
        rank.await_states("n1=Alive n2=Left 0=Alive 1=Alive 2=Unknown 3=Unknown");
        rank.send("dispatch");
        rank.await_words(&["DISPATCHED", "false"]);
        world.ranks[number as usize] = Some(rank);
    }
    assert_nothing_remains(&world.job, 2);

    // A new rank starts an agent, and the others attach to it when they dispatch.
    let newcomer = world.job.start(2, 4);
    for number in [2, 3] {
        let mut rank = world.take(number);
        rank.send("dispatch");
        rank.await_words(&["ATTACHED"]);
        world.ranks[number as usize] = Some(rank);
    }
    world.ranks.push(Some(newcomer));
    for rank in world.ranks.iter_mut().flatten() {
        rank.await_states("n1=Alive n2=Alive 0=Alive 1=Alive 2=Alive 3=Alive 4=Alive");
    }
}

/// A worker that was replaced while no rank was attached does not wait for the first one any longer: it ends
/// after its linger time like any other.
#[test]
fn a_worker_that_was_replaced_after_the_last_rank_left_still_ends() {
    let mut world = World {
        job: Nodes::new(1).with_linger_ms(3_000),
        ranks: Vec::new(),
    };
    world.ranks.push(Some(world.job.start(1, 0)));
    let (supervisor, worker) = world.job.agent(1).pair();
    let mut rank = world.take(0);
    rank.send("leave 0");
    assert_eq!(rank.await_end(), Some(0));
    signal(worker, Signal::KILL);
    wait_for_end(worker);
    wait_for_end(supervisor);
    let log = world.job.log(1);
    assert_contains(&log, &["the last client and its launcher have ended"]);
    assert_nothing_remains(&world.job, 1);
}

/// The last rank of a node leaves: its agent announces that the node leaves, and ends after its linger time.
/// Nothing of it remains.
#[test]
fn the_agent_ends_when_its_last_rank_has_left() {
    let mut world = World::start(2);
    let (supervisor, worker) = world.job.agent(2).pair();
    for number in [2, 3] {
        let mut rank = world.take(number);
        rank.send("leave 0");
        assert_eq!(rank.await_end(), Some(0));
        for (_, rank) in world.living() {
            rank.await_words(&["EVENT", "RankLeft", &format!("rank={number}")]);
        }
    }
    for (_, rank) in world.living() {
        rank.await_words(&["EVENT", "NodeLeft", "node=n2"]);
        assert_eq!(rank.take_passed_with(&FAILURES), [""; 0]);
    }
    wait_for_end(supervisor);
    wait_for_end(worker);
    assert!(!world.job.agent_directory(2).socket().exists());
    assert_eq!(world.job.agent(2).all, [0; 0]);

    // A later rank starts another agent, which learns from the others which ranks had left.
    let mut late = world.job.start(2, 2);
    late.await_states("n1=Alive n2=Alive 0=Alive 1=Alive 2=Alive 3=Left");
}

/// After an orderly end no file remains, and a rank that starts just then finds an agent.
#[test]
fn an_agent_that_ended_in_order_leaves_no_files() {
    let job = Nodes::new(1).with_linger_ms(0);
    for at in 0..6 {
        let mut command = job.rank(1, 0);
        if at < 5 {
            command.env_remove("MUSTER_LOG");
        }
        let mut rank = Rank::start(&mut command, "rank 0").attached();
        // As a process does that brings the job's key for the next agent.
        std::fs::write(job.agent_directory(1).key_file(), "").unwrap();
        rank.send("leave 0");
        assert_eq!(rank.await_end(), Some(0));
        if at >= 4 {
            job.agent(1).all.into_iter().for_each(wait_for_end);
            let wanted: &[&str] = if at == 4 { &[] } else { &["log"] };
            assert_eq!(files_at(&job.agent_directory(1)), wanted);
            assert_eq!(job.agent_directory(1).directory().exists(), at > 4);
        }
    }
}

/// The names of the files in an agent directory.
fn files_at(directory: &AgentDirectory) -> Vec<String> {
    let entries = std::fs::read_dir(directory.directory());
    let names = entries.into_iter().flatten().flatten();
    names
        .map(|entry| entry.file_name().to_string_lossy().into_owned())
        .collect()
}

/// Starts a rank that cannot attach. Returns its error.
fn refused(command: &mut Command) -> String {
    let rank = Rank::start(command, "a refused rank");
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

/// Waits until nothing of a node's agent is left.
fn assert_nothing_remains(job: &Nodes, node: usize) {
    job.agent(node).all.into_iter().for_each(wait_for_end);
    assert_eq!(job.agent(node).all, [0; 0]);
    assert!(
        !job.agent_directory(node).socket().exists(),
        "the socket is still there"
    );
}

#[test]
fn a_second_process_of_the_same_rank_is_refused() {
    let world = World::start(1);
    let pid = world.on_node(1).next().expect("rank 0 runs").pid();
    let text = refused(&mut world.job.rank(1, 0));
    assert_contains(&text, &["rank 0", &pid.to_string(), "MUSTER_RANK"]);
    for (_, rank) in world.living() {
        assert_eq!(rank.take_passed_with(&FAILURES), [""; 0]);
    }
}

/// The rank that wants to attach gets the error: the value, and the remedy.
#[test]
fn an_agent_that_cannot_start_reports_the_reason_to_its_rank() {
    let cases: [(&str, &str, &[&str]); 12] = [
        ("MUSTER_RANK", "three", &["three", "MUSTER_RANK", "from 0"]),
        ("MUSTER_RANK", "-1", &["-1", "MUSTER_RANK"]),
        ("MUSTER_RANK", "4294967295", &["4294967295", "MUSTER_RANK"]),
        ("MUSTER_ULFM", "yes", &["yes", "MUSTER_ULFM", "1"]),
        ("MUSTER_NODE", "a:b", &["a:b", "':'", "MUSTER_NODE"]),
        (
            "MUSTER_AGENT",
            "/nonexistent/musterd",
            &["/nonexistent/musterd", "MUSTER_AGENT"],
        ),
        (
            "MUSTER_RAILS",
            "nonsense",
            &["nonsense", "@udp0", "MUSTER_RAILS"],
        ),
        ("MUSTER_RAILS", "nosuchif0@udp0", &["nosuchif0", "lo"]),
        ("MUSTER_PROFILE", "hasty", &["hasty", "standard"]),
        (
            "MUSTER_KEY_FILE",
            "/nonexistent/key",
            &["/nonexistent/key", "MUSTER_KEY_FILE"],
        ),
        ("MUSTER_LINGER_MS", "soon", &["soon", "MUSTER_LINGER_MS"]),
        (
            "MUSTER_LIBFABRIC",
            "/nonexistent/libfabric.so.1",
            &["/nonexistent/libfabric.so.1", "MUSTER_LIBFABRIC"],
        ),
    ];
    let job = Nodes::new(1);
    for (variable, value, words) in cases {
        let text = refused(job.rank(1, 0).env(variable, value));
        assert_contains(&text, words);
        assert_nothing_remains(&job, 1);
    }
    // None of this hinders a valid start.
    drop(job.start(1, 0));
}

/// A rank is bound to one core, so another core is free if there is one: the agent's loop uses it, and
/// releases it when a rank comes that may use every core.
#[test]
fn an_agent_uses_a_core_that_no_rank_uses() {
    let job = Nodes::new(1);
    let mut command = job.command("taskset", 1, 0);
    let bound = Rank::start(command.args(["-c", "0", &rank_program()]), "a bound rank").attached();
    let (_, worker) = job.agent(1).pair();
    let cores = || {
        let status = std::fs::read_to_string(format!("/proc/{worker}/status")).unwrap();
        let line = status
            .lines()
            .find_map(|line| line.strip_prefix("Cpus_allowed_list:"));
        line.unwrap().trim().to_owned()
    };
    let siblings = "/sys/devices/system/cpu/cpu0/topology/thread_siblings_list";
    let siblings = std::fs::read_to_string(siblings).unwrap();
    let own = std::fs::read_to_string("/proc/self/status").unwrap();
    let usable = own
        .lines()
        .find_map(|line| line.strip_prefix("Cpus_allowed_list:"))
        .unwrap();
    if siblings.trim() == usable.trim() {
        skipped("cores", "this process may use one core only");
        return;
    }
    let printed = || format!("{}: {}", cores(), job.log(1));
    let taken = until(printed, || {
        Some(cores()).filter(|one| one.parse::<u32>().is_ok())
    });
    assert!(!siblings.trim().split([',', '-']).any(|one| one == taken));
    let roaming = job.start(1, 1);
    until(printed, || (cores() == usable.trim()).then_some(()));
    drop((bound, roaming));
}

/// A resource limit that is too low is named, with the remedy.
#[test]
fn a_limit_that_is_too_low_is_named() {
    for (limit, words) in [
        ("-n 16", ["16 open files", "ulimit -n"]),
        ("-f 1000", ["File too large", "ulimit -f"]),
    ] {
        let job = Nodes::new(1);
        let mut command = job.command("/bin/sh", 1, 0);
        command.args([
            "-c",
            &format!("ulimit {limit}; exec \"$0\""),
            &rank_program(),
        ]);
        assert_contains(&refused(&mut command), &words);
        assert_nothing_remains(&job, 1);
    }
}

/// Ranks that name one directory relative to different working directories do not meet, but do not hinder
/// each other. An agent survives the working directory of the process that started it.
#[test]
fn an_agent_keeps_no_working_directory() {
    let job = Nodes::new(1);
    let inside = job.directory().join("inside");
    std::fs::create_dir(&inside).unwrap();
    set_mode(&inside, 0o700);
    let mut command = job.rank(1, 0);
    command
        .current_dir(job.directory())
        .env("MUSTER_DIR", "inside");
    let rank = Rank::start(&mut command, "a rank with a relative directory").attached();
    let name = job
        .agent_directory(1)
        .directory()
        .file_name()
        .unwrap()
        .to_owned();
    let directory = inside.join(name);
    assert!(directory.join("sock").exists());
    let agents = muster_tests::nodes::agents_in(&directory);
    assert_eq!(agents.len(), 2, "supervisor and worker");
    for pid in &agents {
        let cwd = std::fs::read_link(format!("/proc/{pid}/cwd")).unwrap();
        assert_eq!(cwd, Path::new("/"));
    }
    // Without a rank they end by themselves.
    drop(rank);
    agents.into_iter().for_each(wait_for_end);
}

#[test]
fn a_directory_that_cannot_be_used_is_named_with_the_remedy() {
    let job = Nodes::new(1);
    let open = job.directory().join("open");
    std::fs::create_dir(&open).unwrap();
    set_mode(&open, 0o777);
    let file = job.directory().join("file");
    std::fs::write(&file, "").unwrap();
    for directory in [&open, &file, &job.directory().join("missing/below")] {
        let text = refused(job.rank(1, 0).env("MUSTER_DIR", directory));
        assert_contains(&text, &[&directory.display().to_string(), "MUSTER_DIR"]);
        assert_nothing_remains(&job, 1);
    }
    job.agent_directory(1).prepare().unwrap();
    set_mode(job.agent_directory(1).directory(), 0o750);
    let text = refused(&mut job.rank(1, 0));
    assert_contains(&text, &["0750", "0700", "MUSTER_DIR"]);
    assert_nothing_remains(&job, 1);
}

fn set_mode(path: &Path, mode: u32) {
    use std::os::unix::fs::PermissionsExt;
    std::fs::set_permissions(path, std::fs::Permissions::from_mode(mode)).unwrap();
}

/// A job that was killed with its agents leaves files behind, which do not hinder later ones.
#[test]
fn files_of_a_killed_job_do_not_hinder_the_next_one() {
    let mut world = World::start(1);
    let (supervisor, worker) = world.job.agent(1).pair();
    for pid in [supervisor, worker] {
        signal(pid, Signal::STOP);
    }
    world.kill(0);
    world.kill(1);
    for pid in [supervisor, worker] {
        signal(pid, Signal::KILL);
        wait_for_end(pid);
    }
    let directory = world.job.agent_directory(1);
    assert!(directory.socket().exists() && directory.lock().exists());
    let mut rank = world.job.start(1, 0);
    rank.await_states("n1=Alive 0=Alive");
    assert_ne!(world.job.agent(1).pair(), (supervisor, worker));
}
