//! A fabric works in a process that was forked after libfabric was loaded.
//!
//! The supervisor loads libfabric once and forks workers. If each worker had to initialise the providers again,
//! or if they did not survive the fork, a worker's restart would cause a false failure report.
//!
//! The test is a program of its own: no other thread may hold a lock of libfabric at the fork.

mod common;

use common::{Node, text};
use muster_fabric::{Class, Fabric, FabricConfig, Libfabric, Route, Sent, Transport};

#[test]
fn a_forked_child_opens_rails_and_receives_its_own_message() {
    let library = common::library();
    // SAFETY: the child runs only `child`, which uses its own memory and objects that it opens itself. It ends
    // without running the parent's destructors.
    let pid = unsafe { libc::fork() };
    if pid == 0 {
        let ended = std::panic::catch_unwind(|| child(library));
        // SAFETY: ends the process at once.
        unsafe { libc::_exit(i32::from(ended.is_err())) };
    }
    let mut status = -1;
    // SAFETY: the process is our own child, and there is room for its status.
    let waited = unsafe { libc::waitpid(pid, &raw mut status, 0) };
    assert_eq!((waited, status), (pid, 0), "the child's wait status");
}

/// Opens a fabric and sends a message to itself. Panics at the step that fails.
fn child(library: Libfabric) {
    let rail = "127.41.9.1:0@udp".parse().expect("a NID");
    let config = FabricConfig::new(library, vec![rail]);
    let mut node = Node::around(Fabric::open(&config).expect("the rail opens"));
    let nids = node.nids();
    let own = node.fabric.peer(&nids).expect("its own NIDs are a peer");
    let sent = node
        .fabric
        .send(0, own, Class::News, Route::Next, b"to myself");
    let one = Sent {
        copies: 1,
        ..Sent::default()
    };
    assert_eq!(sent, one);
    assert_eq!(text(&node.receive(1)), ["to myself"]);
}
