//! Zones under a PMIx launcher that knows nothing of Muster: ranks start the agents, and these find each other
//! through PMIx, also across zones.

use muster_tests::compile::compile;
use muster_tests::job::{Job, job};
use muster_tests::launchers::{open_mpi_5_on_nodes, venv};
use muster_tests::program;
use serde_json::Value;
use std::path::Path;
use std::process::Command;

const NODES: &str = "n[1-4]";

/// What `muster zones plan` prints for this map: each zone with its nodes, in order.
fn planned(map: &Path) -> Vec<(String, Vec<String>)> {
    let output = Command::new(program("muster"))
        .args(["zones", "plan", "--nodes", NODES, "-o", "json", "--map"])
        .arg(map)
        .output()
        .expect("muster can be started");
    let plan: Value = serde_json::from_slice(&output.stdout).expect("a plan");
    let zones = plan["zones"].as_array().expect("zones").iter();
    let text = |value: &Value| value.as_str().expect("a text").to_owned();
    let base = zones.filter(|zone| zone["level"] == 0);
    base.map(|zone| {
        let nodes = muster_hostlist::expand(&text(&zone["node_list"]), 4).expect("a list");
        (text(&zone["zone"]), nodes)
    })
    .collect()
}

/// ZM-12: a job of Open MPI's mpirun on four nodes. Each rank sees its own zone and all others as planned, with all
/// of their nodes alive.
#[test]
fn ranks_under_mpirun_see_the_planned_zones() {
    job(|folder| {
        let map = folder.join("map");
        std::fs::write(&map, "east: n[1-2]\nwest: n[3-4]\n").expect("a map");
        let planned = planned(&map);
        let names: Vec<&str> = planned.iter().map(|(zone, _)| zone.as_str()).collect();
        assert_eq!(names, ["east", "west"]);
        let shown: String = planned
            .iter()
            .map(|(zone, nodes)| format!(" {zone}={}", nodes.join(",")))
            .collect();

        let binary = compile(&venv("venv").join("mpicc"), "mpi_zones", &[], folder);
        let mut launcher = open_mpi_5_on_nodes(folder, 4, 1);
        launcher
            .args(["-x", &format!("MUSTER_NODES={NODES}")])
            .args(["-x", &format!("MUSTER_ZONES=file:{}", map.display())])
            .arg(binary);
        let mut outcome = Job::run(&mut launcher, folder);
        let text = outcome.text();
        for rank in 0..4 {
            let node = format!("n{}", rank + 1);
            let own = planned.iter().find(|(_, nodes)| nodes.contains(&node));
            let (own, _) = own.expect("a zone");
            let line = format!("ZONES {rank} own={own}{shown}");
            assert!(outcome.lines.contains(&line), "{line}:\n{text}");
        }
        assert!(outcome.expect_end().success(), "{text}");
    });
}
