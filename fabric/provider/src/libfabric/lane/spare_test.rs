//! AG-12: for each received message, another buffer is posted before the caller gets the message.

use super::*;
use crate::libfabric::table;
use std::time::Instant;

const DEADLINE: std::time::Duration = std::time::Duration::from_secs(20);

/// AG-12: while the caller holds a message, the only configured buffer is posted and receives the next message.
#[test]
fn a_buffer_is_posted_while_the_caller_holds_a_message() {
    let library = crate::load().expect("libfabric is installed where tests run");
    let row = table::datagram(NetKind::Udp)[0];
    let limits = Limits {
        receives: 1,
        sends: 4,
        inject: true,
        wakes: true,
        message_max: 512,
        class: None,
        dscp: 0,
    };
    let source = "127.41.98.1:0".parse().unwrap();
    let mut lane = Lane::open(&library, row, source, limits).unwrap();
    let own = lane.local_address().unwrap();
    let to = lane.insert(own).unwrap();
    let start = Instant::now();
    let mut held = Vec::new();
    for round in 0..SPARE {
        let text = format!("message {round}");
        lane.send(to, (), text.as_bytes()).unwrap();
        let (slot, length) = loop {
            lane.repost_late();
            if let Some(Done::Received { slot, length }) = lane.next_done() {
                break (slot, length);
            }
            assert!(start.elapsed() < DEADLINE, "{text} did not arrive");
        };
        held.push((slot, length, text));
        for (slot, length, text) in &held {
            assert_eq!(
                lane.message(*slot, *length),
                text.as_bytes(),
                "the buffer was overwritten while it was held"
            );
        }
    }
    // Now all slots are held except the posted one. They are returned in any order, and are used again.
    for (slot, _, _) in held.drain(..).rev() {
        lane.repost(slot);
    }
    for _ in 0..3 * SPARE {
        lane.send(to, (), b"more").unwrap();
        loop {
            if let Some(Done::Received { slot, length }) = lane.next_done() {
                assert_eq!(lane.message(slot, length), b"more");
                lane.repost(slot);
                break;
            }
            assert!(start.elapsed() < DEADLINE, "no further message arrived");
        }
    }
}
