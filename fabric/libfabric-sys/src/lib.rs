//! Bindings of the installed libfabric.
