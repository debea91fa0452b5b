//! Rendezvous: a gossip server at a well-known address, where the participants of age gossip find each other
//! (BG-04).
//!
//! Each participant sends its NIDs and waits. When the expected number has joined, the server sends all of them the
//! same list in the same order. After that only an agent that starts needs the server. A worker that takes over
//! from a crashed one does not: the crashed worker has left it the list. The server keeps its list in memory only,
//! so a restarted server waits for all participants to join again. The server has no part in deciding which members
//! are alive.
//!
//! ```text
//! server: rendezvous 1 NONCE
//! client: join NONCE NIDS GROUP NAME PROOF      GROUP is - for none
//! server: list COUNT PROOF, and COUNT lines NIDS GROUP NAME
//!         refused REASON
//! ```
//! A proof is a keyed BLAKE3 hash, with the job's key, of both nonces and the payload. It protects both sides from
//! peers outside of the job and from replays. A refusal has no proof, since the refused client may have another
//! key; the client takes no data from it.

mod client;
mod server;

pub use client::join;
pub use server::Server;

use muster_config::draw_key;
use std::io::{self, Read};

/// Version of the protocol.
const VERSION: &str = "1";
/// The longest line: NIDs, a group, a nonce and a proof.
const LINE_MAX: usize = 512;

/// A participant.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Entry {
    /// Its NIDs, separated by commas, the first one first.
    pub nids: String,
    /// Its group; empty for none.
    pub group: String,
    /// Its name.
    pub name: String,
}

impl Entry {
    fn line(&self) -> String {
        let group = if self.group.is_empty() {
            "-"
        } else {
            &self.group
        };
        format!("{} {group} {}", self.nids, self.name)
    }

    fn read(line: &str) -> Option<Self> {
        let fields: Vec<&str> = line.split(' ').collect();
        let [nids, group, name] = fields[..] else {
            return None;
        };
        Some(Self {
            name: name.to_owned(),
            nids: nids.to_owned(),
            group: if group == "-" { "" } else { group }.to_owned(),
        })
    }

    /// The NID that identifies it.
    fn first_nid(&self) -> &str {
        self.nids.split(',').next().unwrap_or_default()
    }
}

/// The job's key and both nonces of one connection.
struct Exchange<'a> {
    key: &'a [u8; 32],
    server: &'a str,
    client: &'a str,
}

impl Exchange<'_> {
    /// Returns the proof that a process of the job sent this payload on this connection.
    fn proof(&self, payload: &str) -> String {
        let mut hasher = blake3::Hasher::new_keyed(self.key);
        for part in ["muster rendezvous", self.server, self.client, payload] {
            hasher.update(&(part.len() as u64).to_le_bytes());
            hasher.update(part.as_bytes());
        }
        hex(&hasher.finalize().as_bytes()[..16])
    }

    fn is_proof(&self, payload: &str, proof: &str) -> bool {
        // Comparing hashes takes constant time, whatever was sent.
        let own = blake3::hash(self.proof(payload).as_bytes());
        own == blake3::hash(proof.as_bytes())
    }
}

fn hex(bytes: &[u8]) -> String {
    bytes.iter().map(|byte| format!("{byte:02x}")).collect()
}

fn nonce() -> String {
    hex(&draw_key()[..16])
}

/// Reads one line of at most `max` bytes, without its line feed.
fn read_line(from: &mut impl Read, max: usize) -> io::Result<String> {
    let mut line = Vec::new();
    let mut byte = [0];
    loop {
        from.read_exact(&mut byte)?;
        if byte == *b"\n" {
            return String::from_utf8(line).map_err(io::Error::other);
        }
        if line.len() == max {
            return Err(io::Error::other("the line is too long"));
        }
        line.push(byte[0]);
    }
}

#[cfg(test)]
mod tests;
