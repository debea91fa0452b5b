//! Messages to and from peers over several rails at once.
