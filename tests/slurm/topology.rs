//! The switches of a real Slurm as the zones of a job.

use muster_tests::cluster::Cluster;
use muster_tests::program;
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
