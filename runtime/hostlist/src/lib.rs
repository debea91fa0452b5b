//! Lists of hosts, ranks and addresses as people write them: `n[01-04,07]`.
//!
//! [`expand`] makes the names of a list, [`fold`] makes the list of names, [`by_number`] is their natural order. A
//! list is checked against a limit before any name is made. This crate does not know what the names mean.
#![forbid(unsafe_code)]

mod fold;
mod range;

pub use fold::{by_number, fold};
pub use range::{RangeError, Span, expand, spans};
