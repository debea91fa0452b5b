//! An agent that has reached its limit of open files: nobody is declared dead for it, and it does not spin.
//!
//! The limit is the process's, so these tests run one after the other, in a program of their own.

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
use support::agent::{limits, place};
use support::{DEADLINE, raw};

static ONE_AT_A_TIME: Mutex<()> = Mutex::new(());

fn await_findings(watch: &Watch) -> Vec<Finding> {
    assert!(poll::readable(&[watch.descriptor()], Some(DEADLINE)).unwrap()[0]);
    let mut notices: Vec<RankNotice> = Vec::new();
    watch.take(&mut notices);
    notices.into_iter().map(|notice| notice.finding).collect()
}

#[test]
fn an_agent_that_cannot_look_condemns_nobody() {
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
        // Its word is nobody's, as after an exec: it is looked at, and there is no telling.
        watch.arm(slot).unwrap();
        assert_eq!(await_findings(&watch), [Finding::Detached]);
    });
    // It is followed as soon as that can be.
    child.kill().unwrap();
    child.wait().unwrap();
    assert!(!procfs::is_alive(claim.pid, claim.start_ticks));
    let ends = await_findings(&watch);
    assert!(matches!(ends[..], [Finding::Failed { .. }]), "{ends:?}");
}

#[test]
fn a_door_at_which_nobody_can_be_let_in_is_left_for_the_next_round() {
    let _alone = ONE_AT_A_TIME.lock().unwrap_or_else(PoisonError::into_inner);
    let base = tempfile::tempdir().unwrap();
    let place = place(base.path());
    let mut table = TableWriter::create(limits()).unwrap();
    let watch = Watch::start(&table.view()).unwrap();
    let mut ipc_server = IpcServer::new(Listener::open(&place).unwrap(), &place).unwrap();
    let client = Packets::connect(&place.socket()).unwrap();
    let mut requests = Vec::new();
    // Even the spare descriptor does not help: as if another thread had been faster.
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
