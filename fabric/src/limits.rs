//! Limits that errors name.

/// The maximum number of rules in a policy.
pub const RULES_MAX: usize = 64;

/// The maximum number of patterns on one side of a rule.
pub const PATTERNS_MAX: usize = 64;

/// The maximum of messages in a row that a rule may set.
pub const MESSAGES_MAX: u32 = 1_000_000;
