//! Tests of verbs, psm and cxi with a provider for tests that behaves like theirs.
//!
//! The developers' machines have no such hardware, so `provider/device.c` replaces psm3, cxi, or verbs with ofi_rxm.
//! It is compiled with the installed headers and loaded through FI_PROVIDER_PATH, in a process of its own. The
//! errors of the real providers without a device are tested too.

use crate::common::{Node, config, in_child, text};
use muster_fabric::{
    BULK_MESSAGE_MAX, Class, ENVELOPE_BYTES, Fabric, FabricEvent, HealthState, NidList,
    PORT_DEFAULT, PeerHandle, Route, Transport,
};
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::{Duration, Instant};

const DEADLINE: Duration = Duration::from_secs(20);

/// The directory of the files that make a device fail.
const DEVICES: &str = "MUSTER_TEST_DEVICES";

/// The provider that the test provider replaces.
const ROLE: &str = "MUSTER_TEST_PROVIDER";

/// The providers that it can replace, and the names of their nets.
const ROLES: [(&str, &str); 3] = [("verbs", "o2ib"), ("psm3", "psm"), ("cxi", "cxi")];

/// Of these, the one with IP addresses. The faults of its devices are told apart by them.
const VERBS: (&str, &str) = ROLES[0];

/// How the provider answers a requested traffic class.
const CLASS: &str = "MUSTER_TEST_CLASS";

/// Runs the test of this name again in child processes, with the provider in each role; returns true in them.
fn with_devices(test: &str) -> bool {
    ROLES.iter().any(|role| with_device(test, *role, &[]))
}

/// The same in the roles that have addresses of their own kind.
fn with_names(test: &str) -> bool {
    ROLES[1..].iter().any(|role| with_device(test, *role, &[]))
}

/// The same in one role, with further variables.
fn with_device(test: &str, (role, _): (&str, &str), more: &[(&str, &str)]) -> bool {
    let suffixes = more.iter().map(|(_, value)| format!("-{value}"));
    let name = format!("{test}-{role}{}", suffixes.collect::<String>());
    let directory = Path::new(env!("CARGO_TARGET_TMPDIR")).join(name);
    if std::env::var_os(DEVICES).is_none() {
        let _ = std::fs::remove_dir_all(&directory);
        std::fs::create_dir_all(&directory).unwrap();
        compile(&directory.join("libdevice-fi.so"), "-DRDM");
        if role == "verbs" {
            compile(&directory.join("libdatagrams-fi.so"), "-DUD");
        }
    }
    let path = directory.to_str().unwrap();
    let mut variables = vec![("FI_PROVIDER_PATH", path), (DEVICES, path), (ROLE, role)];
    variables.extend(more);
    in_child(module_path!(), test, &variables)
}

fn compile(library: &Path, how: &str) {
    let source = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/provider/device.c");
    let script = "exec ${CC:-cc} -std=gnu11 -Wall -Wextra -Werror -fPIC -shared \"$2\" -o \"$1\" \"$0\" \
                  $(pkg-config --cflags --libs libfabric)";
    let mut compiler = Command::new("sh");
    let status = compiler
        .args(["-c", script])
        .arg(source)
        .arg(library)
        .arg(how)
        .status();
    assert!(status.unwrap().success(), "the provider does not compile");
}

/// Rails on the nets of the replaced provider, for which `n` stands.
fn rails(text: &str) -> String {
    let role = std::env::var(ROLE).unwrap();
    let (_, net) = ROLES.iter().find(|(one, _)| *one == role).unwrap();
    text.replace("@n", &format!("@{net}"))
}

/// libfabric's name of the replaced provider.
fn provider() -> &'static str {
    match std::env::var(ROLE).unwrap().as_str() {
        "verbs" => "verbs;ofi_rxm",
        "cxi" => "cxi",
        _ => "psm3",
    }
}

fn open(text: &str) -> Node {
    Node::open(&rails(text))
}

/// The traffic classes of the first endpoints at an address: those of the datagram lanes and of the bulk lane.
fn classes(address: &str) -> [Option<String>; 3] {
    let directory = std::env::var_os(DEVICES).unwrap();
    let (address, first) = match std::env::var(ROLE).unwrap().as_str() {
        "verbs" => (address, PORT_DEFAULT),
        _ => ("127.0.0.1", 0),
    };
    [0, 1, 2].map(|offset| {
        let name = format!("{address}:{}.class", first + offset);
        std::fs::read_to_string(Path::new(&directory).join(name)).ok()
    })
}

/// The file whose existence takes a device down.
fn down(address: &str) -> PathBuf {
    Path::new(&std::env::var_os(DEVICES).unwrap()).join(address)
}

fn events(node: &mut Node, now_us: u64) -> Vec<FabricEvent> {
    node.drain(now_us, &mut Vec::new());
    std::iter::from_fn(|| node.fabric.poll_event()).collect()
}

/// Polls both nodes until messages of the first have reached the second on all its rails.
fn meet(a: &mut Node, b: &mut Node, to_b: PeerHandle) {
    a.fabric.zero_stats();
    b.fabric.zero_stats();
    let start = Instant::now();
    while b
        .fabric
        .rails()
        .iter()
        .any(|rail| rail.counters.receives == 0)
    {
        a.fabric.send(0, to_b, Class::News, Route::All, b"hello");
        a.drain(0, &mut Vec::new());
        b.drain(0, &mut Vec::new());
        assert!(start.elapsed() < DEADLINE);
    }
    b.catch_up(0, a);
    // Both may announce addresses.
    a.catch_up(0, b);
}

/// Registered buffers, delayed completions, and addresses that only the provider knows.
#[test]
fn a_device_with_its_providers_requirements_carries_messages() {
    if !with_devices("a_device_with_its_providers_requirements_carries_messages") {
        return;
    }
    let mut a = open("127.41.60.1@n0");
    let mut b = open("127.41.61.1@n0");
    assert_eq!(a.fabric.rails()[0].provider, provider());
    assert!(
        classes("127.41.60.1")[0].is_some(),
        "another provider opened it"
    );
    let (to_b, to_a) = (a.add_peer(&b), b.add_peer(&a));
    meet(&mut a, &mut b, to_b);
    meet(&mut b, &mut a, to_a);
    for round in 0..100 {
        a.fabric
            .send(round, to_b, Class::News, Route::Next, b"news");
        a.fabric
            .send(round, to_b, Class::Beat, Route::Next, b"beat");
        b.fabric
            .send(round, to_a, Class::News, Route::Next, b"back");
        let mut received = text(&b.receive(2));
        received.sort();
        assert_eq!(received, ["beat", "news"]);
        assert_eq!(text(&a.receive(1)), ["back"]);
    }
    assert_eq!(
        a.fabric.paths(to_b)[0].queued_bytes,
        0,
        "all sends are completed"
    );
}

/// Sends a beat until it arrives in the lane of beats, which wakes nobody.
fn beat_as_datagram(a: &mut Node, to_b: PeerHandle, b: &mut Node) {
    a.fabric.zero_stats();
    b.fabric.zero_stats();
    let (start, mut has_arrived) = (Instant::now(), false);
    while !has_arrived {
        a.fabric
            .send(0, to_b, Class::Beat, Route::Next, b"datagram");
        a.drain(0, &mut Vec::new());
        b.fabric.poll_beats(0, &mut |arrival| {
            has_arrived |= arrival.bytes == b"datagram";
        });
        assert!(start.elapsed() < DEADLINE, "no beat arrived as a datagram");
    }
    b.catch_up(0, a);
    a.catch_up(0, b);
}

/// Sends the longest bulk message, which arrives.
fn bulk_arrives(a: &mut Node, to_b: PeerHandle, b: &mut Node) {
    let message = vec![7; BULK_MESSAGE_MAX];
    let start = Instant::now();
    let now_us = || start.elapsed().as_micros() as u64 + 1000;
    a.fabric.send_bulk(now_us(), to_b, &message).unwrap();
    let mut received = Vec::new();
    while received.is_empty() {
        a.drain(now_us(), &mut Vec::new());
        b.drain(now_us(), &mut received);
        assert!(start.elapsed() < DEADLINE);
    }
    assert!(
        received == [(0, message)],
        "{} messages arrived",
        received.len()
    );
}

/// Beats are unreliable datagrams, which need a prefix in front of each message, have addresses that only their own
/// node knows, and do not wake the host. All other messages use reliable ones.
#[test]
fn beats_are_unreliable_datagrams_on_net_o2ud() {
    let test = "beats_are_unreliable_datagrams_on_net_o2ud";
    if !with_device(test, VERBS, &[]) {
        return;
    }
    let open = |rail: &str| {
        let mut fabric = Fabric::open(&config(rail)).unwrap();
        fabric.open_bulk().unwrap();
        Node::around(fabric)
    };
    let mut a = open("127.41.80.1@o2ud0");
    let mut b = open("127.41.81.1@o2ud0");
    assert_eq!(
        a.fabric.mtu(),
        4096 - ENVELOPE_BYTES,
        "the limit of the shorter lane"
    );
    let (to_b, to_a) = (a.add_peer(&b), b.add_peer(&a));
    meet(&mut a, &mut b, to_b);
    meet(&mut b, &mut a, to_a);
    beat_as_datagram(&mut a, to_b, &mut b);
    beat_as_datagram(&mut b, to_a, &mut a);
    let longest: Vec<u8> = (0..a.fabric.mtu()).map(|at| (at % 251) as u8).collect();
    for round in 0..300u64 {
        let beat = &longest[..longest.len() - round as usize];
        a.fabric.send(round, to_b, Class::Beat, Route::Next, beat);
        a.fabric
            .send(round, to_b, Class::News, Route::Next, b"news");
        let mut received = b.receive(2);
        received.sort_by_key(|one| one.1.len());
        assert_eq!(received[0].1, b"news");
        assert!(
            received[1].1 == beat,
            "round {round}: a different beat arrived"
        );
        a.drain(round, &mut Vec::new());
    }
    // The lane of beats does not take the messages of the other lanes.
    while !b.fabric.may_sleep() {
        b.drain(400, &mut Vec::new());
    }
    a.fabric.send(400, to_b, Class::Beat, Route::Next, b"beat");
    assert_eq!(text(&b.receive(1)), ["beat"]);
    bulk_arrives(&mut a, to_b, &mut b);
    // A process that has started again has another address.
    drop(b);
    let mut b = open("127.41.81.1@o2ud0");
    let to_a = b.add_peer(&a);
    meet(&mut b, &mut a, to_a);
    beat_as_datagram(&mut a, to_b, &mut b);
    beat_as_datagram(&mut b, to_a, &mut a);
}

/// AG-16: the datagram lanes request a class of low latency, and the bulk lane none. If the provider refuses
/// the class, the lane is opened without it.
#[test]
fn a_traffic_class_is_requested_of_a_device() {
    let test = "a_traffic_class_is_requested_of_a_device";
    let answers = [
        ("none", "untold", "0x201"),
        ("honour", "low-latency", "0x201"),
        ("map", "best-effort", "0x200"),
        ("refuse", "refused", "0"),
        ("refuse-open", "refused", "0"),
    ];
    let all = ROLES
        .iter()
        .flat_map(|role| answers.map(|one| (*role, one.0)));
    for (role, how) in all {
        if !with_device(test, role, &[(CLASS, how)]) {
            continue;
        }
        let how = std::env::var(CLASS).unwrap();
        let (_, reported, class) = answers.into_iter().find(|one| one.0 == how).unwrap();
        let mut fabric = Fabric::open(&config(&rails("127.41.78.1@n0"))).unwrap();
        fabric.open_bulk().unwrap();
        let mut a = Node::around(fabric);
        let rail = a.fabric.rails().remove(0);
        assert_eq!(
            (rail.provider, rail.class.to_string().as_str()),
            (provider(), reported)
        );
        let opened = classes("127.41.78.1").map(Option::unwrap);
        assert_eq!(opened, [class, class, "0"], "{how}");
        let mut b = open("127.41.79.1@n0");
        let to_b = a.add_peer(&b);
        meet(&mut a, &mut b, to_b);
        return;
    }
}

/// With a provider that has addresses of its own kind, the system cannot choose a port.
#[test]
fn a_rail_of_addresses_of_its_own_kind_needs_a_port() {
    if !with_names("a_rail_of_addresses_of_its_own_kind_needs_a_port") {
        return;
    }
    let rail = rails("127.41.60.2:0@n0");
    let error = Fabric::open(&config(&rail)).unwrap_err();
    let (_, net) = rail.split_once('@').unwrap();
    let text = format!(
        "rail {rail}: on net {net} the system chooses no port; leave the port out (7741), or give one"
    );
    assert_eq!(error.to_string(), text);
}

#[test]
fn a_devices_bulk_lane_carries_the_longest_message() {
    if !with_devices("a_devices_bulk_lane_carries_the_longest_message") {
        return;
    }
    let open = |text: &str| {
        let mut fabric = Fabric::open(&config(&rails(text))).unwrap();
        fabric.open_bulk().unwrap();
        Node::around(fabric)
    };
    let (mut a, mut b) = (open("127.41.64.1@n0"), open("127.41.65.1@n0"));
    let to_b = a.add_peer(&b);
    b.add_peer(&a);
    let message: Vec<u8> = (0..BULK_MESSAGE_MAX).map(|at| (at % 251) as u8).collect();
    let start = Instant::now();
    let now_us = || start.elapsed().as_micros() as u64 + 1;
    a.fabric.send_bulk(now_us(), to_b, &message).unwrap();
    let mut received = Vec::new();
    let done = FabricEvent::BulkDone {
        peer: to_b,
        message: 1,
    };
    while !events(&mut a, now_us()).contains(&done) {
        b.drain(now_us(), &mut received);
        assert!(start.elapsed() < DEADLINE);
    }
    assert!(
        received == [(0, message)],
        "{} messages arrived",
        received.len()
    );
}

#[test]
fn a_device_with_short_messages_is_refused_for_bulk() {
    let test = "a_device_with_short_messages_is_refused_for_bulk";
    let short = [("MUSTER_TEST_MESSAGE_MAX", "2000")];
    if !ROLES.iter().any(|role| with_device(test, *role, &short)) {
        return;
    }
    let rail = rails("127.41.67.1@n0");
    let mut fabric = Fabric::open(&config(&rail)).unwrap();
    assert_eq!(fabric.mtu(), 2000 - ENVELOPE_BYTES);
    let rail = fabric.local_nids();
    let text = format!(
        "rail {rail}: {} carries messages of up to 2000 bytes, and the bulk lane needs 16523; messages on it \
         must fit a datagram",
        provider()
    );
    assert_eq!(fabric.open_bulk().unwrap_err().to_string(), text);
}

/// RS-05, RS-06, snd-085: a device keeps news and reports nothing, as verbs does for seconds when a network is cut.
/// Another rail sends it after the transport time-out, and the error that follows has no effect any more.
#[test]
fn news_that_a_device_keeps_is_sent_by_another_rail() {
    if !with_device(
        "news_that_a_device_keeps_is_sent_by_another_rail",
        VERBS,
        &[],
    ) {
        return;
    }
    let mut a = open("127.41.88.1@n0,127.41.88.2@n1");
    let mut b = open("127.41.89.1@n0,127.41.89.2@n1");
    let to_b = a.add_peer(&b);
    b.add_peer(&a);
    meet(&mut a, &mut b, to_b);
    let file = down("127.41.88.1.stuck");
    std::fs::write(&file, "").unwrap();
    for _ in 0..2 {
        a.fabric.send(1, to_b, Class::News, Route::Next, b"news");
    }
    assert_eq!(b.receive(1), [(1, b"news".to_vec())], "one each");
    let seen = events(&mut a, 200_000);
    let words = "it was not sent within 100000 us";
    let moved =
        |event: &FabricEvent| matches!(event, FabricEvent::Moved { reason, .. } if reason == words);
    assert!(seen.iter().any(moved), "{seen:?}");
    assert_eq!(b.receive(1), [(1, b"news".to_vec())]);
    assert_eq!(a.fabric.rails()[0].counters.timeouts, 1);
    std::fs::remove_file(&file).unwrap();
    let start = Instant::now();
    let failed = |a: &Node| a.fabric.rails()[0].counters.dropped_in_all();
    while failed(&a) == 0 {
        events(&mut a, 200_001);
        assert!(start.elapsed() < DEADLINE);
    }
    assert_eq!(a.fabric.under_way_drops(), 0);
    a.fabric
        .send(200_002, to_b, Class::News, Route::All, b"last");
    let last: Vec<Vec<u8>> = b.receive(2).into_iter().map(|(_, bytes)| bytes).collect();
    assert_eq!(last, [b"last"; 2], "it was sent once more only");
}

/// hlt-005, hlt-010, snd-080, snd-085: a device that fails is reported; messages that it accepted and did not
/// send use another rail, and the device is used again when a probe succeeds.
#[test]
fn a_failed_device_is_avoided_at_once_and_tried_again() {
    if !with_device(
        "a_failed_device_is_avoided_at_once_and_tried_again",
        VERBS,
        &[],
    ) {
        return;
    }
    let mut a = open("127.41.62.1@n0,127.41.62.2@n1");
    let mut b = open("127.41.63.1@n0,127.41.63.2@n1");
    let to_b = a.add_peer(&b);
    b.add_peer(&a);
    meet(&mut a, &mut b, to_b);
    let file = down("127.41.62.1");
    std::fs::write(&file, "").unwrap();
    // The first rail accepts the message, and fails afterwards.
    a.fabric.send(1, to_b, Class::News, Route::Next, b"first");
    let seen = events(&mut a, 2);
    let failing = seen.iter().any(|event| {
        matches!(event, FabricEvent::RailFailing { rail: 0, reason } if reason.contains("No such device"))
    });
    assert!(failing, "{seen:?}");
    let words = "provider error 12: transport retry counter exceeded";
    let moved = |event: &FabricEvent| matches!(event, FabricEvent::Moved { reason, .. } if reason.contains(words));
    assert!(seen.iter().any(moved), "{seen:?}");
    assert_eq!(a.fabric.rails()[0].state, HealthState::Failed);
    assert_eq!(b.receive(1), [(1, b"first".to_vec())]);
    for now_us in 3..10 {
        a.fabric
            .send(now_us, to_b, Class::News, Route::Next, b"more");
        assert_eq!(
            b.receive(1),
            [(1, b"more".to_vec())],
            "no message uses the failed rail"
        );
    }
    std::fs::remove_file(&file).unwrap();
    let mut now_us = 10;
    while a.fabric.rails()[0].state == HealthState::Failed {
        now_us += 100_000;
        assert!(now_us < 20_000_000, "the device was not tried again");
        a.fabric
            .send(now_us, to_b, Class::News, Route::Next, b"and a probe");
        events(&mut a, now_us + 1);
        b.drain(now_us, &mut Vec::new());
    }
    let state = a.fabric.rails()[0].state;
    assert!(
        matches!(state, HealthState::Degraded | HealthState::Active),
        "{state:?}"
    );
}

/// The NID of a rail contains the address of its lane of news. Those of its other lanes are announced, also to a peer
/// to which nothing but a bulk message is sent, and again when bulk lanes are opened later. A process that has started
/// again has other addresses.
#[test]
fn addresses_that_only_a_node_knows_are_told_to_its_peers() {
    if !with_names("addresses_that_only_a_node_knows_are_told_to_its_peers") {
        return;
    }
    let open = |rail: &str| {
        let mut fabric = Fabric::open(&config(&rails(rail))).unwrap();
        fabric.open_bulk().unwrap();
        Node::around(fabric)
    };
    let (mut a, mut b) = (
        Node::open(&rails("127.41.73.1@n0")),
        Node::open(&rails("127.41.73.2@n0")),
    );
    let (to_b, to_a) = (a.add_peer(&b), b.add_peer(&a));
    meet(&mut a, &mut b, to_b);
    meet(&mut b, &mut a, to_a);
    a.fabric.open_bulk().unwrap();
    b.fabric.open_bulk().unwrap();
    bulk_arrives(&mut a, to_b, &mut b);
    let mut a = open("127.41.70.1@n0");
    let mut b = open("127.41.71.1@n0");
    let name_of = |node: &Node| node.nids().as_slice()[0].name.clone();
    assert!(name_of(&a).is_some() && name_of(&a) != name_of(&b));
    let (to_b, to_a) = (a.add_peer(&b), b.add_peer(&a));
    bulk_arrives(&mut a, to_b, &mut b);
    beat_as_datagram(&mut a, to_b, &mut b);
    beat_as_datagram(&mut b, to_a, &mut a);
    let before = b.nids();
    drop(b);
    let mut b = open("127.41.71.1@n0");
    assert_ne!(before, b.nids());
    a.fabric.renew(to_b, &b.nids()).unwrap();
    let to_a = b.add_peer(&a);
    meet(&mut a, &mut b, to_b);
    beat_as_datagram(&mut a, to_b, &mut b);
    beat_as_datagram(&mut b, to_a, &mut a);
}

/// A NID whose provider's address is not known does not prevent messages over another.
#[test]
fn a_peer_is_added_with_the_paths_that_can_be_opened() {
    if !with_names("a_peer_is_added_with_the_paths_that_can_be_opened") {
        return;
    }
    let mut a = Node::open(&rails("127.41.74.1@n0,127.41.74.2:0@udp0"));
    let mut b = Node::open("127.41.75.2:0@udp0");
    let unknown: NidList = rails("127.41.75.1@n0").parse().unwrap();
    let error = a.fabric.peer(&unknown).unwrap_err().to_string();
    let expected = format!(
        "the NID {unknown} cannot be sent to: on this net only its node knows its address; copy the NID from what \
         \"muster rails\" prints there, or let the nodes meet through PMIx or by a net with IP addresses"
    );
    assert_eq!(error, expected);
    let both = format!("{unknown},{}", b.nids()).parse().unwrap();
    let to_b = a.fabric.peer(&both).unwrap();
    a.fabric.send(1, to_b, Class::News, Route::All, b"news");
    assert_eq!(text(&b.receive(1)), ["news"]);
}

/// hlt-005: a device that cannot report whether a message has arrived, or why it has failed, does not keep the
/// host awake; each poll counts one error against its rail.
#[test]
fn a_device_that_cannot_be_polled_does_not_keep_the_host_awake() {
    if !with_device(
        "a_device_that_cannot_be_polled_does_not_keep_the_host_awake",
        VERBS,
        &[],
    ) {
        return;
    }
    for fault in ["wait-fails", "event-unreadable"] {
        let mut a = open("127.41.68.1@n0,127.41.68.2@n1");
        assert_eq!(events(&mut a, 1), []);
        assert!(a.fabric.may_sleep());
        let file = down(&format!("127.41.68.1.{fault}"));
        std::fs::write(&file, "").unwrap();
        assert!(
            fault == "event-unreadable" || a.fabric.may_sleep(),
            "{fault}"
        );
        let seen = events(&mut a, 2);
        assert_eq!(
            a.fabric.rails()[0].state,
            HealthState::Degraded,
            "{fault}: {seen:?}"
        );
        assert!(a.fabric.may_sleep(), "{fault}");
        std::fs::remove_file(&file).unwrap();
        assert_eq!(a.fabric.rails()[1].state, HealthState::Active);
    }
}

/// RS-02: events about connections concern only the provider, and do not count against a rail.
#[test]
fn events_of_connections_are_ignored() {
    if !with_device("events_of_connections_are_ignored", VERBS, &[]) {
        return;
    }
    let mut a = open("127.41.76.1@n0");
    let (mut b, mut c) = (open("127.41.77.1@n0"), open("127.41.77.2@n0"));
    let (to_b, to_c) = (a.add_peer(&b), a.add_peer(&c));
    meet(&mut a, &mut b, to_b);
    meet(&mut a, &mut c, to_c);
    // Sends failed until the addresses were resolved.
    a.fabric.zero_stats();
    assert_eq!(events(&mut a, 1), []);
    assert!(down("127.41.76.1.connected").exists(), "no event was read");
    std::fs::write(down("127.41.76.1.shut"), "").unwrap();
    assert_eq!(events(&mut a, 2), []);
    assert!(down("127.41.76.1.shutdown").exists(), "no event was read");
    let rail = a.fabric.rails().remove(0);
    assert_eq!(
        (rail.state, rail.counters.dropped_in_all()),
        (HealthState::Active, 0)
    );
    assert!(a.fabric.may_sleep());
    a.fabric.send(3, to_b, Class::News, Route::Next, b"news");
    assert_eq!(text(&b.receive(1)), ["news"]);
}

/// The errors of the real providers name what is missing here, and the remedy.
#[test]
fn without_a_device_the_error_names_what_is_missing() {
    for (net, provider) in [
        ("o2ib0", "verbs;ofi_rxm"),
        ("o2ud0", "verbs;ofi_rxm"),
        ("psm0", "psm"),
        ("cxi0", "cxi"),
        ("efa0", "efa"),
        ("opx0", "opx"),
    ] {
        let rails = format!("127.41.66.1@{net}");
        let error = Fabric::open(&config(&rails)).unwrap_err().to_string();
        assert!(
            error.starts_with(&format!("rail {rails}: {provider}")),
            "{error}"
        );
        let parts = [
            "finds no device (fi_getinfo failed: ",
            "No data available (61)); ",
        ];
        assert!(parts.iter().all(|part| error.contains(part)), "{error}");
        let remedies = [
            "/sys/class/infiniband does not exist, or is empty",
            "/dev/hfi1_0 does not exist, or is empty",
            "/sys/class/cxi does not exist, or is empty",
            "this libfabric was built without",
            "check that its link is up",
        ];
        assert!(
            remedies.iter().any(|remedy| error.contains(remedy)),
            "{error}"
        );
        println!("{error}");
    }
}
