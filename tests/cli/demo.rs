//! End to end: the demo with a real MPI job under `muster run`, as `make demo` runs it.

use muster_tests::{program, workspace};
use serde_json::Value;
use std::process::Command;

/// A hung rank, a killed rank and a silent node are reported to every survivor, no other failure is reported,
/// and the survivors finish. `make demo` does the same in release mode.
#[test]
fn a_real_mpi_job_survives_a_hung_and_a_killed_rank_and_a_silent_node() {
    // Its MPI program lies beside it.
    program("ulfm_survive");
    program("musterd");
    let directory = tempfile::tempdir().unwrap();
    let out = directory.path().join("demo.json");
    let output = Command::new(program("muster"))
        .args([
            "demo", "--nodes", "4", "--ranks", "8", "--rails", "2", "--out",
        ])
        .arg(&out)
        .current_dir(workspace())
        .output()
        .unwrap();
    let text = String::from_utf8_lossy(&output.stdout);
    println!("{text}\n{}", String::from_utf8_lossy(&output.stderr));
    assert!(output.status.success(), "muster demo failed");

    let result: Value = serde_json::from_slice(&std::fs::read(&out).unwrap()).unwrap();
    let faults = result["faults"].as_array().unwrap();
    let kinds: Vec<_> = faults
        .iter()
        .map(|fault| fault["kind"].as_str().unwrap())
        .collect();
    assert_eq!(kinds, ["hung", "kill", "silent"]);
    for fault in faults {
        assert_eq!(fault["missing"], 0);
        assert!(!fault["told"].as_array().unwrap().is_empty());
    }
    // The hung rank was back in all views before the next fault.
    let hung = &faults[0];
    assert_eq!(hung["told"].as_array().unwrap().len(), 7);
    assert_eq!(hung["back"].as_array().unwrap().len(), 7);
    assert!(
        hung["told"]
            .as_array()
            .unwrap()
            .iter()
            .all(|notice| notice["cause"] == "stopped")
    );
    assert_eq!(result["false_failures"], 0);
    assert_eq!(result["survivors_finished"], true);
    assert_eq!(result["shrunk_with_mpi"], true);
    // After the silence MPI continues with the remaining ranks, and the output contains a line for that.
    let survivors = faults[2]["told"].as_array().unwrap().len();
    let shrunk = format!("{survivors} ranks have shrunk MPI_COMM_WORLD to ");
    let is_clean = result["crashed"].as_array().unwrap().is_empty();
    assert!(!is_clean || text.contains(&shrunk), "no line: {shrunk}");
}
