//! Prints the time of a send and of an idle poll; it asserts nothing: `cargo test --release -p muster-fabric
//! --test pace -- --ignored --nocapture`.

mod common;

use common::Node;
use muster_fabric::{Class, Route, Transport};
use std::time::Instant;

const COUNT: u32 = 200_000;
const ROUNDS: usize = 7;

/// The fastest of some rounds, in nanoseconds per call.
fn pace(mut call: impl FnMut()) -> f64 {
    let round = |call: &mut dyn FnMut()| {
        let start = Instant::now();
        (0..COUNT).for_each(|_| call());
        start.elapsed().as_nanos() as f64 / f64::from(COUNT)
    };
    (0..ROUNDS)
        .map(|_| round(&mut call))
        .fold(f64::MAX, f64::min)
}

#[test]
#[ignore = "only prints times: cargo test --release -p muster-fabric --test pace -- --ignored --nocapture"]
fn times_of_sends_and_idle_polls() {
    let one = ("127.45.1.1:0@udp", "127.45.2.1:0@udp");
    let two = (
        "127.45.3.1:0@udp,127.45.3.2:0@udp",
        "127.45.4.1:0@udp,127.45.4.2:0@udp",
    );
    for (rails, (of_a, of_b)) in [(1, one), (2, two)] {
        let (mut a, b) = (Node::open(of_a), Node::open(of_b));
        let to_b = a.add_peer(&b);
        let bytes = [7; 128];
        let mut now_us = 0;
        let send = pace(|| {
            now_us += 1;
            a.fabric
                .send(now_us, to_b, Class::Beat, Route::Next, &bytes);
        });
        let poll = pace(|| _ = a.fabric.poll(now_us, &mut |_| {}));
        println!("{rails} rails: send {send:.0} ns, idle poll {poll:.0} ns");
    }
}
