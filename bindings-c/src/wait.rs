//! Waits for a state, on the caller's thread, with a deadline.

use std::ffi::c_int;
use std::time::Duration;

use muster_client::{Client, Error};
use muster_shm::{NodeState, RankState};

use crate::boundary::{count, enter};
use crate::context::{self, muster_ctx_t};
use crate::error::{Code, Failure};

/// The states of a set: bit n is the state with the number n.
fn members<T: From<u8>>(set: u32, last: u8) -> Result<Vec<T>, Failure> {
    if set == 0 || set >> (last + 1) != 0 {
        return Err(Failure::new(
            Code::Argument,
            format!(
                "states is {set:#x}; it must be a sum of MUSTER_STATE(s) for states 0 to {last}"
            ),
        ));
    }
    Ok((0..=last)
        .filter(|state| set >> state & 1 == 1)
        .map(T::from)
        .collect())
}

fn wait<T: From<u8>>(
    context: *const muster_ctx_t,
    (states, last): (u32, u8),
    timeout_ms: u32,
    until: impl FnOnce(&Client, &[T], Duration) -> Result<Option<c_int>, Error>,
    too_late: impl FnOnce() -> String,
) -> c_int {
    enter(|| {
        context::check(context)?;
        let states = members(states, last)?;
        let deadline = Duration::from_millis(timeout_ms.into());
        let client = context::client(context)?;
        let found = until(&client, &states, deadline)?;
        found.ok_or_else(|| {
            let hint = if is_unplaced(&client) { UNPLACED } else { "" };
            let message = format!("{} within {timeout_ms} ms{hint}", too_late());
            Failure::new(Code::Timeout, message)
        })
    })
}

/// The hint for a process that MPICH's launcher started and whose rank Muster does not know.
const UNPLACED: &str = "; this process was started by a PMI launcher without PMIx (MPICH's mpiexec), so Muster does \
                        not know its rank: call muster_mpi_init of muster_mpi.h after MPI_Init, instead of \
                        muster_init";

/// Whether this process has no rank, and a launcher without PMIx.
fn is_unplaced(client: &Client) -> bool {
    let is_set = |name: &&str| std::env::var_os(name).is_some();
    let by_pmi = ["PMI_RANK", "PMI_FD", "PMI_PORT"].iter().any(is_set);
    by_pmi && !is_set(&"PMIX_NAMESPACE") && matches!(client.my_rank(), Ok(None))
}

/// Waits until a node is in one of these states.
#[unsafe(no_mangle)]
pub extern "C" fn muster_wait_node(
    context: *mut muster_ctx_t,
    node: u32,
    states: u32,
    timeout_ms: u32,
) -> c_int {
    wait::<NodeState>(
        context,
        (states, NodeState::Left as u8),
        timeout_ms,
        |client, states, deadline| {
            let found = client.wait_node(node, states, deadline)?;
            Ok(found.map(|state| state as c_int))
        },
        || format!("node {node} was in none of these states"),
    )
}

/// Waits until a rank is in one of these states.
#[unsafe(no_mangle)]
pub extern "C" fn muster_wait_rank(
    context: *mut muster_ctx_t,
    rank: u32,
    states: u32,
    timeout_ms: u32,
) -> c_int {
    wait::<RankState>(
        context,
        (states, RankState::Left as u8),
        timeout_ms,
        |client, states, deadline| {
            let found = client.wait_rank(rank, states, deadline)?;
            Ok(found.map(|state| state as c_int))
        },
        || format!("rank {rank} was in none of these states"),
    )
}

/// Waits until so many ranks are in one of these states.
#[unsafe(no_mangle)]
pub extern "C" fn muster_wait_ranks(
    context: *mut muster_ctx_t,
    ranks: u32,
    states: u32,
    timeout_ms: u32,
) -> c_int {
    wait::<RankState>(
        context,
        (states, RankState::Left as u8),
        timeout_ms,
        |client, states, deadline| Ok(client.wait_ranks(ranks, states, deadline)?.map(count)),
        || format!("fewer than {ranks} ranks were in these states"),
    )
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sets_have_the_states_of_their_bits_and_no_others() {
        let failed_or_left = members::<RankState>(1 << 3 | 1 << 4, 4).ok();
        assert_eq!(
            failed_or_left,
            Some(vec![RankState::Failed, RankState::Left])
        );
        for set in [0, 1 << 5, u32::MAX] {
            assert!(members::<RankState>(set, 4).is_err_and(|f| f.code == Code::Argument));
        }
    }
}
