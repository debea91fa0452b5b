//! The example `examples/fabric/put_get.rs`: blocks are put and got back over two rails, of which one is cut meanwhile.

use muster_tests::hosts::{Fault, Hosts, address, nids};
use muster_tests::{DEADLINE, program};
use rustix::process::{Pid, Signal, kill_process};
use std::io::{BufRead, BufReader};
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
        command.args(further).env("PUT_GET_KEY", "the test's");
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

    fn await_line(&self, words: &str) {
        while let Ok(line) = self.lines.recv_timeout(DEADLINE) {
            if line.contains(words) {
                return;
            }
        }
        panic!("no line with '{words}'");
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
    client.signal(Signal::STOP);
    hosts.heal(CLIENT, 0, Fault::Down);
    client.signal(Signal::CONT);
    client.await_line("rail 0 works again");
    client.await_line("Get: 512 of 512 blocks");
    client.await_line(&format!("{}:{PORT}@udp1:", address(CLIENT, 1)));
    assert!(client.child.wait().expect("it ends").success());
    store.child.kill().expect("the store runs");
    store.child.wait().expect("it ends");
}
