//! AG-12: a buffer is posted for each message before it is handed over.

use super::*;
use crate::provider::table;
use std::time::Instant;

const DEADLINE: std::time::Duration = std::time::Duration::from_secs(20);

/// AG-12: while somebody looks at a message the only buffer that was asked for is posted, and takes the next one.
#[test]
fn the_next_message_has_a_buffer_while_one_is_looked_at() {
    let library = crate::provider::load().expect("libfabric is installed where tests run");
    let row = table::datagram(crate::NetKind::Udp)[0];
    let limits = Limits {
        receives: 1,
        sends: 4,
        inject: true,
        wakes: true,
        message_max: 512,
        class: None,
    };
    let source = "127.41.98.1:0".parse().unwrap();
    let mut lane = Lane::open(&library, row, source, limits).unwrap();
    let own = lane.local_address().unwrap();
    let to = lane.insert(own).unwrap().expect("it is known at once");
    let start = Instant::now();
    let mut held = Vec::new();
    for round in 0..SPARE {
        let text = format!("message {round}");
        lane.send(to, SendTag::default(), text.as_bytes()).unwrap();
        let (slot, length) = loop {
            lane.repost_late();
            if let Some(Done::Received { slot, length }) = lane.next() {
                break (slot, length);
            }
            assert!(start.elapsed() < DEADLINE, "{text} never came");
        };
        held.push((slot, length, text));
        for (slot, length, text) in &held {
            assert_eq!(
                lane.message(*slot, *length),
                text.as_bytes(),
                "it was overwritten"
            );
        }
    }
    // Now all slots are held but the one that is posted; they come back in any order, and go on being used.
    for (slot, _, _) in held.drain(..).rev() {
        lane.repost(slot);
    }
    for _ in 0..3 * SPARE {
        lane.send(to, SendTag::default(), b"more").unwrap();
        loop {
            if let Some(Done::Received { slot, length }) = lane.next() {
                assert_eq!(lane.message(slot, length), b"more");
                lane.repost(slot);
                break;
            }
            assert!(start.elapsed() < DEADLINE, "no more came");
        }
    }
}
