//! Log messages that a rank passes to its server to be written (`PMIx_Log`). Open MPI 5 does so with all of its error
//! messages.

use std::ffi::CStr;
use std::sync::atomic::{AtomicUsize, Ordering};

use pmix_sys as sys;

use super::super::ffi::text;
use super::answer::Done;

/// The longest message, in bytes; a longer one is truncated.
const MESSAGE_MAX: usize = 65_536;
/// Most bytes of messages that wait to be written; further ones are refused and counted.
const WAITING_MAX: usize = 4 << 20;

static WAITING: AtomicUsize = AtomicUsize::new(0);

/// The output stream of a message.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Stream {
    /// Standard output.
    Out,
    /// Standard error.
    Err,
}

/// Messages of one rank, to be written.
#[derive(Debug)]
pub struct LogMessage {
    /// The rank.
    pub rank: u32,
    /// The texts, in the order of the rank.
    pub texts: Vec<(Stream, Vec<u8>)>,
    pub(super) room: Room,
    pub(super) answer: Done,
}

/// The share of messages in the limit of those that wait.
#[derive(Debug)]
pub(super) struct Room(usize);

impl Room {
    pub(super) fn take(size: usize) -> Option<Self> {
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
    /// Answers that they have been written.
    pub fn succeed(self) {
        drop(self.room);
        self.answer.succeed();
    }
}

/// Text and stream of an entry; none of an entry for another destination, for example a system log.
pub(super) fn text_of(info: &sys::pmix_info_t) -> Option<(Stream, Vec<u8>)> {
    let key = text(&info.key);
    let stream = match key.as_c_str() {
        key if key == sys::PMIX_LOG_STDERR => Stream::Err,
        key if key == sys::PMIX_LOG_STDOUT => Stream::Out,
        _ => return None,
    };
    if u32::from(info.value.type_) != sys::PMIX_STRING {
        return None;
    }
    // SAFETY: the type tag states which member of the union was written: a terminated string or NULL.
    let string = unsafe {
        let string = info.value.data.string;
        (!string.is_null()).then(|| CStr::from_ptr(string).to_bytes())
    }?;
    let mut kept = string[..string.len().min(MESSAGE_MAX)].to_vec();
    if string.len() > MESSAGE_MAX {
        let more = string.len() - MESSAGE_MAX;
        kept.extend(format!("\n[{more} more bytes omitted]\n").as_bytes());
    }
    Some((stream, kept))
}

#[cfg(test)]
mod tests {
    use super::super::super::ffi::blank_info;
    use super::*;

    fn entry(key: &CStr, string: &CStr) -> sys::pmix_info_t {
        let mut info = blank_info(key);
        info.value.type_ = sys::PMIX_STRING as sys::pmix_data_type_t;
        info.value.data.string = string.as_ptr().cast_mut();
        info
    }

    /// run-3.
    #[test]
    fn messages_for_both_streams_are_accepted_and_truncated() {
        let long = std::ffi::CString::new(vec![b'x'; MESSAGE_MAX + 7]).unwrap();
        let end = "xx\n[7 more bytes omitted]\n";
        for (key, string, expected) in [
            (sys::PMIX_LOG_STDERR, c"no", Some((Stream::Err, "no"))),
            (sys::PMIX_LOG_STDOUT, c"yes", Some((Stream::Out, "yes"))),
            (sys::PMIX_LOG_STDERR, &long, Some((Stream::Err, end))),
            (c"pmix.log.syslog", c"no", None),
        ] {
            let found = text_of(&entry(key, string));
            let (stream, string) = found.unzip();
            assert_eq!(stream, expected.map(|(stream, _)| stream), "{key:?}");
            if let Some((_, end)) = expected {
                let string = string.unwrap();
                assert!(string.ends_with(end.as_bytes()) && string.len() <= MESSAGE_MAX + 40);
            }
        }
        let mut number = entry(sys::PMIX_LOG_STDERR, c"no");
        number.value.type_ = sys::PMIX_SIZE as sys::pmix_data_type_t;
        assert_eq!(text_of(&number), None);
    }

    /// run-3.
    #[test]
    fn waiting_messages_are_bounded() {
        let half = Room::take(WAITING_MAX / 2).unwrap();
        let rest = Room::take(WAITING_MAX / 2);
        assert!(rest.is_some() && Room::take(1).is_none());
        drop(half);
        assert!(Room::take(1).is_some());
    }
}
