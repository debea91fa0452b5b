//! Rails of a document that takes effect, that cannot, and that are opened again.

use super::super::await_free;
use super::*;
use muster_fabric::FabricConfig;
use std::net::UdpSocket;

fn document(rails: &[String]) -> RailsDocument {
    let mut text = "version: 1\nnets:\n  - net: udp0\n    rails:\n".to_owned();
    for nid in rails {
        text += &format!("      - nid: {nid}\n        partitions: [3]\n");
    }
    RailsDocument::import(&text).unwrap()
}

/// A fabric with two rails, and their document.
fn begin() -> (Fabric, Rails) {
    let nids = ["127.59.1.1:0@udp0", "127.59.1.2:0@udp0"].map(str::to_owned);
    let library = muster_fabric::load().expect("libfabric is installed where tests run");
    let given = nids.iter().map(|nid| nid.parse().unwrap()).collect();
    let mut fabric = Fabric::open(&FabricConfig::new(library, given)).unwrap();
    let open = fabric.local_nids().iter().cloned().collect();
    let mut rails = Rails::new(document(&nids), open, CpuPlacement::default());
    rails.configure(&mut fabric);
    (fabric, rails)
}

/// Opens the rail that is due and waits for the thread that opens it.
fn reopen(rails: &mut Rails, fabric: &mut Fabric, now_us: u64) -> bool {
    let mut is_open = rails.reopen(now_us, fabric, 0);
    while rails.opening.is_some() {
        std::thread::yield_now();
        is_open = rails.reopen(now_us, fabric, 0);
    }
    is_open
}

fn sorted(nids: &[Nid]) -> Vec<Nid> {
    let mut nids = nids.to_vec();
    nids.sort();
    nids
}

/// cfg-020: a rail that is closed for another one that cannot be opened has new descriptors after the undo.
#[test]
fn a_refused_change_reports_reopened_rails_and_keeps_the_old_document() {
    let (mut fabric, mut rails) = begin();
    let before = rails.open().to_vec();
    let taken = UdpSocket::bind("127.59.1.1:0").unwrap();
    let port = taken.local_addr().unwrap().port();
    let next = document(&[
        format!("127.59.1.1:{port}@udp0"),
        "127.59.1.2:0@udp0".into(),
    ]);
    let refusal = rails
        .apply(&mut fabric, next.clone(), 0, Vec::new())
        .unwrap_err();
    assert!(
        refusal.why.contains(&format!("port {port}")),
        "{}",
        refusal.why
    );
    assert!(refusal.changed);
    assert_eq!(rails.open(), before);
    let nids: Vec<Nid> = fabric.local_nids().iter().cloned().collect();
    assert_eq!(sorted(&nids), sorted(&before));
    for view in fabric.rails() {
        assert_eq!(view.partitions, [3], "{}", view.nid);
    }
    // A change that needs no rail closed does not reopen any.
    let far = document(&["203.0.113.9:0@udp0".into(), "127.59.1.2:0@udp0".into()]);
    assert!(
        !rails
            .apply(&mut fabric, far, 0, Vec::new())
            .unwrap_err()
            .changed
    );
    drop(taken);
    let changed = await_free(|| {
        let changed = rails.apply(&mut fabric, next.clone(), 0, Vec::new());
        changed.map_err(|one| one.why)
    });
    assert!(changed);
}

/// Each rail's interface is needed by the new port of that rail. Only the rail in the way is closed, so one
/// always remains.
#[test]
fn all_rails_move_to_other_ports_in_one_change() {
    let (mut fabric, mut rails) = begin();
    let [one, two] = rails.open() else {
        panic!("two rails")
    };
    let (one, two) = (one.port, two.port);
    // Ports that the system assigned just before, each on the other address.
    let next = document(&[
        format!("127.59.1.1:{two}@udp0"),
        format!("127.59.1.2:{one}@udp0"),
    ]);
    let changed = rails
        .apply(&mut fabric, next, 0, Vec::new())
        .map_err(|one| one.why);
    assert_eq!(changed, Ok(true));
    let ports: Vec<u16> = rails.open().iter().map(|nid| nid.port).collect();
    assert_eq!(ports, [two, one]);
}

/// The loop continues while a rail is opened on another port of its address, and the old rail is used meanwhile.
/// Only a rail that needs the same port has to wait until the old one is closed.
#[test]
fn a_rail_moves_to_another_port_without_blocking_the_loop() {
    let (mut fabric, mut rails) = begin();
    let (one, two) = (rails.open[0].clone(), rails.open[1].clone());
    let plan = |second: &str| {
        let text = "version: 1\nnets:\n  - net: udp0\n    rails:\n      - nid: 127.59.1.1:0@udp0\n  \
            - net: udp7\n    rails:\n      - nid: ";
        RailsDocument::import(&format!("{text}{second}\n")).unwrap()
    };
    let moved = plan("127.59.1.2:0@udp7");
    let beside = |rails: &Rails, fabric: &Fabric, next: &RailsDocument| -> Vec<Nid> {
        let opening = rails.start_opening(1, fabric, next);
        opening.into_iter().map(|one| one.nid).collect()
    };
    assert_eq!(
        beside(&rails, &fabric, &moved),
        ["127.59.1.2:0@udp7".parse().unwrap()]
    );
    let same = plan(&format!("127.59.1.2:{}@udp7", two.port));
    assert_eq!(beside(&rails, &fabric, &same), []);
    let opened = rails
        .start_opening(1, &fabric, &moved)
        .into_iter()
        .map(|mut opening| {
            loop {
                match opening.poll(1) {
                    Some(opened) => break (opening.nid, opened),
                    None => std::thread::yield_now(),
                }
            }
        });
    let opened: Vec<Opened> = opened.collect();
    let nids: Vec<Nid> = fabric.local_nids().iter().cloned().collect();
    assert_eq!(
        sorted(&nids),
        sorted(&[one.clone(), two]),
        "both rails are used until then"
    );
    let done = rails.apply(&mut fabric, moved, 0, opened);
    assert_eq!(done.map_err(|one| one.why), Ok(true));
    let nets: Vec<String> = rails.open().iter().map(|nid| nid.net.to_string()).collect();
    assert_eq!(
        (nets, &rails.open()[0]),
        (vec!["udp0".to_owned(), "udp7".to_owned()], &one)
    );
    assert_eq!(fabric.rails().len(), 2);
}

/// A rail that no operator removed stays in the document and returns when it can: on its own port, or on another
/// one if the document allows any.
#[test]
fn a_rail_that_cannot_be_opened_is_retried_until_it_can() {
    let (mut fabric, mut rails) = begin();
    let (lost, left) = (rails.open[0].clone(), rails.open[1].clone());
    fabric.remove_rail(&lost).unwrap();
    rails.note_lost(vec![(lost.clone(), "no such interface")]);
    assert_eq!((rails.lost(), rails.rail_retry().len()), (1, 1));
    // From here on only this port is configured, which another socket has.
    rails.document.rails[0].nid = lost.clone();
    let taken = await_free(|| UdpSocket::bind(lost.socket_address().unwrap()));
    assert!(!reopen(&mut rails, &mut fabric, 5));
    let why = rails.rail_retry()[0].reason.clone();
    assert!(why.contains("in use"), "{why}");
    let due_us = rails.due_us().unwrap();
    assert!(due_us > 5);
    drop(taken);
    assert!(
        !reopen(&mut rails, &mut fabric, due_us - 1),
        "not before its time"
    );
    // A change meanwhile uses the rails that are open.
    let document = rails.document().clone();
    assert_eq!(
        rails
            .apply(&mut fabric, document, 0, Vec::new())
            .map_err(|one| one.why),
        Ok(false)
    );
    await_free(|| {
        let due_us = rails.due_us().unwrap();
        match reopen(&mut rails, &mut fabric, due_us) {
            true => Ok(()),
            false => Err(rails.rail_retry()[0].reason.clone()),
        }
    });
    assert_eq!((rails.due_us(), rails.lost()), (None, 1));
    assert_eq!(rails.open(), [lost, left]);
    let view = fabric
        .rails()
        .into_iter()
        .find(|view| view.nid == rails.open[0])
        .unwrap();
    assert_eq!(
        view.partitions,
        [3],
        "the document's settings of the rail are in effect again"
    );
}

/// The loop continues while a rail is being opened. A rail that was removed from the document meanwhile is
/// closed.
#[test]
fn a_rail_is_opened_without_blocking_the_loop_and_only_for_the_document() {
    let (mut fabric, mut rails) = begin();
    let lost = rails.open[0].clone();
    fabric.remove_rail(&lost).unwrap();
    rails.note_lost(vec![(lost.clone(), "gone")]);
    assert!(!rails.reopen(7, &mut fabric, 0), "another thread opens it");
    assert!(rails.opening.is_some() && rails.due_us() > Some(7));
    assert_eq!(fabric.rails().len(), 1);
    let mut next = rails.document().clone();
    next.rails.remove(0);
    rails
        .apply(&mut fabric, next, 0, Vec::new())
        .map_err(|one| one.why)
        .unwrap();
    assert!(!reopen(&mut rails, &mut fabric, 8));
    assert_eq!((fabric.rails().len(), rails.due_us()), (1, None));
    // Its address is free again.
    await_free(|| fabric.add_rail(&lost).map(drop));
}

/// cfg-030: the text names partitions that the machine does not have, and those that it has.
#[cfg(feature = "hwloc")]
#[test]
fn unknown_partitions_are_named() {
    let (_fabric, mut rails) = begin();
    assert_eq!(rails.unknown_partitions(), None, "the topology is unknown");
    let file = std::path::Path::new("../../tests/topologies/two-sockets.xml");
    rails.cpu_placement =
        CpuPlacement::new(Some(muster_fabric::locality::read_file(file).unwrap()));
    let text = rails.unknown_partitions().unwrap();
    assert!(
        text.starts_with("this machine has the CPU partitions 0, 1, and not 3 of 127.59.1.1"),
        "{text}"
    );
    rails
        .document
        .rails
        .iter_mut()
        .for_each(|rail| rail.partitions = vec![0]);
    assert_eq!(rails.unknown_partitions(), None);
}

#[test]
fn a_missing_rail_that_is_removed_is_not_retried() {
    let (mut fabric, mut rails) = begin();
    let (lost, left) = (rails.open[0].clone(), rails.open[1].clone());
    fabric.remove_rail(&lost).unwrap();
    rails.note_lost(vec![(lost, "gone")]);
    let mut next = rails.document().clone();
    next.rails.remove(0);
    assert_eq!(
        rails
            .apply(&mut fabric, next, 0, Vec::new())
            .map_err(|one| one.why),
        Ok(false)
    );
    assert_eq!((rails.rail_retry().len(), rails.open()), (0, &[left][..]));
}

/// New rails of a document are opened by threads, except one whose port belongs to a rail that is to be closed.
/// If a thread fails, the document is refused with its error.
#[test]
fn new_rails_are_opened_without_blocking_the_loop() {
    let (mut fabric, mut rails) = begin();
    let [kept, new] = ["127.59.1.1:0@udp0", "127.59.1.3:0@udp0"].map(str::to_owned);
    let moved = format!("127.59.1.2:{}@udp1", rails.open()[1].port);
    let text = "version: 1\nnets:\n  - net: udp0\n    rails:\n".to_owned()
        + &format!("      - nid: {kept}\n      - nid: {new}\n")
        + &format!("  - net: udp1\n    rails:\n      - nid: {moved}\n");
    let next = RailsDocument::import(&text).unwrap();
    let mut openings = rails.start_opening(0, &fabric, &next);
    let mut opening = openings.pop().expect("one is opened");
    assert_eq!((opening.nid.to_string(), openings.len()), (new, 0));
    let opened = loop {
        if let Some(opened) = opening.poll(1) {
            break opened;
        }
        std::thread::yield_now();
    };
    let before = fabric.local_nids();
    let nid = opening.nid;
    let lost = vec![(nid.clone(), Err("no such device".to_owned()))];
    let refused = rails.apply(&mut fabric, next.clone(), 0, lost).unwrap_err();
    assert_eq!(
        (refused.why.as_str(), refused.changed),
        ("no such device", false)
    );
    assert_eq!(fabric.local_nids(), before);
    let changed = rails.apply(&mut fabric, next, 0, vec![(nid, opened)]);
    assert_eq!(changed.map_err(|one| one.why), Ok(true));
    assert_eq!((fabric.rails().len(), rails.open().len()), (3, 3));
}

/// A rail whose connections are broken is closed, counts as missing, and is open again after a retry. The only rail
/// stays open.
#[test]
fn a_rail_with_broken_connections_is_opened_again() {
    let (mut fabric, mut rails) = begin();
    let before = rails.open().to_vec();
    assert_eq!(rails.renew(&mut fabric, &before[0], "broken"), Ok(()));
    let only = rails.renew(&mut fabric, &before[1], "broken");
    assert!(matches!(only, Err(RemoveError::LastRail { .. })));
    assert_eq!(fabric.rails().len(), 1);
    assert_eq!(rails.rail_retry()[0].nid, before[0]);
    assert_eq!(rails.lost(), 0, "it could be opened again");
    assert!(reopen(&mut rails, &mut fabric, 1));
    assert_eq!(rails.open(), before);
    assert!(rails.rail_retry().is_empty());
    let nids: Vec<Nid> = fabric.local_nids().iter().cloned().collect();
    assert_eq!(sorted(&nids), sorted(&before));
}
