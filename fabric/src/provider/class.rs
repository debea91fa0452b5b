//! Traffic class: what the network is asked to do with a lane's messages, and what the provider says to that.
//!
//! All that goes by the datagram lanes is short and urgent: they ask for `FI_TC_LOW_LATENCY`. libfabric has a
//! provider answer with the class that it will use, where it has any. Some take one only where the endpoint is
//! opened and answer nothing, so it is asked for there as well; from one that refuses it is taken back.
//!
//! Not here: the bulk lane, whose two streams share an endpoint (and `FI_TC_BULK_DATA` would have TCP hold short
//! messages back); and DSCP, which neither udp nor tcp nor verbs lets through to the network.

use super::info::Info;
use crate::error::CallError;
use libfabric_sys as sys;
use std::fmt;

/// What datagram lanes ask for.
pub(crate) const LOW_LATENCY: u32 = sys::FI_TC_LOW_LATENCY;

/// What came of the question for a traffic class of low latency.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum TrafficClass {
    /// The provider uses this one, as libfabric numbers them.
    Told(u32),
    /// The provider does not say: most have none.
    Untold,
    /// The provider refuses to work in one, and works without.
    Refused,
}

impl fmt::Display for TrafficClass {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let label = match *self {
            TrafficClass::Untold => "untold",
            TrafficClass::Refused => "refused",
            TrafficClass::Told(sys::FI_TC_BEST_EFFORT) => "best-effort",
            TrafficClass::Told(sys::FI_TC_LOW_LATENCY) => "low-latency",
            TrafficClass::Told(sys::FI_TC_DEDICATED_ACCESS) => "dedicated-access",
            TrafficClass::Told(sys::FI_TC_BULK_DATA) => "bulk-data",
            TrafficClass::Told(sys::FI_TC_SCAVENGER) => "scavenger",
            TrafficClass::Told(sys::FI_TC_NETWORK_CTRL) => "network-control",
            TrafficClass::Told(dscp) if dscp & !DSCP_MASK == sys::FI_TC_DSCP => {
                return write!(f, "dscp-{}", dscp & DSCP_MASK);
            }
            TrafficClass::Told(own) => return write!(f, "{own:#x}"),
        };
        f.write_str(label)
    }
}

/// The bits of a class that hold a DSCP.
const DSCP_MASK: u32 = 0xff;

/// Opens with the info in the class that is asked for, or else in none.
pub(super) fn open<T>(
    info: &mut Info,
    asked: Option<u32>,
    mut open: impl FnMut(&Info) -> Result<T, CallError>,
) -> Result<(T, TrafficClass), CallError> {
    let told = info.class();
    if told == sys::FI_TC_UNSPEC {
        info.set_class(asked.unwrap_or(sys::FI_TC_UNSPEC));
    }
    match open(info) {
        // Whoever is short of an address does not complain of a class.
        Err(error) if asked.is_none() || is_of_address(&error) => Err(error),
        Err(_) => {
            info.set_class(sys::FI_TC_UNSPEC);
            Ok((open(info)?, TrafficClass::Refused))
        }
        Ok(opened) if told == sys::FI_TC_UNSPEC => Ok((opened, TrafficClass::Untold)),
        Ok(opened) => Ok((opened, TrafficClass::Told(told))),
    }
}

fn is_of_address(error: &CallError) -> bool {
    let codes = [libc::EADDRINUSE, libc::EADDRNOTAVAIL, libc::EACCES];
    codes.contains(&error.code)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_class_has_a_word() {
        let words = [LOW_LATENCY, 0x100 | 46, 0x0800_0001]
            .map(|class| TrafficClass::Told(class).to_string());
        assert_eq!(words, ["low-latency", "dscp-46", "0x8000001"]);
        assert_eq!(TrafficClass::Untold.to_string(), "untold");
    }
}
