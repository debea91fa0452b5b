//! Clients against a miniature agent: attaching, leaving, deaths, events, progress.

mod support;

mod attach;
mod deaths;
mod feeding;
mod greeting;
mod leaving;
mod one_zone;
mod progress;

/// The rank that tests start: this program with this test's name.
#[test]
fn role() {
    support::rank::role();
}
