//! The C, Fortran and Rust interfaces as programs use them: examples, PMIx events, the MPI profiling
//! interface.

mod examples;
mod pmix;
mod pmpi;
mod zones;
