//! The wires between members that live in network namespaces, and the shears.
//!
//! A namespace in the middle (the hub) has one bridge a rail; each member is plugged into each of
//! them by a pair of virtual interfaces. To cut a member off, its ports are told to forward
//! nothing: to everybody, itself included, that looks like silence and like nothing else.
//!
//! Nothing here has a name outside: the hub lives as long as its process, which ends with its
//! standard input; the wires go with the namespaces at their ends. Neighbours' hardware addresses
//! are written down beforehand, as the kernel's table of found ones is shared by all namespaces
//! and too short.

use super::launch;
use super::member::{Member, Terms, network_file};
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

/// The hub.
pub(super) struct Wiring {
    hub: Child,
    /// What the hub's `bridge -batch` reads; closed, it ends.
    orders: Option<ChildStdin>,
    rails: u32,
}

impl Wiring {
    /// Makes the hub. The error says what is missing, in words for the one who reads the table.
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
            // Its word, or the reason, or its end.
            let _ = BufReader::new(output).read_line(&mut line);
        }
        let orders = hub.stdin.take();
        if line.trim() == "ready" {
            return Ok(Self { hub, orders, rails });
        }
        drop(orders);
        let said = hub.wait_with_output().map(|output| output.stderr);
        let said = String::from_utf8_lossy(&said.unwrap_or_default()).into_owned();
        Err(format!("{} {}", line.trim(), said.trim()).trim().to_owned())
    }

    /// Plugs members in that wait for their networks, and lets them go on.
    pub(super) fn plug(&self, members: &mut [Member], terms: &Terms) -> Result<(), CliError> {
        let waits = |member: &Member| member.told(launch::WAITS, "network", 0).is_some();
        if !wait_until(WAIT_DEADLINE, || members.iter().all(waits)) {
            return Err(CliError::timed_out(
                "bench",
                "a member's namespace did not come",
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
            let file = network_file(terms, index);
            std::fs::write(&file, self.inside(terms, index))
                .map_err(|e| CliError::new(format!("bench: {}", file.display()), e))?;
        }
        let output = self
            .in_hub(&batch)
            .map_err(|e| CliError::new("bench: nsenter", e))?;
        if !output.status.success() {
            let why = String::from_utf8_lossy(&output.stderr).into_owned();
            return Err(CliError::new("bench: cannot wire the members", why.trim()));
        }
        members.iter_mut().for_each(Member::go);
        Ok(())
    }

    /// From now on nothing comes to this member and nothing from it.
    pub(super) fn cut(&mut self, index: u32) {
        self.order(index, DISABLED);
    }

    /// Undoes [`Wiring::cut`].
    pub(super) fn heal(&mut self, index: u32) {
        self.order(index, FORWARDING);
    }

    fn order(&mut self, index: u32, state: u8) {
        let mut text = String::new();
        for rail in 0..self.rails {
            let _ = writeln!(text, "link set dev {} state {state}", port(index, rail));
        }
        if let Some(orders) = &mut self.orders {
            // A hub that is gone is found out by a cut that nobody notices.
            let _ = orders.write_all(text.as_bytes());
        }
    }

    /// What a member's side of the wires is told.
    fn inside(&self, terms: &Terms, index: u32) -> String {
        let mut batch = String::from("link set lo up\n");
        for rail in 0..self.rails {
            let own = terms.address(index, rail);
            let _ = writeln!(
                batch,
                "addr add {own}/24 dev rail{rail}\nlink set rail{rail} up"
            );
            for other in (1..=terms.members).filter(|other| *other != index) {
                let (address, hardware) =
                    (terms.address(other, rail), hardware_address(other, rail));
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
        drop(self.orders.take());
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
