//! Documents: every command of the README runs, the manual pages are complete, the rules of the house hold.

mod manual;
mod readme;
mod tidy;
