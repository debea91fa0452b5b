//! The device of an interface, for providers whose endpoints are not opened by an IP address.

use super::interfaces::{devices_of, interface_of};
use std::net::Ipv4Addr;

/// Which of the provider's devices the interface with this address belongs to.
///
/// # Errors
/// The devices, if none of them can be told to be the right one.
pub(super) fn of(offered: Vec<String>, address: Ipv4Addr) -> Result<String, Vec<String>> {
    let interface = interface_of(address).unwrap_or_default();
    choose(offered, &interface, &devices_of(&interface))
}

/// psm3 may name a device after its interface. verbs and efa add the type of the endpoint to the name of the device.
fn choose(offered: Vec<String>, interface: &str, own: &[String]) -> Result<String, Vec<String>> {
    let is_own = |offer: &&String| {
        let core = offer.split('-').next().unwrap_or(offer);
        *offer == interface || own.iter().any(|device| device == *offer || device == core)
    };
    match (offered.iter().find(is_own), &offered[..]) {
        (Some(device), _) | (None, [device]) => Ok(device.clone()),
        _ => Err(offered),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_rail_is_on_the_device_of_its_interface_or_on_the_only_one() {
        let strings =
            |list: &[&str]| -> Vec<String> { list.iter().map(ToString::to_string).collect() };
        let choose = |offered, own| choose(strings(offered), "hsn1", &strings(own));
        let found = |name: &str| Ok(name.to_owned());
        assert_eq!(choose(&["hsn0", "hsn1"], &[]), found("hsn1"));
        assert_eq!(choose(&["cxi0", "cxi1"], &["cxi1"]), found("cxi1"));
        assert_eq!(
            choose(&["efa_0-rdm", "efa_1-rdm"], &["efa_1"]),
            found("efa_1-rdm")
        );
        assert_eq!(choose(&["cxi0"], &[]), found("cxi0"));
        let all = strings(&["cxi0", "cxi10"]);
        assert_eq!(choose(&["cxi0", "cxi10"], &["cxi1"]), Err(all));
        assert_eq!(choose(&[], &["cxi1"]), Err(Vec::new()));
    }
}
