//! Which node has an address: looked up for every datagram, so by a number, not by its letters.

use std::collections::BTreeMap;

use super::NodeIndex;

#[derive(Debug, Default)]
pub(super) struct Addresses {
    /// Those of the same number stand together.
    nodes: BTreeMap<u64, Vec<(Vec<u8>, NodeIndex)>>,
}

impl Addresses {
    /// From now on the address is this node's.
    pub(super) fn insert(&mut self, address: &[u8], node: NodeIndex) {
        let same = self.nodes.entry(number(address)).or_default();
        same.retain(|(held, _)| held != address);
        same.push((address.to_vec(), node));
    }

    pub(super) fn get(&self, address: &[u8]) -> Option<NodeIndex> {
        let mut same = self.nodes.get(&number(address))?.iter();
        same.find(|(held, _)| held == address)
            .map(|(_, node)| *node)
    }
}

/// FNV-1a, over words: addresses here are short and nobody chooses them to collide.
fn number(address: &[u8]) -> u64 {
    address
        .chunks(8)
        .fold(0xcbf2_9ce4_8422_2325, |number, chunk| {
            let mut word = [0; 8];
            word[..chunk.len()].copy_from_slice(chunk);
            (number ^ u64::from_le_bytes(word)).wrapping_mul(0x0100_0000_01b3_0001)
        })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_address_belongs_to_whom_it_was_given_last() {
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
