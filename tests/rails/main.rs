//! Rails that fail, between hosts with networks of their own.

mod default_rails;
mod lanes;
mod relay;
mod verbs;
mod zones;
