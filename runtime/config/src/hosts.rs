//! The hosts of a job, as its scheduler names them: `n[001-128],login1`. Without PMIx, an agent contacts these first.

use super::{ConfigError, GroupName, ParticipantEntry};
use muster_fabric::{Nid, NidList};
use muster_hostlist::expand;
use std::net::{Ipv4Addr, SocketAddr, ToSocketAddrs};

/// The maximum number of hosts in a list.
const HOSTS_MAX: usize = 1 << 20;
/// The maximum number of hosts that are contacted: they lead to the others. All agents of a job take the first hosts,
/// so they find each other as long as one of these is alive.
const CONTACTED_MAX: usize = 64;

/// The seeds of these hosts, at the port and on the net of this rail.
///
/// # Errors
/// An invalid list, or the first host without an address.
pub fn seeds_of_hosts(
    hosts: &str,
    rail: Option<&Nid>,
    port: u16,
) -> Result<Vec<NidList>, ConfigError> {
    let nids = nids_of_hosts(hosts, rail, port, CONTACTED_MAX)?;
    nids.into_iter()
        .map(|(_, nid)| list_of(hosts, nid))
        .collect()
}

fn list_of(hosts: &str, nid: Nid) -> Result<NidList, ConfigError> {
    NidList::new(vec![nid]).map_err(|cause| ConfigError::Hosts {
        text: hosts.to_owned(),
        why: cause.to_string(),
    })
}

/// All of these hosts as the participants of age gossip, with their names.
///
/// # Errors
/// As [`seeds_of_hosts`].
pub fn participants_of_hosts(
    hosts: &str,
    rail: Option<&Nid>,
    port: u16,
) -> Result<Vec<ParticipantEntry>, ConfigError> {
    let found = nids_of_hosts(hosts, rail, port, HOSTS_MAX)?;
    let entry = |(name, nid)| {
        Ok(ParticipantEntry {
            nids: list_of(hosts, nid)?,
            group: GroupName::default(),
            name: Some(name),
        })
    };
    found.into_iter().map(entry).collect()
}

fn nids_of_hosts(
    hosts: &str,
    rail: Option<&Nid>,
    port: u16,
    most: usize,
) -> Result<Vec<(String, Nid)>, ConfigError> {
    let refused = |why: String| ConfigError::Hosts {
        text: hosts.to_owned(),
        why,
    };
    let names = expand(hosts, HOSTS_MAX)
        .map_err(|cause| refused(format!("{cause}; write them as in n[1-4],x7")))?;
    nids_of(hosts, names.into_iter().take(most).collect(), rail, port)
}

/// The addresses of hosts by their names, at the port and on the net of this rail.
pub(crate) fn nids_of_names(
    names: Vec<String>,
    rail: Option<&Nid>,
    port: u16,
) -> Result<Vec<(String, NidList)>, ConfigError> {
    let found = nids_of("", names, rail, port)?;
    let list = |(name, nid): (String, Nid)| {
        let nids = list_of(&name, nid)?;
        Ok((name, nids))
    };
    found.into_iter().map(list).collect()
}

fn nids_of(
    hosts: &str,
    names: Vec<String>,
    rail: Option<&Nid>,
    port: u16,
) -> Result<Vec<(String, Nid)>, ConfigError> {
    let refused = |why: String| ConfigError::Hosts {
        text: hosts.to_owned(),
        why,
    };
    let (port, net) = match rail {
        Some(rail) => (rail.port, rail.net.to_string()),
        // The name of the first net if all interfaces are rails.
        None => (port, "udp0".to_owned()),
    };
    if port == 0 {
        return Err(refused(
            "their port is not known; give a rail with a port, or MUSTER_PORT".into(),
        ));
    }
    if let Some(rail) = rail.filter(|rail| rail.net.kind.has_names()) {
        return Err(refused(format!(
            "on net {} only a node itself knows its address; give the agents a rail on another net, too, or let them \
             meet through PMIx, or by --seed",
            rail.net
        )));
    }
    let nid = |name: String| -> Result<(String, Nid), ConfigError> {
        let address = address_of(&name).map_err(|why| {
            refused(format!(
                "{name}: {why}; write names that have addresses, as in n[1-4]"
            ))
        })?;
        let nid = format!("{address}:{port}@{net}");
        let nid = nid.parse().map_err(|cause| refused(format!("{cause}")))?;
        Ok((name, nid))
    };
    names.into_iter().map(nid).collect()
}

fn address_of(name: &str) -> Result<Ipv4Addr, String> {
    let mut found = (name, 0)
        .to_socket_addrs()
        .map_err(|cause| cause.to_string())?;
    let v4 = found.find_map(|address| match address {
        SocketAddr::V4(address) => Some(*address.ip()),
        SocketAddr::V6(_) => None,
    });
    v4.ok_or_else(|| "it has no IPv4 address".into())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn hosts_are_contacted_at_the_port_and_net_of_the_first_rail() {
        let rail: Nid = "eth0:7000@tcp1".parse().unwrap();
        let seeds = seeds_of_hosts("127.0.0.[1-2],127.0.0.9", Some(&rail), 1).unwrap();
        let texts: Vec<String> = seeds.iter().map(ToString::to_string).collect();
        assert_eq!(
            texts,
            [
                "127.0.0.1:7000@tcp1",
                "127.0.0.2:7000@tcp1",
                "127.0.0.9:7000@tcp1"
            ]
        );
        let named: Nid = "eth0@cxi0".parse().unwrap();
        let refused = seeds_of_hosts("127.0.0.1", Some(&named), 1).unwrap_err();
        let reason = "on net cxi0 only a node itself knows its address; give the agents a rail on another net";
        assert!(refused.to_string().contains(reason), "{refused}");
        let plain = seeds_of_hosts("127.0.0.1", None, 7100).unwrap();
        assert_eq!(plain[0].to_string(), "127.0.0.1:7100@udp0");
        let many = seeds_of_hosts("127.0.[0-9].[1-250]", None, 7100).unwrap();
        assert_eq!(many.len(), CONTACTED_MAX);
        let all = participants_of_hosts("127.0.[0-9].[1-250]", Some(&rail), 1).unwrap();
        assert_eq!(all.len(), 2500);
        assert_eq!(all[2499].nids.to_string(), "127.0.9.250:7000@tcp1");
        assert_eq!(all[2499].name.as_deref(), Some("127.0.9.250"));
    }

    #[test]
    fn an_unusable_list_has_a_remedy() {
        for (hosts, port, word) in [
            ("n[1-", 1, "n[1-"),
            ("no-such-host.invalid", 1, "no-such-host.invalid"),
            ("127.0.0.1", 0, "port"),
        ] {
            let text = seeds_of_hosts(hosts, None, port).unwrap_err().to_string();
            assert!(
                text.contains(word) && text.contains("MUSTER_HOSTS"),
                "{text}"
            );
        }
    }
}
