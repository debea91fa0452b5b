//! Maps and sets in sorted arrays, with the names of `BTreeMap` and `BTreeSet`.
//!
//! An engine holds many small collections: the timers of a dozen links, the subjects that one link still has to send.
//! A node of a B-tree has room for eleven entries, and a walk through a tree jumps. Here the entries lie one after
//! another, with little room that is not used, and a collection that has become empty gives its room back.
//!
//! A lookup is a binary search. An insertion or a removal moves the entries before or after the place, whichever are
//! fewer, so work at either end is as cheap as in a queue. In the middle of `n` entries it moves up to `n / 2` of them:
//! put large values into boxes, and use a `BTreeMap` where there may be many thousands.
#![forbid(unsafe_code)]

mod map;
mod set;

pub use map::SortedMap;
pub use set::SortedSet;
