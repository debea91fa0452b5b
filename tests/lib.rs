//! End-to-end tests of the promises.
