//! libmuster as its users see it: the header, the installed library, C programs.

mod common;
mod fortran;
mod header;
mod library;
mod memory;
mod program;
