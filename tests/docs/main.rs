//! Documents: every command of the README and the guide runs, links resolve, the manual pages are complete, the rules
//! of the house hold.

mod circles;
mod commands;
mod crates;
mod links;
mod manual;
mod readme;
mod tidy;
mod words;
