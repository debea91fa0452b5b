//! Default rails: the interfaces that are rails if none are configured.
//!
//! Every interface that is up is a rail, except those that do not lead to another node, or lead there only through
//! another interface: loopback, bridges (`docker0`), tunnels and point-to-point interfaces, and interfaces without a
//! carrier. If all interfaces are of these kinds, the interfaces of the first kind present are used, in this order:
//! bridges, tunnels, interfaces without a carrier, loopback.

use crate::libfabric::{Interface, Libfabric};
use crate::limits::NIDS_MAX;
use crate::link::{self, Link};

/// Kinds of interfaces that connect interfaces of the same machine.
const BRIDGES: [&str; 2] = ["bridge", "openvswitch"];
/// Kinds of interfaces whose messages leave through another interface.
const TUNNELS: [&str; 17] = [
    "tun",
    "wireguard",
    "vxlan",
    "geneve",
    "gre",
    "gretap",
    "erspan",
    "ip6gre",
    "ip6gretap",
    "ip6erspan",
    "ipip",
    "ip6tnl",
    "sit",
    "vti",
    "vti6",
    "xfrm",
    "ppp",
];

/// The interfaces of a machine, divided into default rails and interfaces that are left out.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct DefaultRails {
    /// The default rails.
    pub chosen: Vec<Interface>,
    /// Interfaces that are not rails, each with the reason.
    pub left_out: Vec<(Interface, String)>,
    /// The reason why interfaces were chosen that are otherwise left out.
    pub makeshift: Option<String>,
}

impl DefaultRails {
    /// Chooses among the interfaces that are up now.
    #[must_use]
    pub fn choose(library: &Libfabric) -> DefaultRails {
        // If the kernel does not list its links, all interfaces are taken.
        choose(library.interfaces(), &link::all().unwrap_or_default())
    }

    /// The choice as sentences: each interface that was left out, with the reason.
    pub fn reasons(&self) -> impl Iterator<Item = String> {
        let left_out = self.left_out.iter();
        let left_out = left_out.map(|(one, why)| format!("{one} is not a default rail: {why}"));
        let makeshift = self.makeshift.iter();
        left_out.chain(makeshift.map(|why| format!("default rail {why}")))
    }
}

/// What keeps an interface from being a default rail, least severe first.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
enum Defect {
    None,
    Bridge,
    Tunnel,
    NoCarrier,
    Loopback,
}

fn choose(interfaces: Vec<Interface>, links: &[Link]) -> DefaultRails {
    let mut choice = DefaultRails::default();
    let classified = interfaces
        .into_iter()
        .map(|interface| (classify(&interface, links), interface));
    let classified: Vec<((Defect, String), Interface)> = classified.collect();
    let least = classified.iter().map(|((defect, _), _)| *defect).min();
    for ((defect, why), interface) in classified {
        let is_same = |one: &&Interface| device(one) == device(&interface);
        let first = choice.chosen.iter().find(is_same);
        let why = if Some(defect) != least {
            why
        } else if let Some(first) = first.filter(|_| defect != Defect::Loopback) {
            format!("it is another address of {first}")
        } else if choice.chosen.len() == NIDS_MAX {
            format!("a node has at most {NIDS_MAX} rails")
        } else {
            if defect != Defect::None {
                choice.makeshift = Some(format!(
                    "{interface}, although {why}: no better interface is up"
                ));
            }
            choice.chosen.push(interface);
            continue;
        };
        choice.left_out.push((interface, why));
    }
    choice
}

fn classify(interface: &Interface, links: &[Link]) -> (Defect, String) {
    if interface.address.is_loopback() {
        return (
            Defect::Loopback,
            "loopback does not lead to another node".into(),
        );
    }
    let mut links = links.iter();
    let Some(link) = links.find(|link| link.name == device(interface)) else {
        return (Defect::None, String::new());
    };
    let kind = link.kind.as_deref().unwrap_or_default();
    if !link.up {
        (Defect::NoCarrier, "it has no carrier".into())
    } else if BRIDGES.contains(&kind) {
        let why = format!(
            "it is a bridge ({kind}), such as containers and virtual machines of this node use"
        );
        (Defect::Bridge, why)
    } else if TUNNELS.contains(&kind) {
        (Defect::Tunnel, format!("it is a tunnel ({kind})"))
    } else if link.point_to_point {
        let why = "it is a point-to-point interface";
        (Defect::Tunnel, why.into())
    } else {
        (Defect::None, String::new())
    }
}

/// The device of an interface. libfabric names a second address of a device by its label, such as `eth0:1`.
fn device(interface: &Interface) -> &str {
    let name = interface.name.as_str();
    name.split(':').next().unwrap_or(name)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn interface(text: &str) -> Interface {
        let (name, address) = text.split_once(' ').unwrap();
        Interface {
            name: name.into(),
            address: address.parse().unwrap(),
        }
    }

    fn link(name: &str, up: bool, kind: &str) -> Link {
        Link {
            name: name.into(),
            up,
            point_to_point: false,
            kind: (!kind.is_empty()).then(|| kind.into()),
        }
    }

    fn chosen(interfaces: &[&str], links: &[Link]) -> (Vec<String>, DefaultRails) {
        let interfaces = interfaces.iter().map(|text| interface(text)).collect();
        let choice = choose(interfaces, links);
        let names = choice.chosen.iter().map(|one| one.name.clone());
        (names.collect(), choice)
    }

    /// cfg-040 for a second address of one device.
    #[test]
    fn interfaces_that_lead_to_no_other_node_are_left_out_with_the_reason() {
        let mut ppp = link("ppp0", true, "");
        ppp.point_to_point = true;
        let links = [
            link("eth0", true, ""),
            link("docker0", true, "bridge"),
            link("wg0", true, "wireguard"),
            link("eth1", false, ""),
            link("veth0", true, "veth"),
            link("bond0", true, "bond"),
            link("eth0.7", true, "vlan"),
            ppp,
        ];
        let all = [
            "eth0 10.0.0.1",
            "eth0:1 10.0.0.9",
            "docker0 172.17.0.1",
            "wg0 10.9.0.1",
            "eth1 10.0.1.1",
            "veth0 10.0.2.1",
            "bond0 10.0.3.1",
            "eth0.7 10.0.4.1",
            "ppp0 10.0.5.1",
            "lo 127.0.0.1",
        ];
        let (names, choice) = chosen(&all, &links);
        assert_eq!(names, ["eth0", "veth0", "bond0", "eth0.7"]);
        let left: Vec<_> = choice
            .left_out
            .iter()
            .map(|(one, _)| &one.name[..])
            .collect();
        assert_eq!(left, ["eth0:1", "docker0", "wg0", "eth1", "ppp0", "lo"]);
        let reasons: Vec<String> = choice.reasons().collect();
        for (at, word) in [
            "another address",
            "bridge",
            "tunnel",
            "carrier",
            "point-to-point",
        ]
        .into_iter()
        .enumerate()
        {
            assert!(reasons[at].contains(word), "{reasons:?}");
        }
        assert_eq!(choice.makeshift, None);
        // Without the kernel's list of links all but loopback and the second address are taken.
        let (names, _) = chosen(&all, &[]);
        assert_eq!(names.len(), 8, "{names:?}");
    }

    #[test]
    fn a_bridge_is_used_if_nothing_better_is_up_and_loopback_last() {
        let links = [
            link("br0", true, "bridge"),
            link("tap0", true, "tun"),
            link("eth0", false, ""),
        ];
        let all = [
            "br0 10.0.0.1",
            "tap0 10.0.1.1",
            "eth0 10.0.2.1",
            "lo 127.0.0.1",
        ];
        for (from, name) in [(0, "br0"), (1, "tap0"), (2, "eth0"), (3, "lo")] {
            let (names, choice) = chosen(&all[from..], &links);
            assert_eq!(names, [name]);
            let why = choice.makeshift.unwrap();
            assert!(
                why.contains(name) && why.contains("no better interface"),
                "{why}"
            );
        }
    }

    #[test]
    fn at_most_the_maximum_of_rails_is_chosen() {
        let names: Vec<String> = (0..NIDS_MAX + 1)
            .map(|index| format!("eth{index} 10.0.{index}.1"))
            .collect();
        let names: Vec<&str> = names.iter().map(String::as_str).collect();
        let (chosen, choice) = chosen(&names, &[]);
        assert_eq!((chosen.len(), choice.left_out.len()), (NIDS_MAX, 1));
    }
}
