//! Finds the interface that has an address, as its first address or as a further one.
//!
//! libfabric takes the label of a further address (`eth0:1`) for an interface name, and omits further addresses
//! of loopback. The kernel's data about a link, its speed and its NUMA node are found by the interface's name.

use std::ffi::CStr;
use std::net::Ipv4Addr;
use std::path::Path;
use std::ptr::{self, NonNull};

/// The prefix that all addresses of a subnet share.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Subnet {
    network: u32,
    mask: u32,
}

impl Subnet {
    /// The subnet of this address with this mask.
    #[must_use]
    pub fn of(address: Ipv4Addr, mask: Ipv4Addr) -> Subnet {
        let mask = u32::from(mask);
        Subnet {
            network: u32::from(address) & mask,
            mask,
        }
    }

    /// Whether the address is in the subnet.
    #[must_use]
    pub fn contains(self, address: Ipv4Addr) -> bool {
        u32::from(address) & self.mask == self.network
    }

    /// The length of the prefix, bits.
    #[must_use]
    pub fn prefix(self) -> u32 {
        self.mask.leading_ones()
    }
}

/// The subnet of a local address, as its interface is configured. None on loopback: its addresses stand for
/// nodes that are emulated on one machine and are paired by index.
#[must_use]
pub fn subnet_of(address: Ipv4Addr) -> Option<Subnet> {
    if address.is_loopback() {
        return None;
    }
    let all = addresses();
    let found = all.iter().find(|one| one.address == address)?;
    Some(Subnet::of(address, found.mask?))
}

/// The name of the interface with this address. A loopback address that no interface has belongs to the
/// loopback interface.
#[must_use]
pub fn interface_of(address: Ipv4Addr) -> Option<String> {
    let all = addresses();
    let exact = all.iter().find(|one| one.address == address);
    let loopback = |one: &&Local| one.address.is_loopback() && address.is_loopback();
    let found = exact.or_else(|| all.iter().find(loopback));
    found.map(|one| one.interface.clone())
}

/// The RDMA device of the interface with this address, from sysfs.
#[must_use]
pub fn rdma_device_of(address: Ipv4Addr) -> Option<String> {
    rdma_device_in(Path::new("/sys/class"), &interface_of(address)?)
}

/// The devices of this interface by the kernel's classes of devices for message passing, from sysfs.
pub(super) fn devices_of(interface: &str) -> Vec<String> {
    devices_in(Path::new("/sys/class"), interface)
}

fn devices_in(class: &Path, interface: &str) -> Vec<String> {
    let own = class.join("net").join(interface).join("device/cxi");
    let mut devices = names_in(&own);
    devices.extend(rdma_device_in(class, interface));
    devices
}

/// Whether this machine has RDMA devices.
pub(super) fn has_rdma_devices() -> bool {
    !names_in(Path::new("/sys/class/infiniband")).is_empty()
}

/// An Ethernet interface is named by the global ids of its device, also where it is a bond, a VLAN, or virtual.
/// InfiniBand has no such names; there the interface and the RDMA device are parts of one device.
fn rdma_device_in(class: &Path, interface: &str) -> Option<String> {
    let all = class.join("infiniband");
    let named = names_in(&all).into_iter().find(|device| {
        let ports = all.join(device).join("ports");
        names_in(&ports).iter().any(|port| {
            let interfaces = ports.join(port).join("gid_attrs/ndevs");
            names_in(&interfaces).iter().any(|index| {
                // A global id that is not in use cannot be read.
                let name = std::fs::read_to_string(interfaces.join(index));
                name.is_ok_and(|name| name.trim_end() == interface)
            })
        })
    });
    let own = class.join("net").join(interface).join("device/infiniband");
    named.or_else(|| names_in(&own).into_iter().next())
}

/// The sorted names in a directory; empty if it cannot be read.
fn names_in(directory: &Path) -> Vec<String> {
    let entries = std::fs::read_dir(directory).into_iter().flatten();
    let names = entries.filter_map(|entry| entry.ok()?.file_name().into_string().ok());
    let mut names: Vec<String> = names.collect();
    names.sort();
    names
}

/// One IPv4 address of this machine.
struct Local {
    interface: String,
    address: Ipv4Addr,
    mask: Option<Ipv4Addr>,
}

/// All IPv4 addresses, each with its interface; empty if the system call fails.
fn addresses() -> Vec<Local> {
    let mut first: *mut libc::ifaddrs = ptr::null_mut();
    // SAFETY: the answer is written to `first`; it is freed below, once.
    if unsafe { libc::getifaddrs(&raw mut first) } != 0 {
        return Vec::new();
    }
    let mut all = Vec::new();
    let mut next = first;
    while let Some(entry) = NonNull::new(next) {
        // SAFETY: the entry is in the list, which is not freed yet. Its name is a C string. Its address is null
        // or has the length of its family; so does the mask of an IPv4 address.
        unsafe {
            let entry = entry.as_ref();
            next = entry.ifa_next;
            let address = entry.ifa_addr;
            if address.is_null() || i32::from((*address).sa_family) != libc::AF_INET {
                continue;
            }
            let ip = |address: *mut libc::sockaddr| {
                let address = ptr::read_unaligned(address.cast::<libc::sockaddr_in>());
                Ipv4Addr::from(u32::from_be(address.sin_addr.s_addr))
            };
            // A further address may have a label after a colon.
            let name = CStr::from_ptr(entry.ifa_name).to_string_lossy();
            let name = name.split(':').next().unwrap_or_default().to_owned();
            all.push(Local {
                interface: name,
                address: ip(address),
                mask: (!entry.ifa_netmask.is_null()).then(|| ip(entry.ifa_netmask)),
            });
        }
    }
    // SAFETY: the list comes from the call above.
    unsafe { libc::freeifaddrs(first) };
    all
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_interface_has_the_device_whose_global_ids_name_it() {
        let class = std::env::temp_dir().join(format!("muster-rdma-{}", std::process::id()));
        for (file, text) in [
            ("infiniband/mlx5_0/ports/1/gid_attrs/ndevs/0", "eth0\n"),
            ("infiniband/mlx5_0/ports/1/gid_attrs/ndevs/1", "eth0.7\n"),
            (
                "infiniband/mlx5_bond_0/ports/1/gid_attrs/ndevs/0",
                "bond0\n",
            ),
            ("infiniband/mlx5_2/ports/1/gid_attrs/ndevs/0", ""),
            ("net/ib0/device/infiniband/mlx5_2/node_type", "1"),
            ("net/hsn0/device/cxi/cxi3/dev", "1"),
        ] {
            let path = class.join(file);
            std::fs::create_dir_all(path.parent().unwrap()).unwrap();
            std::fs::write(path, text).unwrap();
        }
        let device = |interface| rdma_device_in(&class, interface);
        assert_eq!(device("eth0.7").as_deref(), Some("mlx5_0"));
        assert_eq!(device("bond0").as_deref(), Some("mlx5_bond_0"));
        assert_eq!(device("ib0").as_deref(), Some("mlx5_2"));
        assert_eq!(device("lo"), None);
        assert_eq!(devices_in(&class, "hsn0"), ["cxi3"]);
        assert_eq!(devices_in(&class, "ib0"), ["mlx5_2"]);
        std::fs::remove_dir_all(&class).unwrap();
    }
}
