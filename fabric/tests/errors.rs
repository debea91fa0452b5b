//! Error messages of a fabric that cannot be opened and of peers that cannot be added.

use crate::common::{config, in_child, library};
use muster_fabric::{Fabric, FabricConfig, Transport};

/// The interfaces of the machine that runs the test, as the error messages show them.
fn known() -> String {
    let interfaces = library().interfaces();
    let names: Vec<String> = interfaces.iter().map(ToString::to_string).collect();
    assert!(names.contains(&"lo (127.0.0.1)".to_owned()), "{names:?}");
    names.join(", ")
}

fn refusal(rails: &str) -> String {
    Fabric::open(&config(rails)).expect_err(rails).to_string()
}

#[test]
fn an_empty_list_of_rails_is_refused() {
    let error = Fabric::open(&FabricConfig::new(library(), Vec::new())).unwrap_err();
    assert_eq!(
        error.to_string(),
        format!(
            "no rail was given; name at least one, such as 192.0.2.7@udp0; this node has: {}",
            known()
        )
    );
}

#[test]
fn too_many_rails_are_refused() {
    let rails: Vec<String> = (1..=9)
        .map(|host| format!("127.42.1.{host}:0@udp"))
        .collect();
    assert_eq!(
        refusal(&rails.join(",")),
        "9 rails were given; at most 8 are allowed: leave some out, or remove one first"
    );
}

/// cfg-040.
#[test]
fn two_rails_on_one_interface_are_refused() {
    let expected = |first: &str, second: &str, address: &str| {
        format!(
            "rails {first} and {second} are the same interface ({address}); name each interface \
             once, two rails on one interface are not two rails"
        )
    };
    assert_eq!(
        refusal("127.42.2.1:7001@udp,127.42.2.2:0@udp,127.42.2.1:7002@udp1"),
        expected("127.42.2.1:7001@udp0", "127.42.2.1:7002@udp1", "127.42.2.1")
    );
    assert_eq!(
        refusal("lo:0@udp,127.0.0.1:0@udp"),
        expected("lo:0@udp0", "127.0.0.1:0@udp0", "127.0.0.1")
    );
}

#[test]
fn a_missing_interface_is_refused() {
    assert_eq!(
        refusal("ib77@udp"),
        format!(
            "rail ib77@udp0: there is no interface \"ib77\" that is up and has an IPv4 address; \
             this node has: {}",
            known()
        )
    );
}

#[test]
fn an_address_of_another_node_is_refused() {
    assert_eq!(
        refusal("203.0.113.5:0@udp"),
        format!(
            "rail 203.0.113.5:0@udp0: the address 203.0.113.5 belongs to no interface of this \
             node; this node has: {}",
            known()
        )
    );
}

#[test]
fn a_port_in_use_is_refused() {
    let first = Fabric::open(&config("127.42.3.1:0@udp")).unwrap();
    let port = first.local_nids().as_slice()[0].port;
    let nid = format!("127.42.3.1:{port}@udp0");
    assert_eq!(
        refusal(&nid),
        format!(
            "rail {nid}: port {port} of 127.42.3.1 is in use by another process; give another \
             port, or port 0 to let the system choose"
        )
    );
    drop(first);
    Fabric::open(&config(&nid)).expect("a closed fabric releases its port");
}

#[test]
fn a_port_is_refused_if_its_beat_port_is_in_use() {
    let port = {
        let fabric = Fabric::open(&config("127.42.9.1:0@udp")).unwrap();
        fabric.local_nids().as_slice()[0].port
    };
    let next = port + 1;
    let other = std::net::UdpSocket::bind(("127.42.9.1", next)).unwrap();
    let nid = format!("127.42.9.1:{port}@udp0");
    assert_eq!(
        refusal(&nid),
        format!(
            "rail {nid}: port {next} of 127.42.9.1, which carries the beats of port {port}, is in \
             use by another process; give a port whose next one is free too, or port 0 to let the \
             system choose"
        )
    );
    drop(other);
    Fabric::open(&config(&nid)).expect("the refused rail has released its port");
}

#[test]
fn the_last_port_is_refused() {
    assert_eq!(
        refusal("127.42.9.2:65535@udp"),
        "rail 127.42.9.2:65535@udp0: after port 65535 there is none for the rail's beats; give a \
         port below it"
    );
}

#[test]
fn a_refused_rail_closes_the_rails_before_it() {
    let port = {
        let fabric = Fabric::open(&config("127.42.5.1:0@udp")).unwrap();
        fabric.local_nids().as_slice()[0].port
    };
    refusal(&format!("127.42.5.1:{port}@udp,203.0.113.5@udp"));
    Fabric::open(&config(&format!("127.42.5.1:{port}@udp"))).expect("the port is free again");
}

#[test]
fn an_unreachable_peer_is_refused() {
    let mut config = config("127.42.6.1:0@udp");
    config.relay = false;
    let mut fabric = Fabric::open(&config).unwrap();
    let mut refusal = |nids: &str| fabric.peer(&nids.parse().unwrap()).unwrap_err().to_string();
    assert_eq!(
        refusal("192.0.2.7@udp1,192.0.2.7@o2ib0"),
        "the peer 192.0.2.7@udp1,192.0.2.7@o2ib0 is on no net of this node: its rails are on \
         o2ib0, udp1, ours on udp0; give both a rail on one net, or switch \
         relaying on"
    );
    assert_eq!(
        refusal("eth0@udp"),
        "the NID eth0@udp0 cannot be sent to: it has no address"
    );
    assert_eq!(
        refusal("127.42.6.2@udp,127.42.6.2:0@udp"),
        "the NID 127.42.6.2:0@udp0 cannot be sent to: it has no port"
    );
    assert_eq!(
        refusal("127.42.6.2:65535@udp"),
        "the NID 127.42.6.2:65535@udp0 cannot be sent to: it has no port for beats (the next one)"
    );
}

#[test]
fn too_many_peers_are_refused() {
    let mut config = config("127.42.7.1:0@udp");
    config.peers_max = 1;
    let mut fabric = Fabric::open(&config).unwrap();
    let first = fabric.peer(&"127.42.7.2@udp".parse().unwrap()).unwrap();
    let second = "127.42.7.3@udp".parse().unwrap();
    assert_eq!(
        fabric.peer(&second).unwrap_err().to_string(),
        "the limit of 1 known peers is reached; raise peers_max, or forget some"
    );
    fabric.forget(first);
    assert_ne!(
        fabric.peer(&second).unwrap(),
        first,
        "a handle is never reused"
    );
}

/// RS-05: each layer must time out before the layer above it does.
#[test]
fn time_outs_in_the_wrong_order_are_refused() {
    let mut config = config("127.42.9.1:0@udp");
    config.timeouts.upper_us = Some(3_000_000);
    let error = Fabric::open(&config).unwrap_err().to_string();
    assert_eq!(
        error,
        "the reply time-out, 10000000 us, is not shorter than the upper time-out, 3000000 us; the \
         order is transport < retry < reply < upper: lower the one or raise the other"
    );
    config.timeouts.upper_us = Some(10_000_001);
    assert!(Fabric::open(&config).is_ok());
}

#[test]
fn a_missing_provider_is_reported() {
    // libfabric reads FI_PROVIDER once, when it is loaded, so this needs another process.
    if !in_child(
        module_path!(),
        "a_missing_provider_is_reported",
        &[("FI_PROVIDER", "tcp")],
    ) {
        return;
    }
    let (major, minor) = library().version();
    assert_eq!(
        refusal("127.42.8.1:0@udp"),
        format!(
            "rail 127.42.8.1:0@udp0: libfabric {major}.{minor} offers no provider \"udp\" here \
             (fi_getinfo failed: No data available (61)); unset FI_PROVIDER if it is \
             set, or install a libfabric that was built with udp"
        )
    );
    assert_eq!(library().interfaces(), []);
}
