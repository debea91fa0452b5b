//! The example `examples/fabric/put_get.rs`: blocks are put and got back over two rails, of which one is cut meanwhile;
//! and over the real psm3, whose addresses only the provider knows.

use muster_tests::hosts::{Fault, Hosts, address, nids};
use muster_tests::{DEADLINE, program, skipped};
use rustix::process::{Pid, Signal, kill_process};
use std::io::{BufRead, BufReader, Read, Write};
use std::os::unix::process::ExitStatusExt;
use std::path::{Path, PathBuf};
use std::process::{Child, Stdio};
use std::sync::mpsc::{Receiver, channel};

const NETS: [&str; 2] = ["udp0", "udp1"];
const PORT: u16 = 7801;
const BLOCKS: &str = "512";
const STORE: usize = 1;
const CLIENT: usize = 2;

/// A program of the example, with its lines. It ends at the latest with the test.
struct Program {
    child: Child,
    lines: Receiver<String>,
}

impl Program {
    fn start(hosts: &Hosts, role: &str, (host, peer): (usize, usize), further: &[&str]) -> Program {
        let mut command = hosts.command(host, &program("examples/put_get"));
        command.arg(role);
        command.args([host, peer].map(|one| nids(one, &NETS, PORT)));
        Program::run(command.args(further))
    }

    /// With a rail of psm3, and a peer whose NID it waits for.
    fn with_psm3(hosts: &Hosts, role: &str, host: usize, further: &[&str]) -> Program {
        // psm3 looks for interfaces in sysfs, which shows those of the namespace that mounted it.
        let mut command = hosts.command(host, Path::new("unshare"));
        command.args([
            "--mount",
            "sh",
            "-c",
            "mount -t sysfs sysfs /sys && exec \"$@\"",
            "sh",
        ]);
        command.arg(program("examples/put_get"));
        command.args([role, &nids(host, &["psm0"], PORT), "-"]);
        command.env("MUSTER_LIBFABRIC", psm3("libfabric.so.1"));
        command.env("FI_PROVIDER_PATH", psm3("prov"));
        // Over IP interfaces, and so that a test need not wait long for the end.
        command.envs([("PSM3_HAL", "sockets"), ("FI_PSM3_CONN_TIMEOUT", "1")]);
        Program::run(command.args(further))
    }

    fn run(command: &mut std::process::Command) -> Program {
        command.env("PUT_GET_KEY", "the test's");
        command.stdin(Stdio::piped()).stderr(Stdio::piped());
        let mut child = command
            .stdout(Stdio::piped())
            .spawn()
            .expect("the example starts");
        let output = BufReader::new(child.stdout.take().expect("stdout is piped"));
        let (sender, lines) = channel();
        std::thread::spawn(move || {
            for line in output.lines().map_while(Result::ok) {
                println!("{line}");
                let _ = sender.send(line);
            }
        });
        Program { child, lines }
    }

    fn await_line(&self, words: &str) -> String {
        while let Ok(line) = self.lines.recv_timeout(DEADLINE) {
            if line.contains(words) {
                return line;
            }
        }
        panic!("no line with '{words}'");
    }

    /// The NIDs that it prints when its rails are open.
    fn nids(&self) -> String {
        let line = self.await_line("nids ");
        line.trim_start_matches("nids ").to_owned()
    }

    fn write_line(&mut self, line: &str) {
        let stdin = self.child.stdin.as_mut().expect("stdin is piped");
        writeln!(stdin, "{line}").expect("it reads");
    }

    /// What it has written to standard error, when it has ended.
    fn errors(&mut self) -> String {
        let mut errors = String::new();
        let stderr = self.child.stderr.as_mut().expect("stderr is piped");
        stderr.read_to_string(&mut errors).expect("text");
        errors
    }

    /// Ends it, if it has not ended.
    fn end(&mut self) {
        self.child.kill().expect("it runs, or has ended");
        self.child.wait().expect("it ends");
    }

    fn signal(&self, signal: Signal) {
        let pid = Pid::from_child(&self.child);
        kill_process(pid, signal).expect("it runs");
    }
}

/// snd-085: what was under way on a rail that is cut arrives by the other one, each block once and whole.
#[test]
fn the_example_puts_and_gets_over_two_rails_of_which_one_is_cut() {
    let Some(hosts) = Hosts::open(2, NETS.len()) else {
        return;
    };
    let mut store = Program::start(&hosts, "store", (STORE, CLIENT), &[]);
    store.await_line("ready");
    let mut client = Program::start(&hosts, "client", (CLIENT, STORE), &[BLOCKS]);
    client.await_line("Put: 64 of 512 blocks");
    // Stopped, it cannot finish before the rail is cut.
    client.signal(Signal::STOP);
    hosts.break_rail(CLIENT, 0, Fault::Down);
    client.signal(Signal::CONT);
    client.await_line("rail 0 fails: the link rail0 is down");
    client.await_line("Put: 512 of 512 blocks");
    client.await_line("Get: 64 of 512 blocks");
    // Without the store the client cannot finish before the rail works.
    store.signal(Signal::STOP);
    hosts.heal(CLIENT, 0, Fault::Down);
    client.await_line("rail 0 works again");
    store.signal(Signal::CONT);
    client.await_line("Get: 512 of 512 blocks");
    client.await_line(&format!("{}:{PORT}@udp1:", address(CLIENT, 1)));
    assert!(client.child.wait().expect("it ends").success());
    store.end();
}

/// A file of the real psm3.
fn psm3(name: &str) -> PathBuf {
    let directory = Path::new(env!("CARGO_MANIFEST_DIR")).join("../target/psm3");
    directory.join(name)
}

/// Two hosts for psm3; none if it is not here.
fn hosts_with_psm3() -> Option<Hosts> {
    if !psm3("prov/libpsm3-fi.so").exists() {
        skipped("psm3", "there is no libfabric with psm3");
        return None;
    }
    Hosts::open(2, 1)
}

/// The address of an endpoint is in its NID, and those of the other lanes are announced.
#[test]
fn the_example_puts_and_gets_over_the_real_psm3() {
    let Some(hosts) = hosts_with_psm3() else {
        return;
    };
    let mut store = Program::with_psm3(&hosts, "store", STORE, &[]);
    let mut client = Program::with_psm3(&hosts, "client", CLIENT, &["64"]);
    let (of_store, of_client) = (store.nids(), client.nids());
    let start = format!("{}:{PORT}@psm0/", address(STORE, 0));
    assert!(of_store.starts_with(&start), "{of_store}");
    store.write_line(&of_client);
    client.write_line(&of_store);
    client.await_line("Put: 64 of 64 blocks");
    client.await_line("Get: 64 of 64 blocks");
    assert!(client.child.wait().expect("it ends").success());
    store.end();
}

/// Why agents have no rails of psm nets: the provider ends the process of a host that sends to a node which is gone.
#[test]
fn psm3_ends_a_process_that_sends_to_a_lost_one() {
    let Some(hosts) = hosts_with_psm3() else {
        return;
    };
    let mut store = Program::with_psm3(&hosts, "store", STORE, &[]);
    let of_store = store.nids();
    store.end();
    let mut client = Program::with_psm3(&hosts, "client", CLIENT, &[]);
    client.write_line(&of_store);
    let ended = client.child.wait().expect("it ends");
    let errors = client.errors();
    assert_eq!(ended.signal(), Some(Signal::ABORT.as_raw()), "{errors}");
    assert!(errors.contains("psm3_ep_connect"), "{errors}");
}
