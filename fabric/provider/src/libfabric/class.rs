//! Traffic class: the quality of service that a lane requests of the network, and the provider's answer.
//!
//! Messages of the datagram lanes are short and urgent: these lanes request `FI_TC_LOW_LATENCY`. A provider
//! that has traffic classes reports in its info which one it will use. Some providers accept a class only when
//! the endpoint is opened and report none, so the class is also requested there. If the provider then refuses,
//! the endpoint is opened without a class.
//!
//! The bulk lane requests no class: its two streams share an endpoint, and `FI_TC_BULK_DATA` would make TCP
//! delay short messages. The udp and tcp providers mark nothing: their packets are marked by the module `dscp`.

use super::info::Info;
use crate::error::CallError;
use libfabric_sys as sys;
use std::fmt;

/// The class that datagram lanes request.
pub const LOW_LATENCY: u32 = sys::FI_TC_LOW_LATENCY;

/// The result of requesting a traffic class of low latency.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum TrafficClass {
    /// The provider uses this class; the number is libfabric's.
    Reported(u32),
    /// The provider reports no class: most have none.
    Unreported,
    /// The provider refuses the class, and works without it.
    Refused,
    /// The provider has none; the kernel marks the packets with this DSCP.
    Marked(u8),
}

impl fmt::Display for TrafficClass {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let label = match *self {
            TrafficClass::Unreported => "untold",
            TrafficClass::Refused => "refused",
            TrafficClass::Marked(dscp) => return write!(f, "dscp-{dscp}"),
            TrafficClass::Reported(sys::FI_TC_BEST_EFFORT) => "best-effort",
            TrafficClass::Reported(sys::FI_TC_LOW_LATENCY) => "low-latency",
            TrafficClass::Reported(sys::FI_TC_DEDICATED_ACCESS) => "dedicated-access",
            TrafficClass::Reported(sys::FI_TC_BULK_DATA) => "bulk-data",
            TrafficClass::Reported(sys::FI_TC_SCAVENGER) => "scavenger",
            TrafficClass::Reported(sys::FI_TC_NETWORK_CTRL) => "network-control",
            TrafficClass::Reported(dscp) if dscp & !DSCP_MASK == sys::FI_TC_DSCP => {
                return write!(f, "dscp-{}", dscp & DSCP_MASK);
            }
            TrafficClass::Reported(own) => return write!(f, "{own:#x}"),
        };
        f.write_str(label)
    }
}

/// The bits of a class that hold a DSCP.
const DSCP_MASK: u32 = 0xff;

/// Calls `open` with the requested class in the info and, if that fails, without a class.
pub(super) fn open<T>(
    info: &mut Info,
    requested: Option<u32>,
    mut open: impl FnMut(&Info) -> Result<T, CallError>,
) -> Result<(T, TrafficClass), CallError> {
    let reported = info.class();
    if reported == sys::FI_TC_UNSPEC {
        info.set_class(requested.unwrap_or(sys::FI_TC_UNSPEC));
    }
    match open(info) {
        // An error about the address has nothing to do with the class.
        Err(error) if requested.is_none() || is_of_address(&error) => Err(error),
        Err(_) => {
            info.set_class(sys::FI_TC_UNSPEC);
            Ok((open(info)?, TrafficClass::Refused))
        }
        Ok(opened) if reported == sys::FI_TC_UNSPEC => Ok((opened, TrafficClass::Unreported)),
        Ok(opened) => Ok((opened, TrafficClass::Reported(reported))),
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
    fn each_class_has_a_label() {
        let labels = [LOW_LATENCY, 0x100 | 46, 0x0800_0001]
            .map(|class| TrafficClass::Reported(class).to_string());
        assert_eq!(labels, ["low-latency", "dscp-46", "0x8000001"]);
        assert_eq!(TrafficClass::Unreported.to_string(), "untold");
        assert_eq!(TrafficClass::Marked(46).to_string(), "dscp-46");
    }
}
