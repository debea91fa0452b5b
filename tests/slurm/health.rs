//! The script for Slurm's health checks, as slurmd runs it: without an environment, beside permanent members
//! (slurm-5).

use muster_tests::cluster::{Cluster, NODES, signal};
use muster_tests::steps::on_host;
use muster_tests::{program, until, workspace};
use rustix::process::Signal;
use std::fs;
use std::io::Write;
use std::os::unix::fs::PermissionsExt;

/// A member as the unit starts it, in a directory of its own.
const MEMBER: &str = r#"mkdir -p -m 700 "$LAB/run/$NODE"
export MUSTER_DIR="$LAB/run/$NODE" MUSTER_KEY_FILE="$LAB/digits"
export MUSTER_PROFILE=quiet MUSTER_RAILS=eth0:7741@udp0 MUSTER_HOSTS='n[1-4]'
"$LAB/bin/musterd" --name "$NODE" >"$LAB/run/said.$NODE" 2>&1 </dev/null &"#;

/// The administrator's settings in `/etc/muster/health`; each node of the test has a directory of its own.
const SETTINGS: &str = r#"MUSTER_DIR=LAB/run/$SLURMD_NODENAME
export SLURM_CONF=LAB/slurm.conf
exec >>"LAB/run/health.$SLURMD_NODENAME" 2>&1
"#;

/// Polls until `is_so`; Slurm has no event for it.
fn await_that(cluster: &Cluster, what: &str, is_so: impl Fn() -> bool) {
    let seen = || format!("{what}{}", cluster.logs());
    until(seen, || is_so().then_some(()));
}

/// slurm-5.
#[test]
fn slurmd_checks_the_member_of_its_node() {
    let Some(cluster) = Cluster::start("") else {
        return;
    };
    let lab = cluster.folder().display().to_string();
    let path = |name: &str| cluster.folder().join(name);
    let executable = |name: &str, text: &[u8]| {
        fs::write(path(name), text).expect("a file");
        fs::set_permissions(path(name), fs::Permissions::from_mode(0o755)).expect("a mode");
    };
    fs::create_dir(path("bin")).expect("a folder");
    for name in ["muster", "musterd"] {
        executable(
            &format!("bin/{name}"),
            &fs::read(program(name)).expect("the program is built"),
        );
    }
    fs::write(path("digits"), "ab".repeat(32) + "\n").expect("a file");
    fs::set_permissions(path("digits"), fs::Permissions::from_mode(0o600)).expect("a mode");
    // As the installation writes it, with another prefix and another /etc.
    let script = workspace().join("share/slurm/muster-health");
    let script = fs::read_to_string(script).expect("the script");
    let script = script
        .replace("/usr/local/bin/muster", &format!("{lab}/bin/muster"))
        .replace("/etc/muster", &lab);
    executable("muster-health", script.as_bytes());
    let settings = SETTINGS.replace("LAB", &lab);
    fs::write(path("health"), &settings).expect("a file");
    for node in 1..=NODES {
        on_host(&cluster, node, &format!("NODE=n{node}; {MEMBER}"));
    }
    let ask = |node: usize| {
        let place = format!("{lab}/run/n{node}");
        let words = [
            "env",
            &format!("MUSTER_DIR={place}"),
            &format!("{lab}/bin/muster"),
            "check",
        ];
        cluster.output_of(&words).1
    };
    await_that(&cluster, "all members alive", || {
        (1..=NODES).all(|node| ask(node).contains("4 of 4 members"))
    });
    let mut conf = fs::OpenOptions::new();
    let mut conf = conf.append(true).open(path("slurm.conf")).expect("a file");
    writeln!(conf, "HealthCheckProgram={lab}/muster-health").expect("written");
    writeln!(conf, "HealthCheckInterval=1").expect("written");
    assert!(cluster.output_of(&["scontrol", "reconfigure"]).0.success());
    let printed =
        |node: usize| fs::read_to_string(path(&format!("run/health.n{node}"))).unwrap_or_default();
    let drained = || {
        cluster
            .output_of(&["sinfo", "-h", "-n", "n4", "-o", "%E"])
            .1
    };
    // A healthy node causes no output, but the settings are read.
    await_that(&cluster, "checked", || {
        (1..=NODES).all(|node| path(&format!("run/health.n{node}")).exists())
    });
    assert_eq!(printed(1), "");
    for member in cluster.on_node(4, "musterd") {
        signal(&member, Signal::KILL);
    }
    for node in 1..NODES {
        await_that(&cluster, "a drain is suggested", || {
            let printed = printed(node);
            printed.contains("CRITICAL") && printed.contains("NodeName=n4 State=DRAIN")
        });
    }
    assert!(!drained().contains("muster"), "{}", drained());
    fs::write(path("health"), settings + "MUSTER_DRAIN=yes\n").expect("a file");
    await_that(&cluster, "drained", || {
        (1..NODES).any(|node| printed(node).contains("drained: n4"))
    });
    assert!(drained().contains("muster:failed"), "{}", drained());
    // If most nodes are lost, this node itself may be the cause.
    for node in [2, 3] {
        for member in cluster.on_node(node, "musterd") {
            signal(&member, Signal::KILL);
        }
    }
    await_that(&cluster, "held back", || {
        printed(1).contains("not drained: only 1 of 4")
    });
    let state = cluster
        .output_of(&["sinfo", "-h", "-n", "n2,n3", "-o", "%E"])
        .1;
    assert!(!state.contains("muster"), "{state}");
}
