//! Rails that fail, between hosts with networks of their own.

mod default_rails;
mod lanes;
mod names;
mod put_get;
mod relay;
mod verbs;
mod zones;
