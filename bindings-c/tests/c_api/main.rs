//! libmuster as its users see it: the header, the installed library, C programs.

mod common;
mod header;
mod library;
mod program;
