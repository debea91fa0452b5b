//! Command lines of launchers: `muster run`, Debian's mpirun, and that of Open MPI 5, also with emulated nodes.

use crate::make_program;
use crate::program;
use crate::workspace;
use rustix::process::Pid;
use std::path::{Path, PathBuf};
use std::process::Command;

/// `muster run`, with the programs of this workspace.
pub fn muster_run() -> Command {
    let mut command = Command::new(program("muster"));
    command
        .arg("run")
        .env("MUSTER_AGENT", program("musterd"))
        // These tests do not test how soon a failure is detected: many nodes share few busy cores, and a
        // waiting node is not lost.
        .env("MUSTER_PROFILE", "quiet")
        .env_remove("MUSTER_DIR");
    command
}

/// The programs of a Python environment under `target`.
pub fn venv(name: &str) -> PathBuf {
    workspace().join("target").join(name).join("bin")
}

/// Debian's `mpirun`.
pub fn open_mpi_4() -> Command {
    let mut launcher = Command::new("mpirun.openmpi");
    launcher
        .args([
            "--oversubscribe",
            "--mca",
            "btl",
            "self,vader",
            "--mca",
            "pml",
            "ob1",
        ])
        .env("OMPI_ALLOW_RUN_AS_ROOT", "1")
        .env("OMPI_ALLOW_RUN_AS_ROOT_CONFIRM", "1")
        .env("OMPI_MCA_mpi_yield_when_idle", "1")
        .env("MUSTER_RAILS", "127.0.0.1:0@udp0");
    launcher
}

/// The `mpirun` of the Open MPI 5 under `target/venv`.
pub fn open_mpi_5() -> Command {
    let mut launcher = Command::new(venv("venv").join("mpirun"));
    launcher
        .args(["--map-by", ":OVERSUBSCRIBE", "--allow-run-as-root"])
        .env("OMPI_MCA_coll", "^han")
        .env("OMPI_MCA_mpi_yield_when_idle", "1")
        .env("MUSTER_RAILS", "127.0.0.1:0@udp0");
    launcher
}

/// A replacement for ssh: its own host name, rails and PMIx node.
const NODE_SHELL: &str = r#"#!/bin/sh
while [ "${1#-}" != "$1" ]; do shift; done
node=$1; shift
export MUSTER_NODE=$node MUSTER_RAILS=127.88.${node#n}.1:0@udp0
if [ "${TWO_RAILS-}" ]; then MUSTER_RAILS=$MUSTER_RAILS,10.88.${node#n}.1:0@udp1; fi
if [ "$(id -u)" = 0 ]; then flags=--uts; else flags="--user --map-current-user --keep-caps --uts"; fi
exec unshare $flags sh -c 'hostname "$0" && eval "$*"' "$node" "$@"
"#;

/// The `mpirun` of Open MPI 5 with two emulated nodes, `n1` and `n2`, of two ranks each.
///
/// # Panics
/// If the folder cannot be written to.
pub fn open_mpi_5_on_two_nodes(folder: &Path) -> Command {
    open_mpi_5_on_nodes(folder, 2, 2)
}

/// The same with this many nodes, `n1` and so on, and this many ranks on each.
///
/// # Panics
/// As there.
pub fn open_mpi_5_on_nodes(folder: &Path, nodes: usize, per_node: usize) -> Command {
    let shell = folder.join("node-shell");
    make_program(&shell, NODE_SHELL);
    let hosts = (1..=nodes).map(|node| format!("n{node}:{per_node}"));
    let hosts: Vec<String> = hosts.collect();
    let mut launcher = Command::new(venv("venv").join("mpirun"));
    launcher
        .args(["--prtemca", "plm_ssh_agent"])
        .arg(&shell)
        .args(["--host", &hosts.join(","), "--bind-to", "none"])
        .arg("--allow-run-as-root")
        .env("OMPI_MCA_coll", "^han")
        .env("OMPI_MCA_mpi_yield_when_idle", "1")
        .env("PRTE_ALLOW_RUN_AS_ROOT", "1")
        .env("PRTE_ALLOW_RUN_AS_ROOT_CONFIRM", "1");
    launcher
}

/// The commands of an own net: an interface for the launcher, and an address for the second rail of each
/// node.
const OWN_NET: &str = "ip link set lo up && ip link add out type veth peer name in \
    && ip addr add 10.99.0.1/24 dev out && ip link set out up && ip link set in up \
    && ip addr add 10.88.1.1/32 dev lo && ip addr add 10.88.2.1/32 dev lo && exec \"$0\" \"$@\"";

/// As [`open_mpi_5_on_two_nodes`], each node with two rails, in a net of its own: see [`second_rail`].
/// Requires root.
///
/// # Panics
/// As there.
pub fn open_mpi_5_on_two_rails(folder: &Path) -> Command {
    let inner = open_mpi_5_on_two_nodes(folder);
    let mut launcher = Command::new("unshare");
    launcher
        .args(["--net", "sh", "-c", OWN_NET])
        .arg(inner.get_program())
        .args(inner.get_args())
        .env("TWO_RAILS", "1");
    for (name, value) in inner.get_envs() {
        if let Some(value) = value {
            launcher.env(name, value);
        }
    }
    launcher
}

/// Removes the address of the second rail of node `n2` from the net of this process ("del"), or restores it
/// ("add").
///
/// # Panics
/// If that fails.
pub fn second_rail(process: Pid, what: &str) {
    let status = Command::new("nsenter")
        .args(["--target", &process.as_raw_nonzero().to_string(), "--net"])
        .args(["ip", "addr", what, "10.88.2.1/32", "dev", "lo"])
        .status();
    assert!(
        status.is_ok_and(|status| status.success()),
        "ip addr {what}"
    );
}
