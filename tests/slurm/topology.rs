//! The switches of a real Slurm as the zones of a job.

use muster_tests::cluster::{Cluster, NODES, kill};
use muster_tests::program;
use muster_tests::rank::rank_program;
use muster_tests::steps::{LIVES_ON, all_alive, plugin};
use std::io::Write;
use std::process::{Command, Stdio};

/// ZM-12: the zones are the leaf switches of Slurm's tree plugin; the node list is that of a step.
#[test]
fn the_switches_of_slurm_are_the_zones_of_a_plan() {
    let Some(cluster) = Cluster::start("") else {
        return;
    };
    let (status, topology) = cluster.output_of(&["scontrol", "show", "topology"]);
    assert!(status.success(), "{topology}");
    let list = "printenv SLURM_JOB_NODELIST SLURM_TOPOLOGY_ADDR";
    let (status, printed) = cluster.output_of(&["srun", "-N4", "-w", "n[1-4]", "sh", "-c", list]);
    assert!(status.success(), "{printed}");
    let nodes = printed.lines().next().expect("a line");
    // Slurm itself names the switches above each node.
    for address in ["top.leaf1.n1", "top.leaf2.n4"] {
        assert!(printed.lines().any(|line| line == address), "{printed}");
    }
    let mut plan = Command::new(program("muster"))
        .args([
            "zones",
            "plan",
            "--nodes",
            nodes,
            "--topology",
            "-",
            "--each-switch",
            "-o",
            "json",
        ])
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .spawn()
        .expect("muster can be started");
    let mut input = plan.stdin.take().expect("a pipe");
    input.write_all(topology.as_bytes()).expect("a pipe");
    drop(input);
    let output = plan.wait_with_output().expect("muster ends");
    assert!(output.status.success(), "{topology}");
    let plan: serde_json::Value = serde_json::from_slice(&output.stdout).expect("JSON");
    let zones = plan["zones"].as_array().expect("a list");
    let found: Vec<[&str; 2]> = zones
        .iter()
        .filter(|zone| zone["level"] == 0)
        .map(|zone| ["zone", "node_list"].map(|key| zone[key].as_str().expect("a text")))
        .collect();
    assert_eq!(
        found,
        [["leaf1", "n[1-2]"], ["leaf2", "n[3-4]"]],
        "{topology}"
    );
}

/// ZM-12: the agents of a step form the zones that Slurm's switches are, and every rank learns of the loss of a node of
/// the other zone.
#[test]
fn the_switches_of_slurm_are_the_zones_of_a_step() {
    let Some(cluster) = Cluster::start(&plugin(&program("musterd"))) else {
        return;
    };
    let topology = cluster.folder().join("topology.conf");
    let zones = format!("topology:{}", topology.display());
    let mut command = cluster.command("srun");
    command
        .args(["--nodes=4", "--ntasks=4", "--label", "--muster"])
        .args(LIVES_ON)
        .arg(rank_program())
        .env("MUSTER_ZONES", zones);
    let mut run = cluster.run(&mut command);
    run.await_view(0..NODES, &all_alive());
    let muster = program("muster").display().to_string();
    let line = format!("MUSTER_JOB=slurm-1.0 MUSTER_NODE=n1 exec {muster} zones -o json");
    let (status, printed) = cluster.output_of(&["sh", "-c", &line]);
    assert!(status.success(), "{printed}");
    let zones: serde_json::Value = serde_json::from_str(&printed).expect("JSON");
    let base = zones["zones"].as_array().expect("a list").iter();
    let found: Vec<(&str, u64)> = base
        .filter(|zone| zone["level"] == 0)
        .map(|zone| {
            (
                zone["zone"].as_str().expect("a text"),
                zone["alive"].as_u64().expect("a number"),
            )
        })
        .collect();
    assert_eq!(found, [("leaf1", 2), ("leaf2", 2)], "{printed}");
    kill(&cluster.all_on(4));
    for rank in [0, 1, 2] {
        run.await_line(&[&format!("{rank}: EVENT NodeFailed node=n4 ")]);
        run.await_line(&[&format!("{rank}: EVENT RankFailed node=n4 rank=3 ")]);
    }
    run.send("leave 0");
    drop(run);
    cluster.recover();
}
