//! Muster in a real Slurm: as a step of the job, and by the plugin.

use muster_tests::cluster::{Cluster, NODES, Process, Run, signal};
use muster_tests::ranks::wait_for_end;
use muster_tests::{program, workspace};
use rustix::process::Signal;
use std::fs;
use std::path::Path;
use std::process::Command;

fn rank_program() -> &'static str {
    env!("CARGO_BIN_EXE_muster-test-rank")
}

/// The job script of the examples, in an allocation of all nodes, with a worker on each.
fn service(cluster: &Cluster) -> Run {
    let script = workspace().join("examples/slurm/service.sbatch");
    let mut command: Command = cluster.command("salloc");
    command.arg(format!("--nodes={NODES}")).arg("--no-kill");
    command.arg(script).args(["--label", rank_program()]);
    let musterd = program("musterd");
    let path = std::env::var("PATH").unwrap_or_default();
    let folder = musterd.parent().expect("it is in a folder").display();
    cluster.run(command.env("PATH", format!("{folder}:{path}")))
}

/// The view of a whole job.
fn everybody() -> String {
    let node = |node| format!("n{node}=Alive");
    let rank = |rank| format!("{rank}=Alive");
    let nodes = (1..=NODES).map(node);
    let all: Vec<String> = nodes.chain((0..NODES).map(rank)).collect();
    all.join(" ")
}

/// The worker of this node.
fn worker(cluster: &Cluster, node: usize) -> Process {
    cluster.on_node(node, "muster-test-ran").remove(0)
}

#[test]
fn a_service_step_tells_of_a_killed_worker() {
    let Some(cluster) = Cluster::start("") else {
        return;
    };
    let mut run = service(&cluster);
    run.await_lines(NODES, &["ATTACHED"]);
    run.await_view(0..NODES, &everybody());
    signal(&worker(&cluster, 3), Signal::KILL);
    for rank in [0, 1, 3] {
        run.await_line(&[&format!("{rank}: EVENT RankFailed node=n3 rank=2")]);
    }
    run.tell("leave 0");
    run.end();
    cluster.await_clean();
}

/// The plugin's line in `plugstack.conf`, with that agent.
fn plugin(agent: &Path) -> String {
    let status = Command::new(env!("CARGO"))
        .args(["build", "--quiet", "-p", "muster-slurm"])
        .current_dir(workspace())
        .status();
    assert!(
        status.is_ok_and(|status| status.success()),
        "cargo build -p muster-slurm"
    );
    let plugin = program("libmuster_spank.so");
    let (plugin, agent) = (plugin.display(), agent.display());
    format!("optional {plugin} agent={agent} rails=eth0@udp0 fastest=standard\n")
}

/// A step with a worker on each node, which Slurm leaves alone when one dies.
fn step(cluster: &Cluster, options: &[&str]) -> Run {
    let mut command = cluster.command("srun");
    command.args(["--nodes=4", "--ntasks=4", "--label", "--mpi=none"]);
    command.args(["--kill-on-bad-exit=0", "--no-kill"]);
    cluster.run(command.args(options).arg(rank_program()))
}

#[test]
fn the_plugin_gives_each_node_an_agent_and_takes_it_away() {
    let Some(cluster) = Cluster::start(&plugin(&program("musterd"))) else {
        return;
    };
    let mut run = step(&cluster, &["--muster"]);
    run.await_view(0..NODES, &everybody());
    for node in 1..=NODES {
        assert_eq!(cluster.on_node(node, "musterd").len(), 2, "node {node}");
        let pid = worker(&cluster, node).pid;
        let variables = fs::read(format!("/proc/{pid}/environ")).expect("it lives");
        let variables = String::from_utf8_lossy(&variables);
        assert!(variables.contains("MUSTER_JOB=slurm-"), "{variables}");
        assert!(!variables.contains("MUSTER_SPANK_KEY"), "{variables}");
    }
    signal(&worker(&cluster, 3), Signal::KILL);
    for rank in [0, 1, 3] {
        run.await_line(&[&format!("{rank}: EVENT RankFailed node=n3 rank=2")]);
    }
    // An agent that is killed is started again by its worker, with the job's key.
    for process in cluster.on_node(2, "musterd") {
        signal(&process, Signal::KILL);
    }
    run.await_line(&["1: EVENT Overflow", "NewAgent"]);
    // Where the last worker has ended the agent has, too; a new one elsewhere never heard of that node.
    run.await_view(
        [0, 3],
        &everybody()
            .replace("n3=Alive", "n3=Left")
            .replace("2=Alive 3", "2=Failed 3"),
    );
    run.await_view(
        [1],
        &everybody()
            .replace("n3=Alive ", "")
            .replace("2=Alive 3", "2=Unknown 3"),
    );
    signal(&worker(&cluster, 1), Signal::KILL);
    for rank in [1, 3] {
        run.await_line(&[&format!("{rank}: EVENT RankFailed node=n1 rank=0")]);
    }
    run.tell("leave 0");
    run.end();
    cluster.await_clean();
}

#[test]
fn what_is_wrong_is_said_and_the_job_runs() {
    let line = plugin(&program("musterd"));
    let Some(cluster) = Cluster::start(&line) else {
        return;
    };
    // A wrong option, or one that the site does not allow: before there is a step.
    for (option, words) in [
        ("--muster=profile=hasty", ["hasty", "standard"]),
        ("--muster=profile=fast", ["fast", "site allows"]),
        ("--muster=what", ["what", "profile="]),
    ] {
        let (status, said) = cluster.say(&["srun", option, "hostname"]);
        let said_all = words.iter().all(|word| said.contains(word));
        assert!(
            !status.success() && said_all && !said.contains("n1\n"),
            "{said}"
        );
    }
    // Without the option there is nothing; with an agent that is missing it is said where, and why.
    let (status, said) = cluster.say(&["srun", "hostname"]);
    assert!(status.success() && said == "n1\n", "{said}");
    cluster.set_plugins(&plugin(Path::new("/nonexistent/musterd")));
    let (status, said) = cluster.say(&["srun", "--muster", "hostname"]);
    assert!(status.success() && said.contains("n1\n"), "{said}");
    assert!(
        said.contains("node n1") && said.contains("/nonexistent/musterd"),
        "{said}"
    );
    // A plugin that cannot be loaded is optional, too, and so is one whose line is wrong.
    cluster.set_plugins("optional /nonexistent/muster_spank.so\n");
    let (status, said) = cluster.say(&["srun", "hostname"]);
    assert!(status.success() && said.contains("n1\n"), "{said}");
    cluster.set_plugins(&line.replace("fastest", "colour"));
    let (status, said) = cluster.say(&["srun", "hostname"]);
    assert!(
        status.success() && said.contains("n1\n") && said.contains("colour"),
        "{said}"
    );
    cluster.await_clean();
}

/// Everything on a node dies at once: its tasks, slurmstepd, slurmd and the agent. Then, of another node,
/// slurmd alone, and slurmstepd.
#[test]
fn lost_daemons_and_a_lost_node() {
    let Some(cluster) = Cluster::start(&plugin(&program("musterd"))) else {
        return;
    };
    let mut run = step(&cluster, &["--muster"]);
    run.await_view(0..NODES, &everybody());
    // Without its slurmd a node goes on.
    for process in cluster.on_node(2, "slurmd") {
        signal(&process, Signal::KILL);
    }
    let mut all = cluster.processes();
    all.retain(|process| process.node == Some(4) && process.name != "sleep");
    assert!(all.len() > 4, "{all:?}");
    for process in &all {
        signal(process, Signal::KILL);
    }
    for rank in 0..3 {
        run.await_line(&[&format!("{rank}: EVENT RankFailed node=n4 rank=3")]);
    }
    let rest = "n1=Alive n2=Alive n3=Alive n4=Failed 0=Alive 1=Alive 2=Alive 3=Failed";
    run.await_view(0..3, rest);
    // slurmstepd takes its tasks' input and output along, and these end by that; the agent tells it.
    for process in cluster.on_node(3, "slurmstepd") {
        signal(&process, Signal::KILL);
    }
    for rank in 0..2 {
        run.await_line(&[&format!("{rank}: EVENT RankFailed node=n3 rank=2")]);
    }
    // Where slurmd is gone Slurm ends nothing; the workers do it themselves.
    run.tell("leave 0");
    run.await_lines(2, &["LEFT true"]);
    assert!(cluster.say(&["scancel", "--user=root"]).0.success());
    run.end();
    for node in 1..NODES {
        for process in cluster.on_node(node, "musterd") {
            wait_for_end(process.pid);
        }
    }
}
