//! Nets: a kind of network, and a number.
//!
//! `udp0` is the first network that is used over UDP, `o2ib1` the second InfiniBand network. Two NIDs can reach each
//! other if their nets are equal: the name is a promise of the administrator who configured it. `table`
//! maps kinds of nets to providers.

use crate::error::NidError;
use crate::net_kind::NetKind;
use std::fmt;
use std::str::FromStr;

/// One network: a kind and a number. Written `udp0`; `udp` is read as `udp0`.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Net {
    /// Which kind of network.
    pub kind: NetKind,
    /// Which network of that kind.
    pub number: u16,
}

impl fmt::Display for Net {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}{}", self.kind.word(), self.number)
    }
}

impl FromStr for Net {
    type Err = NidError;

    fn from_str(text: &str) -> Result<Net, NidError> {
        let unknown = || NidError::UnknownNet {
            net: text.to_owned(),
        };
        let kind = NetKind::of(text).ok_or_else(unknown)?;
        let digits = &text[kind.word().len()..];
        let canonical = digits.len() == 1 || !digits.starts_with('0');
        if !canonical || !digits.bytes().all(|byte| byte.is_ascii_digit()) {
            return Err(unknown());
        }
        let number = if digits.is_empty() {
            Ok(0)
        } else {
            digits.parse()
        };
        Ok(Net {
            kind,
            number: number.map_err(|_| unknown())?,
        })
    }
}
