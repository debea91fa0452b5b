//! libmuster as its users get it: the header, the installed library, C programs.

mod common;
mod fortran;
mod header;
mod library;
mod memory;
mod program;
