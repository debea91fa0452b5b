//! Words that a rank gives to the desk to be said for it (`PMIx_Log`), as Open MPI 5 does with all that it has to say
//! of errors.

use std::ffi::{CStr, c_void};
use std::sync::atomic::{AtomicUsize, Ordering};

use pmix_sys as sys;

use super::super::ffi::text;
use super::collective::Done;
use super::upcall::{Upcall, note_lost, queue, rank, slice};

/// The most that is said at once; of longer words it is the beginning, in bytes.
const WORDS_MAX: usize = 65_536;
/// The most that may wait to be said, in bytes; what comes then is refused and counted.
const WAITING_MAX: usize = 4 << 20;

static WAITING: AtomicUsize = AtomicUsize::new(0);

/// Where words go.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Stream {
    /// Standard output.
    Out,
    /// Standard error.
    Err,
}

/// What a rank wants said.
#[derive(Debug)]
pub struct LogMessage {
    /// Which rank.
    pub rank: u32,
    /// In its order.
    pub said: Vec<(Stream, Vec<u8>)>,
    room: Room,
    answer: Done,
}

/// What words take of the room for those that wait.
#[derive(Debug)]
struct Room(usize);

impl Room {
    fn take(size: usize) -> Option<Self> {
        let fits = |waiting: usize| Some(waiting + size).filter(|all| *all <= WAITING_MAX);
        let order = Ordering::Relaxed;
        WAITING
            .fetch_update(order, order, fits)
            .ok()
            .map(|_| Self(size))
    }
}

impl Drop for Room {
    fn drop(&mut self) {
        WAITING.fetch_sub(self.0, Ordering::Relaxed);
    }
}

impl LogMessage {
    /// They have been said.
    pub fn succeed(self) {
        drop(self.room);
        self.answer.succeed();
    }
}

/// What an entry wants said, and where; none of what goes elsewhere, into a system log, say.
fn said(info: &sys::pmix_info_t) -> Option<(Stream, Vec<u8>)> {
    let key = text(&info.key);
    let stream = match key.as_c_str() {
        key if key == sys::PMIX_LOG_STDERR => Stream::Err,
        key if key == sys::PMIX_LOG_STDOUT => Stream::Out,
        _ => return None,
    };
    if u32::from(info.value.type_) != sys::PMIX_STRING {
        return None;
    }
    // SAFETY: the type tag says which member of the union was written: a terminated text or NULL.
    let log_message = unsafe {
        let log_message = info.value.data.string;
        (!log_message.is_null()).then(|| CStr::from_ptr(log_message).to_bytes())
    }?;
    let mut kept = log_message[..log_message.len().min(WORDS_MAX)].to_vec();
    if log_message.len() > WORDS_MAX {
        let more = log_message.len() - WORDS_MAX;
        kept.extend(format!("\n[{more} bytes more are not said]\n").as_bytes());
    }
    Some((stream, kept))
}

pub(super) extern "C" fn log(
    who: *const sys::pmix_proc_t,
    infos: *const sys::pmix_info_t,
    count: usize,
    _directives: *const sys::pmix_info_t,
    _directives_count: usize,
    function: sys::pmix_op_cbfunc_t,
    data: *mut c_void,
) {
    // SAFETY: libpmix passes a process and so many infos, valid for the call.
    let (who, infos) = unsafe { (rank(who), slice(infos, count)) };
    let answer = Done { function, data };
    let said: Vec<_> = infos.iter().filter_map(said).collect();
    let Some(rank) = who.filter(|_| !said.is_empty()) else {
        return refuse(answer, sys::PMIX_ERR_NOT_SUPPORTED);
    };
    let size = said.iter().map(|(_, log_message)| log_message.len()).sum();
    let Some(room) = Room::take(size) else {
        note_lost();
        return refuse(answer, sys::PMIX_ERR_OUT_OF_RESOURCE);
    };
    let status = queue(Upcall::LogMessage(LogMessage {
        rank,
        said,
        room,
        answer,
    }));
    // Of a server that ends nobody waits for an answer, and it may have forgotten the question.
    if status == sys::PMIX_ERR_OUT_OF_RESOURCE {
        refuse(Done { function, data }, status);
    }
}

/// libpmix holds a lock while it asks, which the answer needs: another thread gives it.
fn refuse(answer: Done, status: i32) {
    let given = std::thread::Builder::new().spawn(move || answer.answer(status));
    if given.is_err() {
        note_lost();
    }
}

#[cfg(test)]
mod tests {
    use super::super::super::ffi::blank_info;
    use super::*;

    fn entry(key: &CStr, log_message: &CStr) -> sys::pmix_info_t {
        let mut info = blank_info(key);
        info.value.type_ = sys::PMIX_STRING as sys::pmix_data_type_t;
        info.value.data.string = log_message.as_ptr().cast_mut();
        info
    }

    /// run-3.
    #[test]
    fn words_for_both_streams_are_taken_and_cut_where_they_are_long() {
        let long = std::ffi::CString::new(vec![b'x'; WORDS_MAX + 7]).unwrap();
        let end = "xx\n[7 bytes more are not said]\n";
        for (key, log_message, expected) in [
            (sys::PMIX_LOG_STDERR, c"no", Some((Stream::Err, "no"))),
            (sys::PMIX_LOG_STDOUT, c"yes", Some((Stream::Out, "yes"))),
            (sys::PMIX_LOG_STDERR, &long, Some((Stream::Err, end))),
            (c"pmix.log.syslog", c"no", None),
        ] {
            let found = said(&entry(key, log_message));
            let (stream, log_message) = found.unzip();
            assert_eq!(stream, expected.map(|(stream, _)| stream), "{key:?}");
            if let Some((_, end)) = expected {
                let log_message = log_message.unwrap();
                assert!(
                    log_message.ends_with(end.as_bytes()) && log_message.len() <= WORDS_MAX + 40
                );
            }
        }
        let mut number = entry(sys::PMIX_LOG_STDERR, c"no");
        number.value.type_ = sys::PMIX_SIZE as sys::pmix_data_type_t;
        assert_eq!(said(&number), None);
    }

    /// run-3.
    #[test]
    fn words_that_wait_have_a_bound() {
        let half = Room::take(WAITING_MAX / 2).unwrap();
        let rest = Room::take(WAITING_MAX / 2);
        assert!(rest.is_some() && Room::take(1).is_none());
        drop(half);
        assert!(Room::take(1).is_some());
    }
}
