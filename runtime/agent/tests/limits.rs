//! An agent at its limit of open files: it declares no rank dead because of it, and does not spin.
//!
//! The limit applies to the process, so these tests run one after the other, in a binary of their own.

mod support;

use muster_agent::ipc_server::IpcServer;
use muster_agent::watch::{Finding, RankNotice, Watch};
use muster_ipc::Listener;
use muster_shm::{Claim, Hold, TableWriter};
use muster_sys::poll;
use muster_sys::procfs;
use muster_sys::socket::Packets;
use std::os::fd::AsFd;
use std::process::Command;
use std::sync::{Mutex, PoisonError};
use std::time::Instant;
use support::agent::{directory, limits};
use support::{DEADLINE, raw};

static ONE_AT_A_TIME: Mutex<()> = Mutex::new(());

fn await_findings(watch: &Watch) -> Vec<Finding> {
    assert!(poll::readable(&[watch.descriptor()], Some(DEADLINE)).unwrap()[0]);
    let mut notices: Vec<RankNotice> = Vec::new();
    watch.take(&mut notices);
    notices.into_iter().map(|notice| notice.finding).collect()
}

#[test]
fn an_agent_without_descriptors_declares_no_rank_dead() {
    let _alone = ONE_AT_A_TIME.lock().unwrap_or_else(PoisonError::into_inner);
    let mut table = TableWriter::create(limits()).unwrap();
    let watch = Watch::start(&table.view()).unwrap();
    let mut child = Command::new("sleep").arg("600").spawn().unwrap();
    let claim = Claim {
        pid: child.id(),
        start_ticks: procfs::start_ticks(child.id()).unwrap(),
        rank: Some(3),
        hold: Hold::Thread,
    };
    let (slot, _) = table.claim_slot(&claim, &procfs::is_alive).unwrap();
    raw::without_descriptors(|| {
        watch.follow(slot);
        assert!(procfs::is_alive(claim.pid, claim.start_ticks));
        let mut notices = Vec::new();
        watch.take(&mut notices);
        assert_eq!(notices, []);
        // No thread holds its futex, as after an exec: the process cannot be opened, so its end is unknown.
        watch.arm(slot).unwrap();
        assert_eq!(await_findings(&watch), [Finding::Detached]);
    });
    // The process is followed as soon as a descriptor is free.
    child.kill().unwrap();
    child.wait().unwrap();
    assert!(!procfs::is_alive(claim.pid, claim.start_ticks));
    let ends = await_findings(&watch);
    assert!(matches!(ends[..], [Finding::Failed { .. }]), "{ends:?}");
}

#[test]
fn a_connection_that_cannot_be_accepted_is_left_for_the_next_round() {
    let _alone = ONE_AT_A_TIME.lock().unwrap_or_else(PoisonError::into_inner);
    let base = tempfile::tempdir().unwrap();
    let directory = directory(base.path());
    let mut table = TableWriter::create(limits()).unwrap();
    let watch = Watch::start(&table.view()).unwrap();
    let mut ipc_server = IpcServer::new(Listener::open(&directory).unwrap(), &directory).unwrap();
    let client = Packets::connect(&directory.socket()).unwrap();
    let mut requests = Vec::new();
    // The spare descriptor is not available either, as if another thread had taken it.
    raw::without_descriptors(|| {
        ipc_server
            .serve(Instant::now(), &mut table, &watch, &mut requests)
            .unwrap();
    });
    assert_eq!(ipc_server.counters().turned_away, 0);
    ipc_server
        .serve(Instant::now(), &mut table, &watch, &mut requests)
        .unwrap();
    drop(ipc_server);
    assert!(poll::readable(&[client.as_fd()], Some(DEADLINE)).unwrap()[0]);
}
