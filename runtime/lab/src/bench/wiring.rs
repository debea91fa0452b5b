//! `Wiring` connects members that are in network namespaces, and can cut them off.
//!
//! A namespace in the middle (the hub) has one bridge for each rail. Each member is connected to each bridge by a pair
//! of virtual interfaces. To cut a member off, its ports are set to forward nothing: for all members, itself included,
//! that looks like silence and like no other fault.
//!
//! Nothing here has a name outside: the hub exists as long as its process, which ends with its standard input. The
//! interfaces end with the namespaces. Hardware addresses of neighbours are configured statically, since the kernel's
//! table of learnt neighbours is shared by all namespaces and too small.

use super::launch;
use super::member::{GroupOptions, Member, network_file};
use muster_terminal::CliError;
use muster_terminal::process::wait_until;
use std::fmt::Write as _;
use std::io::{BufRead, BufReader, Write};
use std::process::{Child, ChildStdin, Command, Output, Stdio};
use std::time::Duration;

const WAIT_DEADLINE: Duration = Duration::from_secs(30);

/// States of a bridge's port.
const DISABLED: u8 = 0;
const FORWARDING: u8 = 3;

/// The hub and the connections of the members.
pub(super) struct Wiring {
    hub: Child,
    /// Standard input of the hub's `bridge -batch`; closing it ends the hub.
    bridge_input: Option<ChildStdin>,
    rails: u32,
}

impl Wiring {
    /// Creates the hub. The error text names what is missing, for the reader of the table.
    pub(super) fn open(rails: u32) -> Result<Self, String> {
        let mut script = String::from("exec 2>&1; ");
        for rail in 0..rails {
            let _ = write!(
                script,
                "ip link add br{rail} type bridge && ip link set br{rail} up && "
            );
        }
        script.push_str("echo ready && exec bridge -force -batch - >/dev/null");
        let mut hub = launch::command(true, false)
            .args(["--", "sh", "-c", &script])
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .stderr(Stdio::piped())
            .spawn()
            .map_err(|error| format!("unshare: {error}"))?;
        let mut line = String::new();
        if let Some(output) = hub.stdout.take() {
            // The line is `ready`, an error text, or empty at the end of the output.
            let _ = BufReader::new(output).read_line(&mut line);
        }
        let bridge_input = hub.stdin.take();
        if line.trim() == "ready" {
            return Ok(Self {
                hub,
                bridge_input,
                rails,
            });
        }
        drop(bridge_input);
        let stderr = hub.wait_with_output().map(|output| output.stderr);
        let stderr = String::from_utf8_lossy(&stderr.unwrap_or_default()).into_owned();
        Err(format!("{} {}", line.trim(), stderr.trim())
            .trim()
            .to_owned())
    }

    /// Connects members that wait for their networks, and releases them.
    pub(super) fn connect(
        &self,
        members: &mut [Member],
        options: &GroupOptions,
    ) -> Result<(), CliError> {
        let is_waiting = |member: &Member| member.first_ns(launch::WAITS, "network", 0).is_some();
        if !wait_until(WAIT_DEADLINE, || members.iter().all(is_waiting)) {
            return Err(CliError::timed_out(
                "bench",
                "the namespace of a member was not created",
            ));
        }
        let mut batch = String::new();
        for member in &*members {
            let (index, pid) = (member.index, member.pid());
            for rail in 0..self.rails {
                let port = port(index, rail);
                let address = hardware_address(index, rail);
                let _ = writeln!(
                    batch,
                    "link add {port} type veth peer name rail{rail} address {address} netns {pid}\n\
                     link set {port} master br{rail} up"
                );
            }
            let file = network_file(options, index);
            std::fs::write(&file, self.inside(options, index))
                .map_err(|e| CliError::new(format!("bench: {}", file.display()), e))?;
        }
        let output = self
            .in_hub(&batch)
            .map_err(|e| CliError::new("bench: nsenter", e))?;
        if !output.status.success() {
            let why = String::from_utf8_lossy(&output.stderr).into_owned();
            return Err(CliError::new("bench: cannot wire the members", why.trim()));
        }
        members.iter_mut().for_each(Member::release);
        Ok(())
    }

    /// Blocks all traffic to and from this member.
    pub(super) fn cut(&mut self, index: u32) {
        self.set_ports(index, DISABLED);
    }

    /// Reverts [`Wiring::cut`].
    pub(super) fn heal(&mut self, index: u32) {
        self.set_ports(index, FORWARDING);
    }

    fn set_ports(&mut self, index: u32, state: u8) {
        let mut text = String::new();
        for rail in 0..self.rails {
            let _ = writeln!(text, "link set dev {} state {state}", port(index, rail));
        }
        if let Some(bridge_input) = &mut self.bridge_input {
            // A hub that has ended is noticed, since no member reports the cut.
            let _ = bridge_input.write_all(text.as_bytes());
        }
    }

    /// The commands for a member's side of the connections.
    fn inside(&self, options: &GroupOptions, index: u32) -> String {
        let mut batch = String::from("link set lo up\n");
        for rail in 0..self.rails {
            let own = options.address(index, rail);
            let _ = writeln!(
                batch,
                "addr add {own}/22 dev rail{rail}\nlink set rail{rail} up"
            );
            for other in (1..=options.members).filter(|other| *other != index) {
                let (address, hardware) =
                    (options.address(other, rail), hardware_address(other, rail));
                let _ = writeln!(
                    batch,
                    "neigh add {address} lladdr {hardware} dev rail{rail} nud permanent"
                );
            }
        }
        batch
    }

    fn in_hub(&self, batch: &str) -> std::io::Result<Output> {
        let hub = self.hub.id().to_string();
        let mut child = Command::new("nsenter")
            .args(["--target", &hub, "--net", "ip", "-batch", "-"])
            .stdin(Stdio::piped())
            .stdout(Stdio::null())
            .stderr(Stdio::piped())
            .spawn()?;
        if let Some(mut input) = child.stdin.take() {
            input.write_all(batch.as_bytes())?;
        }
        child.wait_with_output()
    }
}

impl Drop for Wiring {
    fn drop(&mut self) {
        drop(self.bridge_input.take());
        let _ = self.hub.kill();
        let _ = self.hub.wait();
    }
}

fn port(index: u32, rail: u32) -> String {
    format!("p{index}r{rail}")
}

fn hardware_address(index: u32, rail: u32) -> String {
    format!(
        "02:4d:75:{rail:02x}:{:02x}:{:02x}",
        index >> 8,
        index & 0xff
    )
}
