//! Muster in a real Slurm: as a step of the job (slurm-2), and by the plugin (slurm-1); jobs of several
//! users, repeated and concurrent, with a clean end (slurm-3).

use muster_tests::cluster::{Cluster, NODES, Process, Run, kill, signal};
use muster_tests::process::wait_for_end;
use muster_tests::rank::rank_program;
use muster_tests::steps::{LIVES_ON, all_alive, plugin, service, step, worker, workers};
use muster_tests::{program, until};
use rustix::process::Signal;
use std::fs;
use std::io::Write;
use std::os::unix::fs::{MetadataExt, PermissionsExt};
use std::path::Path;

/// slurm-2.
#[test]
fn a_service_step_reports_a_killed_worker() {
    let Some(cluster) = Cluster::start("") else {
        return;
    };
    let mut run = service(&cluster);
    run.await_lines(NODES, &["ATTACHED"]);
    run.await_view(0..NODES, &all_alive());
    signal(&worker(&cluster, 3), Signal::KILL);
    for rank in [0, 1, 3] {
        run.await_line(&[&format!("{rank}: EVENT RankFailed node=n3 rank=2")]);
    }
    run.send("leave 0");
    run.end();
    cluster.await_clean();
}

/// A step with the plugin that Slurm does not end when a worker dies.
fn with_plugin(cluster: &Cluster) -> Run {
    step(cluster, &[&["--muster"], &LIVES_ON[..]].concat())
}

/// slurm-1.
#[test]
fn the_plugin_starts_an_agent_on_each_node_and_ends_it() {
    let Some(cluster) = Cluster::start(&plugin(&program("musterd"))) else {
        return;
    };
    let mut run = with_plugin(&cluster);
    run.await_view(0..NODES, &all_alive());
    for node in 1..=NODES {
        assert_eq!(cluster.on_node(node, "musterd").len(), 2, "node {node}");
        let pid = worker(&cluster, node).pid;
        let variables = fs::read(format!("/proc/{pid}/environ")).expect("the process runs");
        let variables = String::from_utf8_lossy(&variables);
        assert!(variables.contains("MUSTER_JOB=slurm-"), "{variables}");
        assert!(!variables.contains("SLURM_MUSTER_KEY"), "{variables}");
    }
    signal(&worker(&cluster, 3), Signal::KILL);
    for rank in [0, 1, 3] {
        run.await_line(&[&format!("{rank}: EVENT RankFailed node=n3 rank=2")]);
    }
    // A killed agent is started again by its worker, with the job's key.
    for process in cluster.on_node(2, "musterd") {
        signal(&process, Signal::KILL);
    }
    run.await_line(&["1: EVENT Overflow", "NewAgent"]);
    // Where the last worker has ended, the agent has ended, too. A new agent elsewhere learns of that node
    // from its peers, and the reported state of its worker is kept.
    run.await_view(
        [0, 1, 3],
        &all_alive()
            .replace("n3=Alive", "n3=Left")
            .replace("2=Alive 3", "2=Failed 3"),
    );
    signal(&worker(&cluster, 1), Signal::KILL);
    for rank in [1, 3] {
        run.await_line(&[&format!("{rank}: EVENT RankFailed node=n1 rank=0")]);
    }
    run.send("leave 0");
    run.end();
    cluster.await_clean();
}

/// For tasks that never attached to their agent only Slurm knows how they end. For an attached one the kernel
/// has reported it, and nothing is reported twice.
#[test]
fn the_ends_of_tasks_that_never_attached_are_reported() {
    let Some(cluster) = Cluster::start(&plugin(&program("musterd"))) else {
        return;
    };
    let path = |name: &str| cluster.folder().join(name);
    let gate = path("gate").display().to_string();
    assert!(cluster.output_of(&["mkfifo", &gate]).0.success());
    fs::create_dir(path("journal")).expect("a folder");
    // The first node has two of the tasks.
    let line = "case $SLURM_PROCID in 0|3) exec \"$RANK\";; esac; read -r _ <\"$LAB/gate\"
        case $SLURM_PROCID in 1) kill -KILL $$;; 2) exit 3;; esac";
    let mut command = cluster.command("srun");
    command.args(["--nodes=4", "--ntasks=5", "--label", "--muster"]);
    command.args(LIVES_ON).args(["sh", "-c", line]);
    command.env("MUSTER_JOURNAL", path("journal"));
    let mut run = cluster.run(command.env("RANK", rank_program()));
    let nodes = "n1=Alive n2=Alive n3=Alive n4=Alive";
    let before = format!("{nodes} 0=Alive 1=Unknown 2=Unknown 3=Alive");
    run.await_view([0, 3], &before);
    let mut gate = fs::OpenOptions::new();
    let mut gate = gate
        .read(true)
        .write(true)
        .open(path("gate"))
        .expect("a pipe");
    gate.write_all(b"\n\n\n").expect("the pipe has space");
    for expected in [
        "RankFailed node=n1 rank=1 cause=Told code=9 ",
        "RankFailed node=n2 rank=2 cause=Told code=-3 ",
        "RankLeft node=n4 rank=4 cause=Told code=0 ",
    ] {
        run.await_line(&["0: EVENT", expected]);
        run.await_line(&["3: EVENT", expected]);
    }
    let ask = |words: &str| {
        let muster = program("muster").display().to_string();
        let line = format!("MUSTER_JOB=slurm-1.0 MUSTER_NODE=n1 exec {muster} {words}");
        let (status, printed) = cluster.output_of(&["sh", "-c", &line]);
        assert!(status.success(), "{words}: {printed}");
        printed
    };
    let why = "rank 1 on n1 is failed: told by the launcher, signal 9";
    assert!(ask("why 1").starts_with(why), "{}", ask("why 1"));
    let why = "rank 2 on n2 is failed: told by the launcher, exit code 3";
    assert!(ask("why 2").starts_with(why), "{}", ask("why 2"));
    let why = "rank 4 on n4 is left: told by the launcher, exit code 0";
    assert!(ask("why 4").starts_with(why), "{}", ask("why 4"));
    // For an attached task Slurm reports nothing new.
    signal(&worker(&cluster, 3), Signal::KILL);
    run.await_line(&["0: EVENT RankFailed node=n3 rank=3", " code=9 "]);
    run.await_view(
        [0],
        "n1=Alive n2=Left n3=Left n4=Left 0=Alive 1=Failed 2=Failed 3=Failed 4=Left",
    );
    assert!(ask("why 3").contains("signal 9"), "{}", ask("why 3"));
    let failed = |rank| {
        let events = ask(&format!("events --rank {rank}"));
        events
            .lines()
            .filter(|line| line.contains("rank-failed"))
            .count()
    };
    assert_eq!([1, 2, 3].map(failed), [1; 3], "{}", ask("events"));
    assert_eq!(run.lines_with(&["0: EVENT RankFailed"]).len(), 3);
    run.send("leave 0");
    run.end();
    cluster.await_clean();
}

/// Other symbols in the plugin must not collide with Slurm's.
#[test]
fn the_plugin_exports_only_what_slurm_needs() {
    plugin(Path::new("/bin/true"));
    let mut command = std::process::Command::new("nm");
    command.args(["--dynamic", "--defined-only", "--format=posix"]);
    let output = command.arg(program("libmuster_spank.so")).output();
    let text = String::from_utf8(output.expect("nm").stdout).expect("names");
    let mut names: Vec<&str> = text
        .lines()
        .filter_map(|line| line.split(' ').next())
        .collect();
    names.sort_unstable();
    let wanted = [
        "plugin_name",
        "plugin_type",
        "plugin_version",
        "slurm_spank_exit",
        "slurm_spank_init",
        "slurm_spank_init_post_opt",
        "slurm_spank_local_user_init",
        "slurm_spank_task_exit",
        "slurm_spank_user_init",
        "spank_plugin_version",
    ];
    assert_eq!(names, wanted);
}

/// All processes of a node die at once: its tasks, slurmstepd, slurmd and the agent. Then, on other nodes,
/// slurmd alone, and slurmstepd.
#[test]
fn lost_daemons_and_a_lost_node() {
    let Some(cluster) = Cluster::start(&plugin(&program("musterd"))) else {
        return;
    };
    let mut run = with_plugin(&cluster);
    run.await_view(0..NODES, &all_alive());
    // Without its slurmd a node continues.
    for process in cluster.on_node(2, "slurmd") {
        signal(&process, Signal::KILL);
    }
    let mut all = cluster.processes();
    all.retain(|process| process.node == Some(4) && process.name != "sleep");
    assert!(all.len() > 4, "{all:?}");
    run.await_answers(3);
    kill(&all);
    for rank in 0..3 {
        run.await_line(&[&format!("{rank}: EVENT RankFailed node=n4 rank=3")]);
    }
    let rest = "n1=Alive n2=Alive n3=Alive n4=Failed 0=Alive 1=Alive 2=Alive 3=Failed";
    run.await_view(0..3, rest);
    // slurmstepd takes its tasks' input and output with it, which ends them; the agent reports it.
    for process in cluster.on_node(3, "slurmstepd") {
        signal(&process, Signal::KILL);
    }
    for rank in 0..2 {
        run.await_line(&[&format!("{rank}: EVENT RankFailed node=n3 rank=2")]);
    }
    // Where slurmd is gone Slurm ends nothing; the workers end by themselves.
    run.send("leave 0");
    run.await_line(&["0: LEFT true"]);
    // srun may not pass the command on any more.
    for worker in cluster.on_node(2, "muster-test-ran") {
        wait_for_end(worker.pid);
    }
    assert!(cluster.output_of(&["scancel", "--user=root"]).0.success());
    run.end();
    for node in 1..NODES {
        for process in cluster.on_node(node, "musterd") {
            wait_for_end(process.pid);
        }
    }
}

/// The values of a key in `/proc` for a process.
fn status_of(process: &Process, key: &str) -> String {
    let path = format!("/proc/{}/status", process.pid);
    let status = fs::read_to_string(path).expect("the process runs");
    let line = status.lines().find_map(|line| line.strip_prefix(key));
    let words = line
        .expect("the kernel provides the value")
        .split_whitespace();
    words.collect::<Vec<_>>().join(" ")
}

/// Whether one of its threads has a real-time policy.
fn is_real_time(process: &Process) -> bool {
    let tasks = fs::read_dir(format!("/proc/{}/task", process.pid)).expect("the process runs");
    tasks.flatten().any(|task| {
        let stat = fs::read_to_string(task.path().join("stat")).unwrap_or_default();
        let behind = stat.rsplit(')').next().unwrap_or_default();
        // The 41st field, of which two are before this.
        behind.split_whitespace().nth(38) == Some("1")
    })
}

/// A user other than root that every system has.
const OTHER_USER: &str = "65534";

/// Two users have a job on the same nodes at once: neither is notified of the other's failures. The agents
/// belong to their users, with none of root's rights except the priority (slurm-3).
#[test]
fn two_jobs_of_two_users_at_once() {
    let Some(cluster) = Cluster::start("") else {
        return;
    };
    // Other users may not read the build directory.
    let copy = |path: &Path| {
        let own = cluster.folder().join(path.file_name().expect("a program"));
        fs::copy(path, &own).expect("a copy");
        own
    };
    let rank = copy(Path::new(&rank_program()));
    let muster = cluster.folder().join("ask");
    fs::copy(program("muster"), &muster).expect("a copy");
    let muster = muster.display().to_string();
    let open = cluster.folder().join("open");
    fs::create_dir(&open).expect("a folder");
    fs::set_permissions(&open, fs::Permissions::from_mode(0o1777)).expect("a mode");
    let line = plugin(&copy(&program("musterd")));
    let line = format!("{} readable={}\n", line.trim_end(), open.display());
    cluster.set_plugins(&line);
    // One of them has a supplementary group.
    let groups = fs::read_to_string("/etc/group").expect("groups") + "team:x:4711:nobody\n";
    fs::write(cluster.folder().join("group"), groups).expect("a file");
    let mount = "mount --bind \"$LAB/group\" /etc/group";
    assert!(cluster.output_of(&["sh", "-c", mount]).0.success());
    let mut ours = with_plugin(&cluster);
    let mut command = cluster.command("setpriv");
    command.args([
        "--reuid",
        OTHER_USER,
        "--regid",
        OTHER_USER,
        "--clear-groups",
    ]);
    command.args(["srun", "--nodes=4", "--ntasks=4", "--label", "--muster"]);
    let mut theirs = cluster.run(command.args(LIVES_ON).arg(rank));
    ours.await_view(0..NODES, &all_alive());
    theirs.await_view(0..NODES, &all_alive());
    let of = |user: &str, processes: Vec<Process>| {
        let mut processes = processes;
        processes.retain(|process| status_of(process, "Uid:").starts_with(user));
        processes
    };
    let real_time = cluster
        .output_of(&["chrt", "--fifo", "1", "true"])
        .0
        .success();
    let may_raise = cluster
        .output_of(&["prlimit", "--rtprio=1:1", "true"])
        .0
        .success();
    for (may, what, lacks) in [
        (real_time, "that agents run in real time", "real-time"),
        (may_raise, "that they keep a limit for it", "limits"),
    ] {
        if !may {
            muster_tests::skipped(lacks, &format!("not shown: {what}"));
        }
    }
    for node in 1..=NODES {
        let agents = of(OTHER_USER, cluster.on_node(node, "musterd"));
        assert_eq!(agents.len(), 2, "node {node}");
        for agent in &agents {
            let all_four = [OTHER_USER; 4].join(" ");
            assert_eq!(status_of(agent, "Uid:"), all_four);
            assert_eq!(status_of(agent, "Gid:"), all_four);
            assert_eq!(status_of(agent, "Groups:"), format!("4711 {OTHER_USER}"));
            assert_eq!(status_of(agent, "CapEff:"), "0000000000000000");
            assert_eq!(status_of(agent, "CapPrm:"), "0000000000000000");
            // So that the agent can regain the priority that its guard removes; as root it needs
            // CAP_SYS_RESOURCE for that.
            let limits = fs::read_to_string(format!("/proc/{}/limits", agent.pid));
            let limits = limits.expect("the process runs").replace(' ', "");
            assert!(
                !may_raise || limits.contains("Maxrealtimepriority11"),
                "{limits}"
            );
        }
        // An agent that has worked too long at a time lacks it for a while.
        let is_set = || (agents.iter().any(is_real_time) == real_time).then_some(());
        until(|| format!("real time on node {node}: {real_time}"), is_set);
    }
    // Where the site allows it, others may read.
    let sockets = fs::read_dir(&open).expect("a folder").flatten();
    let sockets = sockets.map(|listener| listener.path().display().to_string());
    let sockets: Vec<String> = sockets
        .filter(|listener| listener.contains("/muster-0-"))
        .collect();
    assert_eq!(sockets.len(), NODES, "{sockets:?}");
    let drop = [
        "setpriv",
        "--reuid",
        OTHER_USER,
        "--regid",
        OTHER_USER,
        "--clear-groups",
    ];
    let (status, printed) =
        cluster.output_of(&[&drop[..], &[&muster, "members", "--agent", &sockets[0]]].concat());
    assert!(status.success() && printed.contains("n4"), "{printed}");
    let folders = fs::read_dir(cluster.muster_dir()).expect("a folder");
    let mut owners: Vec<u32> = folders
        .flatten()
        .map(|folder| folder.metadata().expect("the folder exists").uid())
        .collect();
    owners.sort_unstable();
    owners.dedup();
    assert_eq!(owners, [0, 65534]);
    // A death in one job is not reported in the other.
    signal(&of("0 ", workers(&cluster, 3))[0], Signal::KILL);
    for rank in [0, 1, 3] {
        ours.await_line(&[&format!("{rank}: EVENT RankFailed node=n3 rank=2")]);
    }
    signal(&of(OTHER_USER, workers(&cluster, 2))[0], Signal::KILL);
    for rank in [0, 2, 3] {
        theirs.await_line(&[&format!("{rank}: EVENT RankFailed node=n2 rank=1")]);
    }
    theirs.send("states");
    theirs.await_lines(3, &["STATES", "1=Failed 2=Alive"]);
    assert_eq!(theirs.lines_with(&["Failed", "rank=2"]), [""; 0]);
    assert_eq!(ours.lines_with(&["Failed", "rank=1"]), [""; 0]);
    ours.send("leave 0");
    theirs.send("leave 0");
    ours.end();
    theirs.end();
    cluster.await_clean();
    cluster.show_clean("two jobs of two users at once");
}

/// The job script of a test that communicates with its tasks through two pipes.
const TWO_PIPES: &str = r#"#!/bin/bash
exec srun --label --muster --kill-on-bad-exit=0 --no-kill "$RANK" <>"$LAB/in" >"$LAB/out" 2>&1
"#;

/// Slurm ends a job and starts it again: the same names, the same ports, another key, and nothing left of the
/// first run (slurm-3).
#[test]
fn a_requeued_job_starts_from_the_beginning() {
    let Some(cluster) = Cluster::start(&plugin(&program("musterd"))) else {
        return;
    };
    let path = |name| cluster.folder().join(name).display().to_string();
    fs::write(path("talking"), TWO_PIPES).expect("a file");
    let (status, printed) = cluster.output_of(&["mkfifo", &path("in"), &path("out")]);
    assert!(status.success(), "{printed}");
    let mut ends = cluster.command("sh");
    // Both pipes stay open, whichever processes use them.
    ends.args(["-c", r#"cat 0<>"$LAB/out" & cat 1<>"$LAB/in"; kill $!"#]);
    let mut run = cluster.run(&mut ends);
    let mut submit = cluster.command("sbatch");
    submit.args(["--parsable", "--requeue", "--nodes=4", "--ntasks=4"]);
    submit.args(["--output", &path("batch"), &path("talking")]);
    let output = submit.env("RANK", rank_program()).output();
    let output = output.expect("nsenter can be started");
    let job = String::from_utf8_lossy(&output.stdout).trim().to_owned();
    assert!(output.status.success(), "{output:?}");
    run.await_view(0..NODES, &all_alive());
    let first: Vec<Process> = (1..=NODES)
        .flat_map(|node| cluster.on_node(node, "musterd"))
        .collect();
    assert_eq!(first.len(), 2 * NODES);
    let (status, printed) = cluster.output_of(&["scontrol", "requeue", &job]);
    assert!(status.success(), "{printed}");
    first.iter().for_each(|process| wait_for_end(process.pid));
    let before = run.lines_with(&["ATTACHED"]).len();
    // It is pending again, for longer than necessary.
    let waits = || {
        let printed = cluster.output_of(&["squeue", "--noheader", "--job", &job, "--format=%T"]);
        (printed.1.trim() == "PENDING").then_some(())
    };
    until(|| cluster.logs(), waits);
    let again = [
        "scontrol",
        "update",
        &format!("JobId={job}"),
        "StartTime=now",
    ];
    let (status, printed) = cluster.output_of(&again);
    assert!(status.success(), "{printed}");
    run.await_lines(before + NODES, &["ATTACHED"]);
    let place = format!("slurm-{job}.0");
    for node in 1..=NODES {
        let pid = worker(&cluster, node).pid;
        let variables = fs::read(format!("/proc/{pid}/environ")).expect("the process runs");
        let variables = String::from_utf8_lossy(&variables);
        assert!(variables.contains(&place), "{variables}");
        assert!(variables.contains("SLURM_RESTART_COUNT=1"), "{variables}");
    }
    signal(&worker(&cluster, 3), Signal::KILL);
    for rank in [0, 1, 3] {
        run.await_line(&[&format!("{rank}: EVENT RankFailed node=n3 rank=2")]);
    }
    let left = (1..=NODES).flat_map(|node| workers(&cluster, node));
    let left: Vec<Process> = left.collect();
    run.send("leave 0");
    left.iter().for_each(|process| wait_for_end(process.pid));
    drop(run);
    cluster.await_clean();
    cluster.show_clean("a job that was requeued");
}

/// BG-04: age gossip knows nodes, and the ranks of its own node. Of the ranks of other nodes it knows
/// nothing, whether they run or are lost with their node.
#[test]
fn a_step_may_choose_age_gossip() {
    let Some(cluster) = Cluster::start(&plugin(&program("musterd"))) else {
        return;
    };
    let options = [&["--muster=protocol=age"], &LIVES_ON[..]].concat();
    let mut run = step(&cluster, &options);
    let view = |fourth: &str, own: usize| {
        let rank = |rank| format!("{rank}={}", if rank == own { "Alive" } else { "Unknown" });
        let ranks: Vec<String> = (0..=own).map(rank).collect();
        format!("n1=Alive n2=Alive n3=Alive n4={fourth} {}", ranks.join(" "))
    };
    for rank in 0..NODES {
        run.await_view([rank], &view("Alive", rank));
    }
    run.await_answers(NODES - 1);
    // A worker that takes over from a killed one (the later one of the two processes) detects members that
    // have died meanwhile.
    let mut all = cluster.processes();
    all.retain(|process| process.node == Some(4) && process.name != "sleep");
    let mut agents = cluster.on_node(1, "musterd");
    agents.sort_by_key(|process| process.pid);
    signal(&agents[1], Signal::KILL);
    kill(&all);
    // No view is requested before srun has detected the lost node, see `await_view`.
    for rank in 0..3 {
        run.await_line(&[&format!("{rank}: EVENT NodeFailed node=n4 ")]);
        run.await_view([rank], &view("Failed", rank));
    }
    run.send("leave 0");
    run.await_lines(3, &["LEFT true"]);
    drop(run);
    cluster.recover();
}
