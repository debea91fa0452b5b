//! Further addresses of an interface: a rail on one of them finds its interface as a rail on the first address
//! does, and gets an event when the link goes down.
//!
//! The test runs in a network namespace of its own, which ends with the process that the test starts there.

use crate::common::Node;
use muster_fabric::{FabricEvent, HealthState, Transport};
use std::process::Command;
use std::time::{Duration, Instant};

const DEADLINE: Duration = Duration::from_secs(30);

/// Set in the process that runs in the namespace.
const INSIDE: &str = "MUSTER_TEST_INSIDE";

/// Creates two connected interfaces. The first has two addresses, one of them with a label, which libfabric
/// takes for an interface name. libfabric omits further addresses of loopback.
const WIRES: &str = "ip link set lo up && ip link add one type veth peer name two && \
                     ip addr add 10.83.0.1/24 dev one && ip addr add 10.83.0.2/24 dev one label one:1 && \
                     ip addr add 10.83.9.9/32 dev lo && \
                     ip link set one up && ip link set two up && exec \"$0\" \"$@\"";

/// Runs the test of this name again in a namespace; returns true there.
fn inside(test: &str) -> bool {
    if std::env::var_os(INSIDE).is_some() {
        return true;
    }
    let root = rustix::process::getuid().is_root();
    let mut space = Command::new("unshare");
    space.args(if root {
        &["--net"][..]
    } else {
        &["--net", "--map-root-user"]
    });
    if !space
        .arg("true")
        .status()
        .is_ok_and(|status| status.success())
    {
        crate::common::skipped(
            "namespaces",
            &format!("{test} cannot create a network namespace"),
        );
        return false;
    }
    let mut child = Command::new("unshare");
    child.args(if root {
        &["--net"][..]
    } else {
        &["--net", "--map-root-user"]
    });
    child
        .args(["sh", "-c", WIRES])
        .arg(std::env::current_exe().unwrap());
    let output = child
        .args([
            &format!("{}{test}", crate::common::prefix_of(module_path!())),
            "--exact",
        ])
        .env(INSIDE, "1")
        .output()
        .unwrap();
    let text = String::from_utf8_lossy(&output.stdout);
    let passed = output.status.success() && text.contains("1 passed");
    assert!(passed, "{text}{}", String::from_utf8_lossy(&output.stderr));
    false
}

/// hlt-005: link events, and other data that is found by the interface's name.
#[test]
fn a_rail_on_a_further_address_gets_link_events() {
    if !inside("a_rail_on_a_further_address_gets_link_events") {
        return;
    }
    let mut node = Node::open("10.83.0.1:0@udp0,10.83.0.2:0@udp1,10.83.9.9:0@udp2");
    let rails = node.fabric.rails();
    let interfaces: Vec<_> = rails.iter().map(|rail| rail.interface.as_deref()).collect();
    assert_eq!(interfaces, [Some("one"), Some("one"), Some("lo")]);
    node.drain(1, &mut Vec::new());
    let ip = Command::new("ip")
        .args(["link", "set", "one", "down"])
        .status();
    assert!(ip.unwrap().success());
    let start = Instant::now();
    let mut failing = [false; 3];
    while failing != [true, true, false] {
        node.drain(2, &mut Vec::new());
        while let Some(event) = node.fabric.poll_event() {
            if let FabricEvent::RailFailing { rail, .. } = event {
                failing[rail] = true;
            }
        }
        assert!(start.elapsed() < DEADLINE, "{failing:?}");
        node.wait(Duration::from_millis(5));
    }
    let states: Vec<_> = node.fabric.rails().iter().map(|rail| rail.state).collect();
    let expected = [
        HealthState::Failed,
        HealthState::Failed,
        HealthState::Active,
    ];
    assert_eq!(states, expected);
}
