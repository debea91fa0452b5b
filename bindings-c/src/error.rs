//! The error codes. Their numbers never change.
//!
//! A number keeps its meaning. A code that goes out of use stays in the list as a comment, so that its number is not
//! given out again. A group states what is affected: the call (-1..), this node's agent (-20..), this
//! process (-60..).

use std::cell::UnsafeCell;
use std::ffi::{CStr, c_char, c_int};

macro_rules! codes {
    ($(
        $(#[$outer:meta])*
        $variant:ident = $number:literal, $name:literal, $sentence:literal;
    )*) => {
        /// The negative number that a failed call returns.
        #[derive(Debug, Clone, Copy, PartialEq, Eq)]
        #[repr(i32)]
        pub enum Code { $($(#[$outer])* $variant = $number,)* }

        /// Number, name and sentence of every code.
        pub const CODES: &[(c_int, &CStr, &CStr)] = &[$(($number, $name, $sentence),)*];
    };
}

codes! {
    /// An argument is NULL or out of its range.
    Argument = -1, c"MUSTER_ERR_ARGUMENT", c"an argument is NULL or out of its range";
    /// `struct_size` is not that of a known version.
    StructSize = -2, c"MUSTER_ERR_STRUCT_SIZE",
        c"struct_size is not set; start from the _INIT macro";
    /// Before init or after finalize.
    NotInitialized = -3, c"MUSTER_ERR_NOT_INITIALIZED",
        c"muster_init was not called, or the last muster_finalize was";
    /// In a forked child of the process that called init.
    Forked = -4, c"MUSTER_ERR_FORKED", c"the context belongs to the parent of this process";
    /// A setting is wrong.
    Config = -5, c"MUSTER_ERR_CONFIG", c"a setting in the config or the environment is wrong";
    /// No such node.
    NoSuchNode = -6, c"MUSTER_ERR_NO_SUCH_NODE", c"no node with that index is known";
    /// No such rank.
    NoSuchRank = -7, c"MUSTER_ERR_NO_SUCH_RANK", c"no rank with that number is known";
    /// Not possible within a callback, or while another consumer takes the events.
    Busy = -8, c"MUSTER_ERR_BUSY", c"not possible in a callback, or while a callback gets all events";
    /// A length or a number is above its limit.
    Limit = -9, c"MUSTER_ERR_LIMIT", c"a key, a value or their sum is above its limit";
    /// No such attribute.
    NoSuchKey = -10, c"MUSTER_ERR_NO_SUCH_KEY", c"the node has no attribute of that key";
    /// The agent refused the request.
    Declined = -11, c"MUSTER_ERR_REFUSED", c"the agent refused the request; nothing was changed";
    /// No such zone.
    NoSuchZone = -12, c"MUSTER_ERR_NO_SUCH_ZONE", c"no zone with that number is known";

    /// The agent could not be started.
    AgentStart = -20, c"MUSTER_ERR_AGENT_START", c"the agent of this node could not be started";
    /// The agent does not accept this process.
    AgentRefused = -21, c"MUSTER_ERR_AGENT_REFUSED",
        c"the agent of this node does not accept this process";
    /// The agent is gone.
    AgentLost = -22, c"MUSTER_ERR_AGENT_LOST",
        c"no agent answers on this node now; muster_dispatch looks for one at once";
    /// No answer in time.
    Timeout = -23, c"MUSTER_ERR_TIMEOUT", c"no answer before the deadline";
    /// The operating system refused something.
    System = -24, c"MUSTER_ERR_SYSTEM", c"the operating system refused something";
    /// Something belongs to another user.
    Permission = -25, c"MUSTER_ERR_PERMISSION",
        c"a directory, socket or key belongs to another user";

    /// The other members declared this node failed.
    Outcast = -60, c"MUSTER_ERR_OUTCAST", c"the other nodes declared this node failed";
    /// A defect.
    Internal = -99, c"MUSTER_ERR_INTERNAL", c"a defect of Muster; do not use the context again";
}

/// A call that failed: the code for the program, the message for people.
#[derive(Debug)]
pub(crate) struct Failure {
    pub(crate) code: Code,
    pub(crate) message: String,
}

impl Failure {
    pub(crate) fn new(code: Code, message: impl Into<String>) -> Self {
        Self {
            code,
            message: message.into(),
        }
    }
}

const MESSAGE_SIZE: usize = 512;

thread_local! {
    // A plain array: it needs no allocation, which could fail, and no destructor, which could run too early.
    static LAST: UnsafeCell<[u8; MESSAGE_SIZE]> = const { UnsafeCell::new([0; MESSAGE_SIZE]) };
}

/// Stores a message for [`muster_last_error_message`], truncated to fit.
pub(crate) fn remember(message: &str) {
    let mut end = message.len().min(MESSAGE_SIZE - 1);
    while !message.is_char_boundary(end) {
        end -= 1;
    }
    // An ending thread may have no thread-locals any more; then nothing can read the message either.
    let _ = LAST.try_with(|last| {
        // SAFETY: only this thread accesses the array, and no reference to it is kept.
        let last = unsafe { &mut *last.get() };
        last[..end].copy_from_slice(&message.as_bytes()[..end]);
        // A NUL within the message truncates it, which is harmless.
        last[end..].fill(0);
    });
}

/// The description of a code.
#[unsafe(no_mangle)]
pub extern "C" fn muster_strerror(code: c_int) -> *const c_char {
    let sentence = match CODES.iter().find(|(number, ..)| *number == code) {
        Some((_, _, sentence)) => sentence,
        None if code >= 0 => c"success",
        None => c"not an error code of Muster",
    };
    sentence.as_ptr()
}

/// The name of a code.
#[unsafe(no_mangle)]
pub extern "C" fn muster_error_name(code: c_int) -> *const c_char {
    let name = match CODES.iter().find(|(number, ..)| *number == code) {
        Some((_, name, _)) => name,
        None if code >= 0 => c"MUSTER_OK",
        None => c"MUSTER_ERR_UNKNOWN",
    };
    name.as_ptr()
}

/// The message of this thread's last failure.
#[unsafe(no_mangle)]
pub extern "C" fn muster_last_error_message() -> *const c_char {
    LAST.try_with(|last| last.get().cast_const().cast::<c_char>())
        .unwrap_or(c"".as_ptr())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn last() -> String {
        // SAFETY: the array of this thread always ends with a NUL.
        unsafe { CStr::from_ptr(muster_last_error_message()) }
            .to_string_lossy()
            .into_owned()
    }

    #[test]
    fn each_number_is_used_once() {
        for (index, (number, name, _)) in CODES.iter().enumerate() {
            assert!(*number < 0, "{name:?}");
            let again = CODES[..index]
                .iter()
                .any(|(n, other, _)| n == number || other == name);
            assert!(!again, "{name:?}");
        }
    }

    #[test]
    fn a_long_message_is_cut_between_characters() {
        remember(&"\u{e4}".repeat(400));
        assert_eq!(last(), "\u{e4}".repeat((MESSAGE_SIZE - 1) / 2));
        remember("short");
        assert_eq!(last(), "short");
    }
}
