//! The callbacks of a server: libpmix calls them on its own thread. Each reads its arguments and queues an upcall;
//! the launcher decides.

use std::ffi::{CStr, c_char, c_void};

use pmix_sys as sys;

use super::super::ffi::text;
use super::answer::{Done, InfoAnswer};
use super::arguments::{slice, texts, timeout};
use super::collective::{Answer, Collective, Contribution, Members, endpoints, is_local};
use super::control::{Signalling, signal_of};
use super::log_message::{LogMessage, Room, text_of};
use super::modex::{Found, Want, required_key};
use super::name_service::{Lookup, Publishing, Query, RESERVED, Value};
use super::queue::{is_rank, note_lost, queue, rank};
use super::upcall::Upcall;

/// The status for an upcall that is done at once.
const DONE: i32 = sys::PMIX_OPERATION_SUCCEEDED;

/// As [`queue`], for an upcall without an answer.
fn note(upcall: Upcall) -> sys::pmix_status_t {
    match queue(upcall) {
        status @ sys::PMIX_ERR_OUT_OF_RESOURCE => status,
        _ => DONE,
    }
}

pub(super) extern "C" fn connected(
    process: *const sys::pmix_proc_t,
    _object: *mut c_void,
    _infos: *mut sys::pmix_info_t,
    _count: usize,
    _answer: sys::pmix_op_cbfunc_t,
    _data: *mut c_void,
) -> sys::pmix_status_t {
    // SAFETY: libpmix passes a process that is valid for the call, or NULL.
    let rank = unsafe { rank(process) };
    rank.map_or(DONE, |rank| note(Upcall::Connected(rank)))
}

pub(super) extern "C" fn finalized(
    process: *const sys::pmix_proc_t,
    _object: *mut c_void,
    _answer: sys::pmix_op_cbfunc_t,
    _data: *mut c_void,
) -> sys::pmix_status_t {
    // SAFETY: as in `connected`.
    let rank = unsafe { rank(process) };
    rank.map_or(DONE, |rank| note(Upcall::Finalized(rank)))
}

pub(super) extern "C" fn aborted(
    process: *const sys::pmix_proc_t,
    _object: *mut c_void,
    status: i32,
    message: *const c_char,
    _processes: *mut sys::pmix_proc_t,
    _count: usize,
    function: sys::pmix_op_cbfunc_t,
    data: *mut c_void,
) -> sys::pmix_status_t {
    // SAFETY: libpmix passes a process and a terminated string, or NULL for either, valid for the call.
    let (rank, message) = unsafe {
        let message = (!message.is_null()).then(|| CStr::from_ptr(message));
        (rank(process), message)
    };
    let Some(rank) = rank else {
        return sys::PMIX_ERR_NOT_SUPPORTED;
    };
    let message = message.map_or_else(String::new, |text| text.to_string_lossy().into_owned());
    queue(Upcall::Aborted {
        rank,
        status,
        message,
        answer: Done { function, data },
    })
}

/// A request for more processes than the job was started with: not supported.
pub(super) extern "C" fn spawn(
    process: *const sys::pmix_proc_t,
    _infos: *const sys::pmix_info_t,
    _infos_count: usize,
    _apps: *const sys::pmix_app_t,
    _apps_count: usize,
    _answer: sys::pmix_spawn_cbfunc_t,
    _data: *mut c_void,
) -> sys::pmix_status_t {
    // SAFETY: as in `connected`.
    if let Some(rank) = unsafe { rank(process) } {
        queue(Upcall::Refused {
            rank,
            what: "MPI_Comm_spawn",
        });
    }
    sys::PMIX_ERR_NOT_SUPPORTED
}

fn queue_contribution(
    collective: Collective,
    members: &[sys::pmix_proc_t],
    infos: &[sys::pmix_info_t],
    data: Vec<u8>,
    answer: Answer,
) -> sys::pmix_status_t {
    if !members.iter().all(is_rank) {
        return sys::PMIX_ERR_NOT_SUPPORTED;
    }
    let for_all = members
        .iter()
        .any(|process| process.rank == sys::PMIX_RANK_WILDCARD);
    let mut ranks: Vec<u32> = members.iter().map(|process| process.rank).collect();
    ranks.sort_unstable();
    ranks.dedup();
    queue(Upcall::Collective(Contribution {
        collective,
        ranks: if for_all { Vec::new() } else { ranks },
        data,
        timeout_s: timeout(infos),
        members: Members(members.to_vec()),
        answer,
    }))
}

pub(super) extern "C" fn fence(
    processes: *const sys::pmix_proc_t,
    count: usize,
    infos: *const sys::pmix_info_t,
    infos_count: usize,
    data: *mut c_char,
    length: usize,
    answer: sys::pmix_modex_cbfunc_t,
    answer_data: *mut c_void,
) -> sys::pmix_status_t {
    // SAFETY: libpmix passes this number of processes, infos and bytes, or NULL for none, valid for the call; the
    // bytes were allocated with malloc and are ours to free.
    let (processes, infos, bytes) = unsafe {
        let bytes = slice(data.cast::<u8>(), length).to_vec();
        libc::free(data.cast());
        (slice(processes, count), slice(infos, infos_count), bytes)
    };
    let answer = Answer::Data(answer, answer_data);
    queue_contribution(Collective::Fence, processes, infos, bytes, answer)
}

pub(super) extern "C" fn connect(
    processes: *const sys::pmix_proc_t,
    count: usize,
    infos: *const sys::pmix_info_t,
    infos_count: usize,
    function: sys::pmix_op_cbfunc_t,
    data: *mut c_void,
) -> sys::pmix_status_t {
    // SAFETY: as in `fence`.
    let (processes, infos) = unsafe { (slice(processes, count), slice(infos, infos_count)) };
    let answer = Answer::Done(Done { function, data });
    queue_contribution(Collective::Connect, processes, infos, Vec::new(), answer)
}

pub(super) extern "C" fn disconnect(
    processes: *const sys::pmix_proc_t,
    count: usize,
    infos: *const sys::pmix_info_t,
    infos_count: usize,
    function: sys::pmix_op_cbfunc_t,
    data: *mut c_void,
) -> sys::pmix_status_t {
    // SAFETY: as in `fence`.
    let (processes, infos) = unsafe { (slice(processes, count), slice(infos, infos_count)) };
    let answer = Answer::Done(Done { function, data });
    queue_contribution(Collective::Disconnect, processes, infos, Vec::new(), answer)
}

pub(super) extern "C" fn group(
    operation: sys::pmix_group_operation_t,
    name: *mut c_char,
    processes: *const sys::pmix_proc_t,
    count: usize,
    infos: *const sys::pmix_info_t,
    infos_count: usize,
    function: sys::pmix_info_cbfunc_t,
    data: *mut c_void,
) -> sys::pmix_status_t {
    // SAFETY: as in `fence`; the name is a terminated text or NULL.
    let (processes, infos, name) = unsafe {
        let name = (!name.is_null()).then(|| CStr::from_ptr(name).to_string_lossy().into_owned());
        (slice(processes, count), slice(infos, infos_count), name)
    };
    let name = name.unwrap_or_default();
    let collective = if operation == sys::PMIX_GROUP_CONSTRUCT {
        Collective::Construct(name)
    } else if is_local(infos) {
        // All members are on this node and have arrived. If libpmix 5 has to wait for the answer of such a group, it
        // makes a second upcall, and uses freed memory when it has two answers.
        return sys::PMIX_OPERATION_SUCCEEDED;
    } else {
        Collective::Destruct(name)
    };
    let answer = Answer::Infos(InfoAnswer { function, data });
    queue_contribution(collective, processes, infos, endpoints(infos), answer)
}

pub(super) extern "C" fn direct_modex(
    process: *const sys::pmix_proc_t,
    infos: *const sys::pmix_info_t,
    count: usize,
    function: sys::pmix_modex_cbfunc_t,
    data: *mut c_void,
) -> sys::pmix_status_t {
    // SAFETY: libpmix passes a process and this number of infos, or NULL for either, valid for the call.
    let (process, infos) = unsafe { (process.as_ref(), slice(infos, count)) };
    let Some(process) = process else {
        return sys::PMIX_ERR_NOT_FOUND;
    };
    queue(Upcall::Want(Want {
        namespace: text(&process.nspace).to_string_lossy().into_owned(),
        rank: process.rank,
        key: infos.iter().find_map(required_key),
        timeout_s: timeout(infos),
        function,
        data,
    }))
}

/// The server's answer to a request for the data of one of its ranks; `rank` is the number that was passed with it.
pub(super) extern "C" fn found(
    status: sys::pmix_status_t,
    data: *mut c_char,
    size: usize,
    rank: *mut c_void,
) {
    // SAFETY: libpmix passes this number of bytes, or NULL for none, valid for the call.
    let bytes = unsafe { slice(data.cast::<u8>(), size) };
    let is_there = status == sys::PMIX_SUCCESS as i32;
    // The status of the queue has no receiver here; a lost answer is counted.
    queue(Upcall::Found(Found {
        rank: rank as usize as u32,
        data: if is_there { bytes.to_vec() } else { Vec::new() },
    }));
}

pub(super) extern "C" fn job_control(
    requester: *const sys::pmix_proc_t,
    targets: *const sys::pmix_proc_t,
    targets_count: usize,
    infos: *const sys::pmix_info_t,
    infos_count: usize,
    function: sys::pmix_info_cbfunc_t,
    data: *mut c_void,
) -> sys::pmix_status_t {
    // SAFETY: libpmix passes this number of processes and infos, or NULL for none, valid for the call.
    let (requester, targets, infos) = unsafe {
        let targets = slice(targets, targets_count);
        (rank(requester), targets, slice(infos, infos_count))
    };
    if requester.is_none() || !targets.iter().all(is_rank) {
        return sys::PMIX_ERR_NOT_SUPPORTED;
    }
    let Some(signal) = infos.iter().find_map(signal_of) else {
        return sys::PMIX_ERR_NOT_SUPPORTED;
    };
    let for_all = targets
        .iter()
        .any(|one| one.rank == sys::PMIX_RANK_WILDCARD);
    queue(Upcall::Signal(Signalling {
        ranks: targets
            .iter()
            .map(|one| one.rank)
            .filter(|_| !for_all)
            .collect(),
        signal,
        answer: InfoAnswer { function, data },
    }))
}

pub(super) extern "C" fn log(
    requester: *const sys::pmix_proc_t,
    infos: *const sys::pmix_info_t,
    count: usize,
    _directives: *const sys::pmix_info_t,
    _directives_count: usize,
    function: sys::pmix_op_cbfunc_t,
    data: *mut c_void,
) {
    // SAFETY: libpmix passes a process and this number of infos, valid for the call.
    let (requester, infos) = unsafe { (rank(requester), slice(infos, count)) };
    let answer = Done { function, data };
    let texts: Vec<_> = infos.iter().filter_map(text_of).collect();
    let Some(rank) = requester.filter(|_| !texts.is_empty()) else {
        return refuse(answer, sys::PMIX_ERR_NOT_SUPPORTED);
    };
    let size = texts.iter().map(|(_, string)| string.len()).sum();
    let Some(room) = Room::take(size) else {
        note_lost();
        return refuse(answer, sys::PMIX_ERR_OUT_OF_RESOURCE);
    };
    let status = queue(Upcall::LogMessage(LogMessage {
        rank,
        texts,
        room,
        answer,
    }));
    // A server that is ending needs no answer: its requester does not wait, and it may have dropped the request.
    if status == sys::PMIX_ERR_OUT_OF_RESOURCE {
        refuse(Done { function, data }, status);
    }
}

/// libpmix holds a lock during the upcall, which the answer needs: another thread gives the answer.
fn refuse(answer: Done, status: i32) {
    let given = std::thread::Builder::new().spawn(move || answer.answer(status));
    if given.is_err() {
        note_lost();
    }
}

pub(super) extern "C" fn publish(
    requester: *const sys::pmix_proc_t,
    infos: *const sys::pmix_info_t,
    count: usize,
    function: sys::pmix_op_cbfunc_t,
    data: *mut c_void,
) -> sys::pmix_status_t {
    // SAFETY: libpmix passes a process and this number of infos, valid for the call.
    let (requester, infos) = unsafe { (rank(requester), slice(infos, count)) };
    let Some(rank) = requester else {
        return sys::PMIX_ERR_NOT_SUPPORTED;
    };
    let mut entries = Vec::new();
    for info in infos {
        let key = text(&info.key).to_string_lossy().into_owned();
        if key.starts_with(RESERVED) {
            continue;
        }
        match Value::read(&info.value) {
            Some(value) => entries.push((key, value)),
            None => return sys::PMIX_ERR_NOT_SUPPORTED,
        }
    }
    let is_once = |info: &sys::pmix_info_t| {
        text(&info.key).as_c_str() == sys::PMIX_PERSISTENCE
            && u32::from(info.value.type_) == sys::PMIX_PERSIST
            // SAFETY: the type tag states which member of the union was written.
            && u32::from(unsafe { info.value.data.persist }) == sys::PMIX_PERSIST_FIRST_READ
    };
    queue(Upcall::Publish(Publishing {
        rank,
        entries,
        once: infos.iter().any(is_once),
        answer: Done { function, data },
    }))
}

pub(super) extern "C" fn lookup(
    requester: *const sys::pmix_proc_t,
    keys: *mut *mut c_char,
    infos: *const sys::pmix_info_t,
    count: usize,
    function: sys::pmix_lookup_cbfunc_t,
    data: *mut c_void,
) -> sys::pmix_status_t {
    // SAFETY: libpmix passes a process, a list of strings with NULL at its end and this number of infos, all valid for
    // the call.
    let (requester, keys, infos) =
        unsafe { (requester.as_ref(), texts(keys), slice(infos, count)) };
    let Some(requester) = requester.filter(|requester| is_rank(requester)) else {
        return sys::PMIX_ERR_NOT_SUPPORTED;
    };
    let waits = |info: &sys::pmix_info_t| text(&info.key).as_c_str() == sys::PMIX_WAIT;
    queue(Upcall::Lookup(Lookup {
        rank: requester.rank,
        keys,
        wait: infos.iter().any(waits),
        timeout_s: timeout(infos),
        namespace: text(&requester.nspace),
        function,
        data,
    }))
}

pub(super) extern "C" fn unpublish(
    requester: *const sys::pmix_proc_t,
    keys: *mut *mut c_char,
    _infos: *const sys::pmix_info_t,
    _count: usize,
    function: sys::pmix_op_cbfunc_t,
    data: *mut c_void,
) -> sys::pmix_status_t {
    // SAFETY: as in `lookup`.
    let (requester, keys) = unsafe { (rank(requester), texts(keys)) };
    let Some(rank) = requester else {
        return sys::PMIX_ERR_NOT_SUPPORTED;
    };
    queue(Upcall::Unpublish {
        rank,
        keys,
        answer: Done { function, data },
    })
}

/// libpmix names its own server as the requester, so a rank and a tool cannot be distinguished.
pub(super) extern "C" fn query(
    _who: *mut sys::pmix_proc_t,
    queries: *mut sys::pmix_query_t,
    count: usize,
    function: sys::pmix_info_cbfunc_t,
    data: *mut c_void,
) -> sys::pmix_status_t {
    // SAFETY: libpmix passes this number of queries, each with a list of strings with NULL at its end.
    let keys = unsafe {
        let queries = slice(queries, count).iter();
        queries.flat_map(|one| texts(one.keys)).collect()
    };
    let answer = InfoAnswer { function, data };
    queue(Upcall::Query(Query { keys, answer }))
}

#[cfg(test)]
mod tests {
    use super::super::super::ffi::process;
    use super::super::queue::{close, lost, open_for};
    use super::*;
    use muster_sys::descriptor::EventFd;

    /// An upcall that finds the queue full gets a status of its own (neither done nor not supported) and is counted.
    #[test]
    fn an_upcall_without_room_is_refused_and_counted() {
        let wake = EventFd::new().unwrap();
        let namespace = c"muster-upcalls";
        let upcalls = open_for(wake, namespace.into(), 1).unwrap();
        let one = process(namespace, 3);
        let none = std::ptr::null_mut();
        let connect = || connected(&raw const one, none, none.cast(), 0, None, none);
        let finalize = || finalized(&raw const one, none, None, none);
        let abort = || {
            let message = c"enough".as_ptr();
            aborted(&raw const one, none, 1, message, none.cast(), 0, None, none)
        };
        let before = lost();
        assert_eq!(connect(), DONE);
        for refused in [finalize(), abort(), queue(Upcall::Tool)] {
            assert_eq!(refused, sys::PMIX_ERR_OUT_OF_RESOURCE);
        }
        assert_eq!(lost() - before, 3);
        assert!(matches!(upcalls.try_recv(), Ok(Upcall::Connected(3))));
        // Answered when the job ends.
        assert_eq!(abort(), sys::PMIX_SUCCESS as i32);
        close();
        assert_eq!(queue(Upcall::Tool), sys::PMIX_ERR_NOT_SUPPORTED);
        assert_eq!(lost() - before, 3);
    }
}
