//! Rails: the local interfaces that messages are sent and received on.
//!
//! Opening a rail turns its configuration (an address or an interface, a port or none) into a pair of open lanes with
//! a full NID, or into an error with the remedy.

use crate::bucket::Bucket;
use crate::bulk::{FRAGMENT_BYTES, FRAME_BYTES};
use crate::config::FabricConfig;
use crate::error::OpenError;
use crate::lane::Lane;
use crate::message::Class;
use crate::peer::Path;
use crate::peer_handle::PeerHandle;
use crate::relay::ENVELOPE_BYTES;
use crate::stats::{Counters, UsageRate};
use crate::view::{Credits, RailView};
use muster_provider::{
    Address, BEAT_PORT_OFFSET, CallError, EndpointName, Interface, LOW_LATENCY, Libfabric, Limits,
    NetKind, Nid, Subnet, has_provider, interface_of, is_device_removed, offers, provider_device,
    provider_lacks, rdma_device_of, subnet_of,
    table::{self, Addressing, Row},
};
use muster_rail_health::{Blame, Health, HealthChange, HealthConfig, HealthState, Outcome};
use rustix::io::Errno;
use std::net::{Ipv4Addr, SocketAddrV4};

const EACCES: i32 = Errno::ACCESS.raw_os_error();
const EADDRINUSE: i32 = Errno::ADDRINUSE.raw_os_error();
const EADDRNOTAVAIL: i32 = Errno::ADDRNOTAVAIL.raw_os_error();

/// Sends that may be under way on a rail's bulk lane, and receives that are posted there.
const BULK_SLOTS: usize = 32;

/// The longest message on lanes whose provider has no limit. It equals that of other networks.
const MESSAGE_MAX: usize = 4096;

/// How often the system is asked for a port whose next one is free too.
const PORT_TRIES: usize = 32;

/// In place of an address that only the peer can tell.
const UNTOLD: u64 = u64::MAX;

/// The two lanes of a rail. A message takes the lane of its class, at both ends.
#[derive(Debug)]
pub(crate) struct Lanes {
    /// Wakes the host.
    pub(crate) news: Lane,
    /// Has no descriptor: messages wait here until the host is awake.
    pub(crate) beats: Lane,
}

/// The order in which lanes are read. Beats first, so that a beat which was sent before news is delivered before it.
pub(crate) const READING_ORDER: [Class; 2] = [Class::Beat, Class::News];

/// An open rail.
#[derive(Debug)]
pub(crate) struct Rail {
    pub(crate) nid: Nid,
    pub(crate) lanes: Lanes,
    /// For messages over the datagram limit; none before [`Fabric::open_bulk`](crate::Fabric::open_bulk).
    pub(crate) bulk: Option<Lane>,
    /// Limits the bulk lane where a fault plan does so.
    pub(crate) bulk_limit: Bucket,
    /// Bytes of bulk messages that were sent on it and are not acknowledged.
    pub(crate) bulk_bytes: u64,
    pub(crate) health: Health,
    /// Watched peers are silent on this rail and on no other rail of its net. The rail likely does not receive or
    /// does not send, although the provider takes messages.
    pub(crate) receive_failing: bool,
    /// As `receive_failing`, but no message of these peers ever arrived on the rail. It is avoided too, but is not
    /// reported as failed.
    pub(crate) unproved: bool,
    /// The same for bulk messages; datagrams may still pass.
    pub(crate) bulk_receive_failing: bool,
    /// The kernel reports the interface as down. While it is, a send that the provider takes proves nothing.
    pub(crate) link_down: bool,
    /// The speed of the interface in Mbit/s; 0 if unknown. `mbits_best` is the best so far.
    pub(crate) mbits: u32,
    mbits_best: u32,
    /// The peer of the last refused send, and whether the rail was blamed for it.
    refused_last: Option<(Option<PeerHandle>, bool)>,
    pub(crate) queued_bytes: u64,
    credits_least: u32,
    /// The distance of the messages' memory.
    pub(crate) distance: u32,
    pub(crate) numa_node: Option<u32>,
    pub(crate) partitions: Vec<u32>,
    pub(crate) usage: UsageRate,
    pub(crate) counters: Counters,
    interface: Option<String>,
    /// Its RDMA device, until it is found to be removed.
    device: Option<String>,
    /// The subnet of its address, as configured on its interface; none on loopback.
    pub(crate) subnet: Option<Subnet>,
    provider: &'static str,
}

impl Rail {
    /// Opens the rail that the configuration names.
    pub(crate) fn open(config: &FabricConfig, nid: &Nid) -> Result<Rail, OpenError> {
        let library = &config.library;
        let source = SocketAddrV4::new(resolve(library, nid)?, nid.port);
        if nid.net.kind == NetKind::Shm && library.version() < table::SHM_SINCE {
            return Err(OpenError::SharedLocks {
                nid: nid.to_string(),
                version: library.version_text(),
            });
        }
        let row = available(library, &table::datagram(nid.net.kind), nid, source)?;
        let beats = available(library, &[table::beats(row)], nid, source)?;
        if nid.port == 0 && matches!(row.addressing, Addressing::Local | Addressing::Named) {
            return Err(OpenError::PortNeeded {
                nid: nid.to_string(),
                net: nid.net.to_string(),
            });
        }
        let interface = interface_of(*source.ip());
        if nid.net.kind.has_names() {
            check_device(library, row, nid, source)?;
        }
        if matches!(row.addressing, Addressing::Local | Addressing::Named) && interface.is_none() {
            // No later step checks whether the address belongs to this node.
            return Err(OpenError::ForeignAddress {
                nid: nid.to_string(),
                address: source.ip().to_string(),
                known: library.known_interfaces(),
            });
        }
        let (lanes, bound) = Lanes::open(config, [row, beats], nid, source)?;
        let provider = row.provider(library.version());
        let refused = |reason| explain(library, nid, source, provider, reason);
        let credits_least = lanes.credits();
        let name = match lanes.news.has_name() {
            true => Some(lanes.news.name().map_err(refused)?),
            false => None,
        };
        Ok(Rail {
            nid: Nid {
                name,
                ..Nid::of(bound, nid.net)
            },
            lanes,
            bulk: None,
            bulk_limit: Bucket::default(),
            bulk_bytes: 0,
            health: Health::default(),
            receive_failing: false,
            unproved: false,
            bulk_receive_failing: false,
            link_down: false,
            mbits: 0,
            mbits_best: 0,
            refused_last: None,
            queued_bytes: 0,
            credits_least,
            distance: 0,
            numa_node: None,
            partitions: Vec::new(),
            usage: UsageRate::default(),
            counters: Counters::default(),
            interface,
            device: match nid.net.kind.keeps_broken_connections() {
                true => rdma_device_of(*bound.ip()),
                false => None,
            },
            subnet: subnet_of(*bound.ip()),
            provider,
        })
    }

    /// Longest message, bytes.
    pub(crate) fn message_max(&self) -> usize {
        let Lanes { news, beats } = &self.lanes;
        news.message_max().min(beats.message_max())
    }

    pub(crate) fn interface(&self) -> Option<&str> {
        self.interface.as_deref()
    }

    /// Notes that a send is under way.
    pub(crate) fn begin_send(&mut self, bytes: usize) {
        self.queued_bytes += bytes as u64;
        self.credits_least = self.credits_least.min(self.lanes.credits());
    }

    /// Notes a send that failed. Errors to one peer alone count against that peer's address and not against the rail,
    /// unless there is no other peer. The first such error is held back until an error to another peer confirms it.
    pub(crate) fn refused(
        &mut self,
        now_us: u64,
        outcome: Outcome,
        peer: Option<PeerHandle>,
        peers: usize,
        config: &HealthConfig,
    ) -> Option<HealthChange> {
        let own = outcome.blame() == Blame::Local || peer.is_none() || peers < 2;
        let last = self.refused_last;
        let same_again = last.is_some_and(|(other, _)| other == peer);
        if !own && (last.is_none() || same_again) && !self.health.is_failed() {
            self.refused_last.get_or_insert((peer, false));
            return None;
        }
        let held_back = !own && last.is_some_and(|(_, blamed)| !blamed);
        self.refused_last = Some((peer, true));
        // A wrong address belongs to one peer. It must not block the rail for good.
        let outcome = match outcome {
            Outcome::AddressError => Outcome::Unreachable,
            _ if !own => Outcome::Unreachable,
            outcome => outcome,
        };
        let before = self.health.state();
        let first = match held_back {
            true => self.health.tell(now_us, outcome, config),
            false => None,
        };
        let change = self.health.tell(now_us, outcome, config).or(first);
        self.or_shifted(before, change)
    }

    /// Returns `change`, or that the state has moved between active and degraded.
    fn or_shifted(
        &self,
        before: HealthState,
        change: Option<HealthChange>,
    ) -> Option<HealthChange> {
        let shifted = (before != self.health.state()).then_some(HealthChange::Shifted);
        change.or(shifted)
    }

    /// Notes a send that the provider took.
    pub(crate) fn taken(&mut self, now_us: u64, config: &HealthConfig) -> Option<HealthChange> {
        self.refused_last = None;
        if self.link_down {
            // The probe proves nothing while the link is down. The next probe is later.
            self.health.probed(now_us, config);
            return None;
        }
        let before = self.health.state();
        let change = self.health.tell(now_us, Outcome::Success, config);
        self.or_shifted(before, change)
    }

    /// Notes the link state that the kernel reports.
    pub(crate) fn note_link(
        &mut self,
        now_us: u64,
        up: bool,
        config: &HealthConfig,
    ) -> Option<HealthChange> {
        if self.link_down != up {
            return None;
        }
        self.link_down = !up;
        let outcome = match up {
            true => Outcome::LocalUp,
            false => Outcome::LocalDown,
        };
        self.health.tell(now_us, outcome, config)
    }

    /// Whether this error shows that the rail's device was removed. True once.
    pub(crate) fn has_lost_device(&mut self, error: &CallError) -> bool {
        let codes = [Errno::NODEV, Errno::NXIO, Errno::IO].map(|errno| errno.raw_os_error());
        let is_lost =
            codes.contains(&error.code) && self.device.as_deref().is_some_and(is_device_removed);
        if is_lost {
            self.device = None;
        }
        is_lost
    }

    /// Notes the speed of the interface. Returns the speed and the best so far if the interface has become slower
    /// than its best, or as fast as that again.
    pub(crate) fn note_speed(&mut self, mbits: u32) -> Option<(u32, u32)> {
        let known = std::mem::replace(&mut self.mbits, mbits);
        let best = self.mbits_best;
        self.mbits_best = best.max(mbits);
        (best > 0 && known != mbits && known.min(mbits) < best).then_some((mbits, self.mbits_best))
    }

    /// Whether messages avoid this rail as long as other rails work.
    pub(crate) fn is_avoided(&self) -> bool {
        self.receive_failing || self.unproved || self.health.is_failed()
    }

    pub(crate) fn state(&self) -> HealthState {
        let is_worse =
            self.receive_failing || self.bulk_receive_failing || self.mbits < self.mbits_best;
        match self.health.state() {
            HealthState::Active if is_worse => HealthState::Degraded,
            state => state,
        }
    }

    pub(crate) fn zero_stats(&mut self) {
        self.counters = Counters::default();
        self.usage = UsageRate::default();
        self.credits_least = self.lanes.credits();
    }

    pub(crate) fn view(&self, index: usize, now_us: u64) -> RailView {
        RailView {
            index,
            nid: self.nid.clone(),
            interface: self.interface.clone(),
            provider: self.provider,
            class: self.lanes.news.class(),
            mtu: self.message_max(),
            state: self.state(),
            health: self.health.value(),
            credits: Credits {
                now: self.lanes.credits(),
                least: self.credits_least,
                most: self.lanes.credits_most(),
            },
            queued_bytes: self.queued_bytes,
            numa_node: self.numa_node,
            partitions: self.partitions.clone(),
            usage: self.usage.at(now_us),
            counters: self.counters.clone(),
        }
    }
}

impl Lanes {
    /// Opens both lanes on a port and the next one, and returns the address. Port 0 tries any such pair.
    fn open(
        config: &FabricConfig,
        [news_row, beats_row]: [&'static Row; 2],
        nid: &Nid,
        source: SocketAddrV4,
    ) -> Result<(Lanes, SocketAddrV4), OpenError> {
        if nid.port != 0 && nid.beat_port().is_none() {
            return Err(OpenError::NoNextPort {
                nid: nid.to_string(),
                port: nid.port,
            });
        }
        let tries = if nid.port == 0 { PORT_TRIES } else { 1 };
        for _ in 0..tries {
            let (news, bound) = open_lane(config, news_row, nid, source, true)?;
            let Some(port) = bound.port().checked_add(BEAT_PORT_OFFSET) else {
                continue;
            };
            if !is_liveness_free(nid, bound) {
                continue;
            }
            let next = SocketAddrV4::new(*bound.ip(), port);
            match open_lane(config, beats_row, nid, next, false) {
                Ok((beats, _)) => return Ok((Lanes { news, beats }, bound)),
                Err(OpenError::PortInUse { .. }) => {}
                Err(error) => return Err(error),
            }
        }
        let (nid_text, address) = (nid.to_string(), source.ip().to_string());
        Err(match nid.beat_port() {
            Some(next) => OpenError::NextPortInUse {
                nid: nid_text,
                address,
                port: nid.port,
                next,
            },
            None => OpenError::NoPortPair {
                nid: nid_text,
                address,
                tries,
            },
        })
    }

    /// Sends that both lanes have room for.
    pub(crate) fn credits(&self) -> u32 {
        (self.news.credits() + self.beats.credits()) as u32
    }

    /// The room of both lanes when nothing is under way.
    pub(crate) fn credits_most(&self) -> u32 {
        (self.news.credits_most() + self.beats.credits_most()) as u32
    }

    pub(crate) fn of(&mut self, class: Class) -> &mut Lane {
        match class {
            Class::News => &mut self.news,
            Class::Beat => &mut self.beats,
        }
    }

    /// Makes a peer's addresses known to the provider, for news and for beats; both or none. With a name, news is sent
    /// there. An address for beats that the peer has to tell is not among them.
    pub(crate) fn insert(
        &mut self,
        to: [SocketAddrV4; 2],
        name: Option<&EndpointName>,
    ) -> Result<[u64; 2], CallError> {
        let news = match name {
            Some(name) if self.news.has_name() => self.news.insert_name(name)?,
            _ => self.news.insert(to[Class::News as usize])?,
        };
        if self.beats.has_name() {
            return Ok(by_class(news, UNTOLD));
        }
        let beats = self.beats.insert(to[Class::Beat as usize]);
        if beats.is_err() {
            self.news.remove(news);
        }
        Ok(by_class(news, beats?))
    }

    /// Removes the addresses that [`Lanes::insert`] returned.
    pub(crate) fn remove(&mut self, addresses: [u64; 2]) {
        self.news.remove(addresses[Class::News as usize]);
        if !self.beats.has_name() {
            self.beats.remove(addresses[Class::Beat as usize]);
        }
    }

    /// The lane that takes a message of this class on a path, and the path's address in it. Beats go in the lane of
    /// news until the peer has told its address for beats.
    pub(crate) fn choose(&self, class: Class, path: &Path) -> Option<(Class, u64)> {
        let addresses = path.addresses?;
        let told = path.beat_address().map(|address| (Class::Beat, address));
        match class {
            Class::Beat if self.beats.has_name() => {
                told.or(Some((Class::News, addresses[Class::News as usize])))
            }
            class => Some((class, addresses[class as usize])),
        }
    }
}

/// An array that is indexed by class.
pub(crate) fn by_class<T>(news: T, beats: T) -> [T; 2] {
    // In the order of the variants of `Class`.
    [beats, news]
}

/// Whether the TCP port of the liveness connection is free, if the system chose the NID's port: otherwise observers
/// would connect to another process. A rail with a configured port is opened in any case; an occupied port then only
/// costs it the liveness connection.
fn is_liveness_free(nid: &Nid, bound: SocketAddrV4) -> bool {
    let at = Nid::of(bound, nid.net)
        .liveness_address()
        .filter(|_| nid.port == 0);
    at.is_none_or(|at| std::net::TcpListener::bind(at).is_ok())
}

/// Opens one lane, and returns the address that it is bound to.
fn open_lane(
    config: &FabricConfig,
    row: &'static Row,
    nid: &Nid,
    source: SocketAddrV4,
    wakes: bool,
) -> Result<(Lane, SocketAddrV4), OpenError> {
    let library = &config.library;
    let limits = Limits {
        receives: config.receive_buffers,
        sends: config.send_slots,
        inject: config.inject,
        wakes,
        message_max: MESSAGE_MAX,
        class: Some(LOW_LATENCY),
        dscp: config.dscp,
    };
    let provider = row.provider(library.version());
    let refused = |reason| explain(library, nid, source, provider, reason);
    let lane = Lane::open(library, row, source, limits).map_err(refused)?;
    let bound = lane.local_address().map_err(refused)?;
    Ok((lane, bound))
}

/// Opens the bulk lane of an open rail.
pub(crate) fn open_bulk(config: &FabricConfig, nid: &Nid) -> Result<Lane, OpenError> {
    let library = &config.library;
    let own = nid.bulk_address().ok_or_else(|| OpenError::NoNextPort {
        nid: nid.to_string(),
        port: nid.port,
    })?;
    let source = SocketAddrV4::new(resolve(library, nid)?, own.port());
    let row = available(library, &table::bulk(nid.net.kind), nid, source)?;
    let limits = Limits {
        receives: BULK_SLOTS,
        sends: BULK_SLOTS,
        inject: config.inject,
        wakes: true,
        message_max: ENVELOPE_BYTES + FRAME_BYTES + FRAGMENT_BYTES,
        class: None,
        dscp: 0,
    };
    let provider = row.provider(library.version());
    let refused = |reason| explain(library, nid, source, provider, reason);
    let lane = Lane::open(library, row, source, limits).map_err(refused)?;
    if lane.message_max() < limits.message_max {
        return Err(OpenError::ShortBulkLane {
            nid: nid.to_string(),
            provider,
            offered: lane.message_max(),
            needed: limits.message_max,
        });
    }
    Ok(lane)
}

/// The first of these rows whose provider finds a device here; if there is none, an error with what it lacks.
fn available(
    library: &Libfabric,
    rows: &[&'static Row],
    nid: &Nid,
    source: SocketAddrV4,
) -> Result<&'static Row, OpenError> {
    let offered = |row: &&&'static Row| offers(library, row, source).is_ok();
    if let Some(row) = rows.iter().find(offered) {
        return Ok(row);
    }
    let built_in = |row: &&&'static Row| has_provider(library, row.provider(library.version()));
    let found = rows.iter().find(built_in).or(rows.first());
    let row = *found.expect("each kind of net has rows");
    let provider = row.provider(library.version());
    match offers(library, row, source) {
        Err(reason) if nid.net.kind.has_device() && reason.call == "fi_getinfo" => {
            let core = provider.split(';').next().unwrap_or(provider);
            let lacks = provider_lacks(core, has_provider(library, core), library.version());
            Err(OpenError::NoDevice {
                nid: nid.to_string(),
                provider,
                version: library.version_text(),
                is_late: lacks.is_ok(),
                lacks: lacks.unwrap_or_else(|built| built),
                reason: Box::new(reason),
            })
        }
        // Other errors are explained where the lane is opened.
        _ => Ok(row),
    }
}

/// Refuses a rail if it cannot be told which of the provider's devices belongs to its interface.
fn check_device(
    library: &Libfabric,
    row: &'static Row,
    nid: &Nid,
    source: SocketAddrV4,
) -> Result<(), OpenError> {
    match provider_device(library, row, *source.ip()) {
        Err(devices) if !devices.is_empty() => Err(OpenError::ManyDevices {
            nid: nid.to_string(),
            provider: row.provider(library.version()),
            devices: devices.join(", "),
        }),
        // Without a device, opening the lane fails.
        _ => Ok(()),
    }
}

/// Refuses two rails on one interface, before anything is opened. Each address of the loopback interface counts as an
/// interface of its own, since emulated nodes on one machine differ only in these addresses.
pub(crate) fn check_distinct(library: &Libfabric, nids: &[Nid]) -> Result<(), OpenError> {
    let interfaces = library.interfaces();
    let mut seen: Vec<(&Nid, Ipv4Addr)> = Vec::new();
    for nid in nids {
        let rail = (nid, resolve(library, nid)?);
        let mut earlier = seen.iter();
        if let Some((first, _)) = earlier.find(|other| is_one_interface(&interfaces, **other, rail))
        {
            let device = device_of(&interfaces, rail.1);
            return Err(OpenError::SameInterface {
                first: first.to_string(),
                second: nid.to_string(),
                interface: device.map_or_else(|| rail.1.to_string(), str::to_owned),
            });
        }
        seen.push(rail);
    }
    Ok(())
}

fn is_one_interface(
    interfaces: &[Interface],
    (one, at): (&Nid, Ipv4Addr),
    (other, other_at): (&Nid, Ipv4Addr),
) -> bool {
    let device = device_of(interfaces, at);
    let is_one_device = device.is_some() && device == device_of(interfaces, other_at);
    (at == other_at || is_one_device) && one.net.kind.shares_devices(other.net.kind)
}

/// The name of the interface that has an address; none on loopback.
fn device_of(interfaces: &[Interface], address: Ipv4Addr) -> Option<&str> {
    let mut known = interfaces.iter().filter(|_| !address.is_loopback());
    let found = known.find(|interface| interface.address == address);
    found.map(|interface| interface.name.as_str())
}

/// The address of a configured rail.
fn resolve(library: &Libfabric, nid: &Nid) -> Result<Ipv4Addr, OpenError> {
    let name = match &nid.address {
        Address::Ip(address) => return Ok(*address),
        Address::Interface(name) => name,
    };
    let interfaces = library.interfaces();
    let found = interfaces.iter().find(|interface| interface.name == *name);
    found
        .map(|interface| interface.address)
        .ok_or_else(|| OpenError::UnknownInterface {
            nid: nid.to_string(),
            interface: name.clone(),
            known: library.known_interfaces(),
        })
}

/// Converts an error of libfabric into an error that tells the administrator what to change.
fn explain(
    library: &Libfabric,
    nid: &Nid,
    source: SocketAddrV4,
    provider: &'static str,
    reason: CallError,
) -> OpenError {
    let nid = nid.to_string();
    let address = source.ip().to_string();
    match (reason.call, reason.code) {
        ("fi_getinfo", _) => OpenError::NoProvider {
            nid,
            provider,
            version: library.version_text(),
            reason,
        },
        (_, EADDRNOTAVAIL) => OpenError::ForeignAddress {
            nid,
            address,
            known: library.known_interfaces(),
        },
        (_, EADDRINUSE) => OpenError::PortInUse {
            nid,
            address,
            port: source.port(),
        },
        (_, EACCES) => OpenError::PortForbidden {
            nid,
            port: source.port(),
        },
        _ => OpenError::Provider { nid, reason },
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn errors_of_libfabric_are_explained() {
        let library = crate::load().expect("libfabric is installed where tests run");
        let nid: Nid = "192.0.2.7:80@udp".parse().unwrap();
        let text = |errno: Errno| {
            let code = -i64::from(errno.raw_os_error());
            let reason = library.error("fi_endpoint", code);
            let source = nid.socket_address().unwrap();
            explain(&library, &nid, source, "udp", reason).to_string()
        };
        assert_eq!(
            text(Errno::ACCESS),
            "rail 192.0.2.7:80@udp0: this user may not use port 80; give a port above 1023"
        );
        assert_eq!(
            text(Errno::NOMEM),
            "rail 192.0.2.7:80@udp0: fi_endpoint failed: Cannot allocate memory (12)"
        );
    }

    fn open(address: &str) -> Rail {
        let library = crate::load().expect("libfabric is installed where tests run");
        let nid: Nid = address.parse().unwrap();
        Rail::open(&FabricConfig::new(library, vec![nid.clone()]), &nid).unwrap()
    }

    /// RS-03: a wrong address belongs to a peer. It does not close the only rail to the only peer for good.
    #[test]
    fn a_wrong_address_of_the_only_peer_does_not_block_the_rail() {
        let mut rail = open("127.41.50.1:0@udp");
        let config = HealthConfig::default();
        let peer = PeerHandle {
            index: 0,
            generation: 0,
        };
        for _ in 0..3 {
            rail.refused(1, Outcome::AddressError, Some(peer), 1, &config);
        }
        assert_eq!(rail.state(), HealthState::Failed);
        assert!(!rail.health.is_blocked());
        for _ in 0..3 {
            rail.taken(2, &config);
        }
        assert_eq!(rail.state(), HealthState::Active);
    }

    /// RS-07: while the link is down, a send that the provider takes proves nothing, and the next probe waits.
    #[test]
    fn a_rail_whose_link_is_down_is_probed_with_pauses() {
        let mut rail = open("127.41.51.1:0@udp");
        let config = HealthConfig::default();
        rail.note_link(1, false, &config);
        let at_us = rail.health.probe_at(&config).unwrap();
        assert!(rail.health.probe_due(at_us, &config));
        rail.taken(at_us, &config);
        assert_eq!(rail.state(), HealthState::Failed);
        assert!(!rail.health.probe_due(at_us, &config));
        assert!(rail.health.probe_at(&config).unwrap() > at_us);
    }

    /// cfg-040.
    #[test]
    fn a_device_has_at_most_one_rail_of_each_kind() {
        let interface = |name: &str, address: &str| Interface {
            name: name.into(),
            address: address.parse().unwrap(),
        };
        let interfaces = [
            interface("lo", "127.0.0.1"),
            interface("ib0", "10.0.0.1"),
            interface("ib0", "10.0.1.1"),
            interface("ib1", "10.0.0.2"),
        ];
        let is_one = |one: &str, other: &str| {
            let [one, other] = [one, other].map(|text| text.parse::<Nid>().unwrap());
            let at = |nid: &Nid| *nid.socket_address().unwrap().ip();
            is_one_interface(&interfaces, (&one, at(&one)), (&other, at(&other)))
        };
        assert!(is_one("10.0.0.1@udp0", "10.0.0.1:8000@udp1"));
        assert!(
            is_one("10.0.0.1@udp0", "10.0.1.1@udp1"),
            "two addresses of one device"
        );
        assert!(is_one("10.0.0.1@udp0", "10.0.0.1@tcp0"));
        assert!(!is_one("10.0.0.1@udp0", "10.0.0.1@o2ib0"));
        assert!(!is_one("10.0.0.1@udp0", "10.0.0.2@udp0"));
        assert!(
            !is_one("127.0.0.1@udp0", "127.0.0.2@udp0"),
            "emulated nodes"
        );
    }
}
