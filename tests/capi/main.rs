//! The C, Fortran and Rust interfaces as programs use them: examples, PMIx events, the profiling interface of MPI.

mod examples;
mod pmix;
mod pmpi;
