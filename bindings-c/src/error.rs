//! The error codes: one list, numbers forever.
//!
//! A number that was given out keeps its meaning; one that goes out of use stays in the list as a
//! comment, so that nobody gives it a second meaning. Groups say how far a trouble reaches: this
//! call (-1..), this node's agent (-20..), this process (-60..).

use std::cell::UnsafeCell;
use std::ffi::{CStr, c_char, c_int};

macro_rules! codes {
    ($(
        $(#[$outer:meta])*
        $variant:ident = $number:literal, $name:literal, $sentence:literal;
    )*) => {
        /// What a call that failed returns.
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
    /// In a child of the process that called init.
    Forked = -4, c"MUSTER_ERR_FORKED", c"the context belongs to the parent of this process";
    /// A setting is wrong.
    Config = -5, c"MUSTER_ERR_CONFIG", c"a setting in the config or the environment is wrong";
    /// No such node.
    NoSuchNode = -6, c"MUSTER_ERR_NO_SUCH_NODE", c"no node with that index is known";
    /// No such rank.
    NoSuchRank = -7, c"MUSTER_ERR_NO_SUCH_RANK", c"no rank with that number is known";
    /// Not from within a callback.
    Busy = -8, c"MUSTER_ERR_BUSY", c"not from within a callback, nor while events go to another";
    /// Something is longer than may be, or there are too many.
    Limit = -9, c"MUSTER_ERR_LIMIT", c"a key, a value or all of them together are too long";
    /// No such attribute.
    NoSuchKey = -10, c"MUSTER_ERR_NO_SUCH_KEY", c"the node has no attribute of that key";
    /// The agent refused what it was asked for.
    Declined = -11, c"MUSTER_ERR_REFUSED", c"the agent refused the request; nothing was changed";

    /// The agent could not be started.
    AgentStart = -20, c"MUSTER_ERR_AGENT_START", c"the agent of this node could not be started";
    /// The agent does not accept this process.
    AgentRefused = -21, c"MUSTER_ERR_AGENT_REFUSED",
        c"the agent of this node does not accept this process";
    /// The agent has gone.
    AgentLost = -22, c"MUSTER_ERR_AGENT_LOST",
        c"no agent answers on this node now; muster_dispatch looks for one";
    /// No answer in time.
    Timeout = -23, c"MUSTER_ERR_TIMEOUT", c"no answer before the deadline";
    /// The operating system refused something.
    System = -24, c"MUSTER_ERR_SYSTEM", c"the operating system refused something";
    /// Something belongs to somebody else.
    Permission = -25, c"MUSTER_ERR_PERMISSION",
        c"a directory, socket or key belongs to somebody else";

    /// The others declared this node failed.
    Outcast = -60, c"MUSTER_ERR_OUTCAST", c"the other nodes declared this node failed";
    /// A defect.
    Internal = -99, c"MUSTER_ERR_INTERNAL", c"a defect of Muster; do not use the context again";
}

/// A call that failed: the code for the program, the words for people.
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
    // A plain array: no allocation that could fail, no destructor that could run too early.
    static LAST: UnsafeCell<[u8; MESSAGE_SIZE]> = const { UnsafeCell::new([0; MESSAGE_SIZE]) };
}

/// Keeps the words of a failure for [`muster_last_error_message`], cut to fit.
pub(crate) fn remember(message: &str) {
    let mut end = message.len().min(MESSAGE_SIZE - 1);
    while !message.is_char_boundary(end) {
        end -= 1;
    }
    // A thread that is ending has no such place any more; then there is nobody to read it either.
    let _ = LAST.try_with(|last| {
        // SAFETY: only this thread reaches the array, and no reference to it lives on.
        let last = unsafe { &mut *last.get() };
        last[..end].copy_from_slice(&message.as_bytes()[..end]);
        // A NUL within the message ends it early, which is harmless.
        last[end..].fill(0);
    });
}

/// The sentence of a code.
#[unsafe(no_mangle)]
pub extern "C" fn muster_strerror(code: c_int) -> *const c_char {
    let sentence = match CODES.iter().find(|(number, ..)| *number == code) {
        Some((_, _, sentence)) => sentence,
        None if code >= 0 => c"success",
        None => c"no code of Muster",
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

/// The words of this thread's last failure.
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
    fn no_number_is_given_twice() {
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
