//! The node of an address. It is looked up for every datagram, so by a hash instead of the bytes.

use std::collections::BTreeMap;

use super::NodeIndex;

#[derive(Debug, Default)]
pub(super) struct Addresses {
    /// Addresses with the same hash share an entry.
    nodes: BTreeMap<u64, Vec<(Vec<u8>, NodeIndex)>>,
}

impl Addresses {
    /// Assigns the address to this node.
    pub(super) fn insert(&mut self, address: &[u8], node: NodeIndex) {
        let same = self.nodes.entry(hash(address)).or_default();
        same.retain(|(held, _)| held != address);
        same.push((address.to_vec(), node));
    }

    pub(super) fn get(&self, address: &[u8]) -> Option<NodeIndex> {
        let mut same = self.nodes.get(&hash(address))?.iter();
        same.find(|(held, _)| held == address)
            .map(|(_, node)| *node)
    }
}

/// FNV-1a over 64-bit words. Addresses here are short, and no node chooses them to collide.
fn hash(address: &[u8]) -> u64 {
    address
        .chunks(8)
        .fold(0xcbf2_9ce4_8422_2325, |hash, chunk| {
            let mut word = [0; 8];
            word[..chunk.len()].copy_from_slice(chunk);
            (hash ^ u64::from_le_bytes(word)).wrapping_mul(0x0100_0000_01b3_0001)
        })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_address_belongs_to_the_node_that_got_it_last() {
        let mut addresses = Addresses::default();
        for node in 0..1000 {
            addresses.insert(format!("address-{node}").as_bytes(), node);
        }
        addresses.insert(b"address-7", 1000);
        assert_eq!(addresses.get(b"address-7"), Some(1000));
        assert_eq!(addresses.get(b"address-999"), Some(999));
        assert_eq!(addresses.get(b"address-1000"), None);
    }
}
