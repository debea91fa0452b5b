//! Hosts that are network namespaces, connected by bridges: rails that can be removed and restored.
//!
//! A namespace in the middle (the hub) has one bridge per rail, and each host is connected to each of them.
//! Nothing here has a name outside: a namespace exists as long as a process in it. The process that holds it
//! ends with its standard input, and all others with the thread that started them. The bench connects its
//! members in the same way; here each host holds several programs and each rail can be broken in its own way.

use rustix::thread::{LinkNameSpaceType, move_into_link_name_space};
use std::fs::File;
use std::io::{BufRead, BufReader, Write};
use std::os::fd::AsFd;
use std::process::{Child, Command, Stdio};

/// A hardware address that no interface has: frames sent to it are lost.
const UNUSED_MAC: &str = "02:00:00:00:00:ff";

/// How a rail of a host is broken.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Fault {
    /// The host's own interface is down.
    Down,
    /// Nothing is sent or received, without an error.
    Black,
    /// What the host sends to the others is lost.
    SendFails,
    /// What the others send to the host is lost.
    ReceiveFails,
}

/// A hub and hosts, counted from 1, with rails, counted from 0.
pub struct Hosts {
    hub: Child,
    hosts: Vec<Child>,
    rails: usize,
}

impl Hosts {
    /// Creates them. Returns `None` if this user may not, which is printed to standard error.
    ///
    /// # Panics
    /// If the user may and something is missing.
    pub fn open(count: usize, rails: usize) -> Option<Self> {
        let hub = match hold() {
            Ok(hub) => hub,
            Err(why) => {
                crate::skipped("namespaces", &format!("no network of its own: {why}"));
                return None;
            }
        };
        let hosts = (0..count).map(|_| hold().expect("another namespace"));
        let hosts = Self {
            hub,
            hosts: hosts.collect(),
            rails,
        };
        hosts.wire();
        Some(hosts)
    }

    fn wire(&self) {
        let mut batch = String::new();
        for rail in 0..self.rails {
            batch += &format!("link add br{rail} type bridge\nlink set br{rail} up\n");
            for (index, host) in (1..).zip(&self.hosts) {
                let (port, pid) = (port(index, rail), host.id());
                batch += &format!(
                    "link add {port} type veth peer name rail{rail} netns {pid}\n\
                     link set {port} master br{rail} up\n"
                );
            }
        }
        run(&self.hub, "ip", &batch);
        for (index, host) in (1..).zip(&self.hosts) {
            let mut batch = String::from("link set lo up\n");
            for rail in 0..self.rails {
                let own = address(index, rail);
                batch += &format!("addr add {own}/24 dev rail{rail}\nlink set rail{rail} up\n");
            }
            run(host, "ip", &batch);
        }
    }

    /// Number of hosts.
    pub fn count(&self) -> usize {
        self.hosts.len()
    }

    /// A command that runs on a host and ends at the latest with the thread that spawns it.
    pub fn command(&self, host: usize, program: &std::path::Path) -> Command {
        let pid = self.hosts[host - 1].id().to_string();
        let mut command = Command::new("setpriv");
        command.args(["--pdeathsig", "KILL", "nsenter", "--net", "--target", &pid]);
        command.arg("--").arg(program);
        command
    }

    /// Runs `ip` with these lines on a host.
    pub fn configure(&self, host: usize, batch: &str) {
        run(&self.hosts[host - 1], "ip", batch);
    }

    /// Runs `ip` with these lines in the hub.
    pub fn configure_hub(&self, batch: &str) {
        run(&self.hub, "ip", batch);
    }

    /// Runs `make` in the hub's network, on a thread of its own: a socket that is opened there stays there.
    ///
    /// # Panics
    /// If the network cannot be entered.
    pub fn in_hub<T: Send>(&self, make: impl FnOnce() -> T + Send) -> T {
        let network = format!("/proc/{}/ns/net", self.hub.id());
        let network = File::open(network).expect("the hub's network");
        let inside = move || {
            let kind = Some(LinkNameSpaceType::Network);
            move_into_link_name_space(network.as_fd(), kind).expect("to enter it");
            make()
        };
        std::thread::scope(|scope| scope.spawn(inside).join().expect("it is done"))
    }

    /// Breaks a rail of a host. The rail must be intact on every host.
    pub fn break_rail(&self, host: usize, rail: usize, fault: Fault) {
        self.set(host, rail, fault, true);
    }

    /// Undoes [`Hosts::break_rail`].
    pub fn heal(&self, host: usize, rail: usize, fault: Fault) {
        self.set(host, rail, fault, false);
    }

    fn set(&self, host: usize, rail: usize, fault: Fault, break_rail: bool) {
        let others = (1..=self.count()).filter(|other| *other != host);
        match fault {
            Fault::Down => {
                let state = if break_rail { "down" } else { "up" };
                let batch = format!("link set rail{rail} {state}\n");
                run(&self.hosts[host - 1], "ip", &batch);
            }
            Fault::Black => {
                let state = if break_rail { 0 } else { 3 };
                let batch = format!("link set dev {} state {state}\n", port(host, rail));
                run(&self.hub, "bridge", &batch);
            }
            Fault::SendFails => {
                let batch: String = others
                    .map(|other| misdirect(other, rail, break_rail))
                    .collect();
                run(&self.hosts[host - 1], "ip", &batch);
            }
            Fault::ReceiveFails => others.for_each(|other| {
                run(
                    &self.hosts[other - 1],
                    "ip",
                    &misdirect(host, rail, break_rail),
                );
            }),
        }
    }
}

impl Drop for Hosts {
    fn drop(&mut self) {
        for holder in self.hosts.iter_mut().chain([&mut self.hub]) {
            let _ = holder.kill();
            let _ = holder.wait();
        }
    }
}

/// A host's address on a rail.
pub fn address(host: usize, rail: usize) -> String {
    format!("10.77.{rail}.{host}")
}

/// A host's address and port on rails that are on these nets.
pub fn nids(host: usize, nets: &[&str], port: u16) -> String {
    let nid = |(rail, net)| format!("{}:{port}@{net}", address(host, rail));
    let nids: Vec<String> = nets.iter().enumerate().map(nid).collect();
    nids.join(",")
}

fn port(host: usize, rail: usize) -> String {
    format!("p{host}r{rail}")
}

/// Directs what is sent to a host to an unused hardware address, or ends that.
fn misdirect(host: usize, rail: usize, break_rail: bool) -> String {
    let address = address(host, rail);
    match break_rail {
        true => {
            format!("neigh replace {address} lladdr {UNUSED_MAC} nud permanent dev rail{rail}\n")
        }
        false => format!("neigh del {address} dev rail{rail}\n"),
    }
}

/// A process in a network namespace of its own.
fn hold() -> Result<Child, String> {
    let mut child = Command::new("setpriv")
        .args(["--pdeathsig", "KILL", "unshare", "--net", "--", "sh", "-c"])
        .arg("echo ready; exec cat")
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .map_err(|error| format!("setpriv: {error}"))?;
    let mut line = String::new();
    let output = child.stdout.as_mut().expect("stdout is piped");
    // Its line, or its end.
    let _ = BufReader::new(output).read_line(&mut line);
    if line.trim() == "ready" {
        return Ok(child);
    }
    drop(child.stdin.take());
    let output = child.wait_with_output().map_err(|e| e.to_string())?;
    Err(String::from_utf8_lossy(&output.stderr).trim().to_owned())
}

/// Runs `ip` or `bridge` with these lines in the namespace of that process.
fn run(place: &Child, program: &str, batch: &str) {
    let pid = place.id().to_string();
    let mut child = Command::new("nsenter")
        .args(["--net", "--target", &pid, "--", program, "-batch", "-"])
        .stdin(Stdio::piped())
        .stdout(Stdio::null())
        .stderr(Stdio::piped())
        .spawn()
        .expect("nsenter can be started");
    let mut input = child.stdin.take().expect("stdin is piped");
    input.write_all(batch.as_bytes()).expect("it reads");
    drop(input);
    let output = child.wait_with_output().expect("its output can be read");
    let said = String::from_utf8_lossy(&output.stderr).into_owned();
    assert!(output.status.success(), "{program}: {said}, in {batch}");
}
