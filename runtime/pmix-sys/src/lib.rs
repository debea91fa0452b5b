//! Types and constants of the installed PMIx.
