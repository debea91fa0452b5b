//! The work of an idle member, counted in instructions. Times differ from run to run, instructions hardly do: so this
//! finds work that grows unseen.

use muster_tests::program;
use std::process::Command;

/// Heartbeats of each recorded member: one second of profile `standard`.
const HEARTBEATS: u64 = 50;
/// Runs of a recorded member for each of `--rounds`.
const RUNS: u64 = 10;
/// Most instructions of a heartbeat in the programs of the tests. A fifth more than there are, since other
/// compilers take some more.
const HEARTBEAT_INSTRUCTIONS_MAX: u64 = 31_000;

/// B10: what the engine of an idle member does in a heartbeat: it sends two beats and receives two.
#[test]
fn a_quiet_heartbeat_takes_few_instructions() {
    let output = Command::new("valgrind")
        .args([
            "--tool=callgrind",
            "--callgrind-out-file=/dev/null",
            "--collect-atstart=no",
        ])
        .arg("--toggle-collect=muster_sim::idle::IdleMember::replay::{{closure}}")
        .arg(program("muster-lab"))
        .args([
            "sim",
            "idle",
            "--warm",
            "--members",
            "16",
            "--measured",
            "1",
            "--rounds",
            "1",
        ])
        .output()
        .expect("valgrind is installed");
    let text = String::from_utf8_lossy(&output.stderr);
    let collected = text
        .split("Collected :")
        .nth(1)
        .and_then(|rest| rest.split_whitespace().next());
    let collected: u64 = collected.and_then(|count| count.parse().ok()).unwrap_or(0);
    let heartbeat = collected / (RUNS * HEARTBEATS);
    println!("{heartbeat} instructions in a heartbeat");
    assert!(heartbeat > 1000, "nothing was counted: {text}");
    assert!(
        heartbeat <= HEARTBEAT_INSTRUCTIONS_MAX,
        "a quiet heartbeat takes {heartbeat} instructions, at most {HEARTBEAT_INSTRUCTIONS_MAX} are wanted"
    );
}
