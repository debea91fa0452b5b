//! The second provider for TCP: libfabric's ofi_rxm over its tcp, if the preferred one is missing.
//!
//! The test uses libfabric 1.17 without its provider `net`. Later versions have the functions of ofi_rxm in
//! `tcp` itself, and cannot offer a `tcp` without them.

use crate::common::{Node, config, in_child};
use muster_fabric::{BULK_MESSAGE_MAX, Class, Fabric, FabricEvent, Route, Transport};
use std::time::{Duration, Instant};

const DEADLINE: Duration = Duration::from_secs(60);

/// Excludes `net`, and gives ofi_rxm few buffers, because by default it uses 70 MB per endpoint.
const WITHOUT_NET: [(&str, &str); 5] = [
    ("FI_PROVIDER", "udp,tcp,ofi_rxm"),
    ("FI_OFI_RXM_TX_SIZE", "128"),
    ("FI_OFI_RXM_RX_SIZE", "128"),
    ("FI_OFI_RXM_MSG_TX_SIZE", "32"),
    ("FI_OFI_RXM_MSG_RX_SIZE", "32"),
];

fn open(rails: &str) -> Node {
    let mut fabric = Fabric::open(&config(rails)).unwrap();
    fabric.open_bulk().unwrap();
    Node::around(fabric)
}

/// Datagrams of both classes and the longest bulk message pass over connections of ofi_rxm.
#[test]
fn rxm_carries_tcp_if_no_other_provider_does() {
    if !in_child(
        module_path!(),
        "rxm_carries_tcp_if_no_other_provider_does",
        &WITHOUT_NET,
    ) {
        return;
    }
    let (mut a, mut b) = (open("127.41.90.1:0@tcp0"), open("127.41.91.1:0@tcp0"));
    let expected = match crate::common::library().version() {
        (1, ..18) => "tcp;ofi_rxm",
        _ => "tcp",
    };
    assert_eq!(a.fabric.rails()[0].provider, expected);
    let to_b = a.add_peer(&b);
    b.add_peer(&a);
    let start = Instant::now();
    let now_us = || start.elapsed().as_micros() as u64 + 1;
    let message: Vec<u8> = (0..BULK_MESSAGE_MAX).map(|at| (at % 251) as u8).collect();
    a.fabric.send_bulk(now_us(), to_b, &message).unwrap();
    let done = FabricEvent::BulkDone {
        peer: to_b,
        message: 1,
    };
    let (mut received, mut is_done) = (Vec::new(), false);
    let has = |received: &[(usize, Vec<u8>)], text: &[u8]| received.iter().any(|one| one.1 == text);
    while !is_done || !has(&received, b"news") || !has(&received, b"beat") {
        // A message that is sent while a connection is being made is refused as busy, so it is sent again.
        for (class, text) in [(Class::News, b"news"), (Class::Beat, b"beat")] {
            if !has(&received, text) {
                a.fabric.send(now_us(), to_b, class, Route::Next, text);
            }
        }
        a.drain(now_us(), &mut Vec::new());
        is_done |= std::iter::from_fn(|| a.fabric.poll_event()).any(|event| event == done);
        b.drain(now_us(), &mut received);
        assert!(
            start.elapsed() < DEADLINE,
            "bulk done: {is_done}, {} messages arrived",
            received.len()
        );
    }
    let long = received.iter().filter(|one| one.1.len() == message.len());
    assert!(
        long.map(|one| &one.1).eq([&message]),
        "the long message arrived whole and once"
    );
}
