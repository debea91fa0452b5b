//! NIDs: a NID that is written and parsed is unchanged, and a malformed one is refused with a remedy.

use muster_fabric::{Address, EndpointName, Net, NetKind, Nid, NidList, PORT_DEFAULT};
use proptest::prelude::*;
use std::net::Ipv4Addr;

fn any_net() -> impl Strategy<Value = Net> {
    let kind = prop::sample::select(NetKind::ALL.to_vec());
    (kind, any::<u16>()).prop_map(|(kind, number)| Net { kind, number })
}

fn any_nid() -> impl Strategy<Value = Nid> {
    let ip = any::<u32>().prop_map(|bits| Address::Ip(Ipv4Addr::from(bits)));
    let interface = "[a-z][a-z0-9._-]{0,14}".prop_map(Address::Interface);
    let port = prop_oneof![Just(PORT_DEFAULT), any::<u16>()];
    let bytes = prop::collection::vec(any::<u8>(), 0..=64);
    let parts = (prop_oneof![ip, interface], port, any_net(), bytes);
    parts.prop_map(|(address, port, net, bytes)| Nid {
        name: EndpointName::new(&bytes).filter(|_| net.kind.has_names()),
        address,
        port,
        net,
    })
}

proptest! {
    #[test]
    fn a_written_nid_parses_to_itself(nid in any_nid()) {
        let read = nid.to_string().parse::<Nid>();
        // NIDs are compared without the providers' addresses.
        prop_assert_eq!(read.clone().map(|read| read.name), Ok(nid.name.clone()));
        prop_assert_eq!(read, Ok(nid));
    }

    #[test]
    fn a_written_list_parses_to_itself(nids in prop::collection::vec(any_nid(), 1..8)) {
        // A list that names a NID twice is refused, which another test covers.
        let Ok(list) = NidList::new(nids) else { return Ok(()) };
        prop_assert_eq!(list.to_string().parse::<NidList>(), Ok(list));
    }

    #[test]
    fn no_text_makes_the_parser_panic(text in ".*") {
        let _ = text.parse::<NidList>();
    }

    #[test]
    fn malformed_nids_do_not_make_the_parser_panic(
        text in "[0-9a-z.:\\[\\]]{0,20}@?[a-z0-9]{0,6}(/[0-9a-g]{0,4})?(,[0-9.:]*@(udp|cxi)[0-9/]{0,6}){0,3}",
    ) {
        if let Ok(list) = text.parse::<NidList>() {
            prop_assert_eq!(list.to_string().parse::<NidList>(), Ok(list));
        }
    }
}

fn refusal(text: &str) -> String {
    text.parse::<NidList>().expect_err(text).to_string()
}

#[test]
fn short_forms_equal_the_long_ones() {
    let short: Nid = "192.0.2.7@udp".parse().unwrap();
    let long: Nid = "192.0.2.7:7741@udp0".parse().unwrap();
    assert_eq!(
        (short.clone(), short.to_string().as_str()),
        (long, "192.0.2.7@udp0")
    );
    let interface: Nid = "eth0:0@o2ib1".parse().unwrap();
    assert_eq!(interface.address, Address::Interface("eth0".to_owned()));
    assert_eq!(interface.to_string(), "eth0:0@o2ib1");
}

/// The same interface has another address of the provider after each start.
#[test]
fn nids_are_equal_and_lists_are_not_if_only_the_providers_addresses_differ() {
    let nid = |text: &str| text.parse::<Nid>().unwrap();
    let (before, after) = (nid("192.0.2.7@cxi0/0a1b"), nid("192.0.2.7@cxi0/0a1c"));
    assert_eq!(before, after);
    assert_eq!(before, nid("192.0.2.7@cxi0"));
    assert_ne!(before.name, after.name);
    let list = |nid: &Nid| NidList::new(vec![nid.clone()]).unwrap();
    assert_ne!(list(&before), list(&after));
    assert!(
        NidList::new(vec![before, after]).is_err(),
        "one interface twice"
    );
}

#[test]
fn each_refusal_names_the_value_the_reason_and_the_remedy() {
    assert_eq!(
        refusal("192.0.2.7"),
        "\"192.0.2.7\" is no NID: it has no net; write address@net, such as 192.0.2.7@udp0"
    );
    for net in [
        "", "eth", "udp00", "udp-1", "udp+1", "udp65536", "o2ib0x", "UDP",
    ] {
        assert_eq!(
            refusal(&format!("192.0.2.7@{net}")),
            format!(
                "{net:?} is no net; nets are udp, tcp, o2ib, psm, shm, o2ud, cxi, efa, opx and a \
                 number, such as udp0"
            )
        );
    }
    for address in [
        "",
        "192.0.2.300",
        "1.2.3",
        "eth 0",
        "a-name-that-is-too-long",
        "eth/0",
    ] {
        assert_eq!(
            refusal(&format!("{address}@udp")),
            format!(
                "\"{address}@udp\" is no NID: what stands before the net is neither an IPv4 \
                 address nor the name of an interface; write 192.0.2.7@udp0 or eth0@udp0"
            )
        );
    }
    for name in ["cxi0/", "cxi0/0a1", "efa/0g", "opx0/a/b", "udp0/0a1b"] {
        assert_eq!(
            refusal(&format!("192.0.2.7@{name}")),
            format!(
                "\"192.0.2.7@{name}\" is no NID: what stands behind the net is not a provider's address in \
                 hexadecimal, or the net has no such addresses; copy the NID from what \"muster rails\" prints on its \
                 node"
            )
        );
    }
    for port in ["", "65536", "+1", "x"] {
        assert_eq!(
            refusal(&format!("192.0.2.7:{port}@udp")),
            format!("\"192.0.2.7:{port}@udp\" is no NID: the port is not a number from 0 to 65535")
        );
    }
    assert_eq!(
        refusal("[2001:db8::1]:7741@udp"),
        "\"[2001:db8::1]:7741@udp\" is an IPv6 address, which no net of this build can use; give \
         an IPv4 address"
    );
}

#[test]
fn a_list_has_at_least_one_nid_at_most_eight_and_none_twice() {
    let empty = "the list of NIDs is empty; give at least one, such as 192.0.2.7@udp0";
    assert_eq!(
        (refusal(""), refusal("  ")),
        (empty.to_owned(), empty.to_owned())
    );
    let many: Vec<String> = (1..=9).map(|host| format!("192.0.2.{host}@udp")).collect();
    assert_eq!(
        refusal(&many.join(",")),
        "the list has 9 NIDs; at most 8 are allowed"
    );
    assert_eq!(
        refusal("192.0.2.7@udp, 192.0.2.7:7741@udp0"),
        "the NID 192.0.2.7@udp0 is in the list twice; name each interface once"
    );
}
