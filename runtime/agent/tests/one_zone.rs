//! A job that is too large for one zone: what its processes are told.

use std::sync::Arc;

use crate::support::DEADLINE;
use crate::support::agent::{Agent, Seen, options};
use muster_agent::ipc_server::Request;
use muster_client::{Client, Error, Options, PmixHooks};
use muster_sys::poll;
use tempfile::tempdir;

/// Hooks whose launcher states more nodes than one zone can have.
struct TooManyNodes;

impl PmixHooks for TooManyNodes {
    fn refusal(&self) -> Option<Error> {
        Some(Error::OneZone {
            nodes: 4097,
            most: 4096,
        })
    }
}

/// A job that one zone cannot hold: the process stays attached, and its calls return the reason. Bootstrap records of
/// so many nodes are not passed on.
#[test]
fn a_job_that_is_too_large_for_one_zone_is_refused() {
    for thread in [true, false] {
        let base = tempdir().unwrap();
        let mut agent = Agent::start(base.path());
        let options = Options {
            pmix_integration: Some(Arc::new(TooManyNodes)),
            thread,
            ..options(base.path())
        };
        let client = Client::attach(options).unwrap();
        agent.await_armed();
        let error = match thread {
            true => loop {
                let is_readable = poll::readable(&[client.descriptor().unwrap()], Some(DEADLINE));
                assert!(is_readable.unwrap()[0], "the refusal wakes the application");
                if let Err(error) = client.next_event() {
                    break error;
                }
            },
            false => client.dispatch().unwrap_err(),
        };
        assert!(
            matches!(error, Error::OneZone { nodes: 4097, .. }),
            "{error}"
        );
        client.finalize(0).unwrap();
    }
    let record = |node: usize| {
        let (mut record, address) = ([0; muster_client::RECORD_SIZE], node.to_string());
        record[0] = 1;
        record[2] = address.len() as u8;
        record[35..][..address.len()].copy_from_slice(address.as_bytes());
        record
    };
    let base = tempdir().unwrap();
    let mut agent = Agent::start(base.path());
    let client = Client::attach(Options {
        rank: Some(0),
        ..options(base.path())
    })
    .unwrap();
    let slot = agent.await_armed();
    let records: Vec<u8> = (0..=4096).flat_map(record).collect();
    let error = client.take_bootstrap_records(&records).unwrap_err();
    assert!(
        matches!(error, Error::OneZone { nodes: 4097, .. }),
        "{error}"
    );
    // One node fewer: all are passed on, and nothing came before them.
    let fewer = &records[muster_client::RECORD_SIZE..];
    assert!(client.take_bootstrap_records(fewer).unwrap() > 0);
    let first = Request::Seed {
        slot,
        address: "1".into(),
    };
    let is_seed = |seen: &Seen| match seen {
        Seen::Request(request @ Request::Seed { .. }) => Some(request.clone()),
        _ => None,
    };
    assert_eq!(agent.await_seen("a seed", is_seed), first);
    client.finalize(0).unwrap();
}
