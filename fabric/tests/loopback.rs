//! Messages over real rails: UDP on loopback addresses, two rails a node.
//!
//! Time is passed in by hand; waiting is `poll(2)` on the fabric's own descriptors with a generous
//! deadline, as a host would.

mod common;

use common::{Node, text};
use muster_fabric::{Class, DropReason, Route, Sent, Transport};

const SENT_ONE: Sent = Sent {
    copies: 1,
    dropped: None,
};

#[test]
fn a_message_goes_there_and_an_answer_comes_back() {
    let mut a = Node::open("127.41.1.1:0@udp,127.41.1.2:0@udp");
    let mut b = Node::open("127.41.2.1:0@udp,127.41.2.2:0@udp");
    let to_b = a.knows(&b);
    let to_a = b.knows(&a);
    assert_eq!(
        a.fabric.send(1, to_b, Class::Beat, Route::Next, b"ping"),
        SENT_ONE
    );
    assert_eq!(text(&b.receive(1)), ["ping"]);
    assert_eq!(
        b.fabric.send(2, to_a, Class::Beat, Route::Next, b"pong"),
        SENT_ONE
    );
    assert_eq!(text(&a.receive(1)), ["pong"]);
}

#[test]
fn next_alternates_over_the_rails_and_all_takes_each() {
    let mut a = Node::open("127.41.3.1:0@udp,127.41.3.2:0@udp");
    let mut b = Node::open("127.41.4.1:0@udp,127.41.4.2:0@udp");
    let to_b = a.knows(&b);
    for _ in 0..4 {
        assert_eq!(
            a.fabric.send(1, to_b, Class::Beat, Route::Next, b"beat"),
            SENT_ONE
        );
    }
    let mut rails: Vec<usize> = b.receive(4).iter().map(|arrival| arrival.0).collect();
    rails.sort_unstable();
    assert_eq!(rails, [0, 0, 1, 1]);
    let sent = a.fabric.send(1, to_b, Class::News, Route::All, b"news");
    assert_eq!(
        sent,
        Sent {
            copies: 2,
            dropped: None
        }
    );
    let mut rails: Vec<usize> = b.receive(2).iter().map(|arrival| arrival.0).collect();
    rails.sort_unstable();
    assert_eq!(rails, [0, 1]);
    let counters = a.fabric.rails().remove(0).counters;
    assert_eq!(
        (
            counters.sends,
            counters.send_bytes,
            counters.dropped_in_all()
        ),
        (3, 12, 0)
    );
    assert_eq!(b.fabric.rails()[0].counters.receives, 3);
    assert_eq!(b.fabric.unknown_peer_drops(), 0);
    assert_eq!(
        a.fabric.rails()[0].counters.dropped(DropReason::RailBusy),
        0
    );
}
