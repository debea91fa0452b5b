//! The roster: a gossip server at a well-known address, where the participants of age gossip find each other
//! (BG-04).
//!
//! Whoever takes part says its NIDs there and waits. When as many as were expected have come, each is told all
//! of them, the same list in the same order; from then on only an agent that starts needs the server, and not one
//! that takes over from a worker that crashed: that worker has left it the list. The server keeps its list in memory
//! alone: one that is started again waits for all of them to come again. It has no word in who is alive.
//!
//! ```text
//! server: roster 1 NONCE
//! client: join NONCE NIDS GROUP NAME PROOF      GROUP is - for none
//! server: list COUNT PROOF, and COUNT lines NIDS GROUP NAME
//!         refused WORDS
//! ```
//! A proof is a keyed BLAKE3, by the job's key, of both nonces and what was said, so that neither side believes
//! one who is not of the job, nor what was said another time. Who is refused is told without a proof, since it
//! may have another key; it believes nothing by it.

mod client;
mod server;

pub(crate) use client::join;
pub use server::Server;

use muster_config::draw_key;
use std::io::{self, Read};

/// The version of what is said.
const VERSION: &str = "1";
/// The longest line: NIDs, a group, a nonce and a proof.
const LINE_MAX: usize = 512;

/// One who takes part.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct Entry {
    /// Its NIDs with commas between, the first one first.
    pub(crate) nids: String,
    /// Its group; empty for none.
    pub(crate) group: String,
    /// What it is called.
    pub(crate) name: String,
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
        let words: Vec<&str> = line.split(' ').collect();
        let [nids, group, name] = words[..] else {
            return None;
        };
        Some(Self {
            name: name.to_owned(),
            nids: nids.to_owned(),
            group: if group == "-" { "" } else { group }.to_owned(),
        })
    }

    /// What it is found by.
    fn first_nid(&self) -> &str {
        self.nids.split(',').next().unwrap_or_default()
    }
}

/// The job's key, and both nonces.
struct Talk<'a> {
    key: &'a [u8; 32],
    server: &'a str,
    client: &'a str,
}

impl Talk<'_> {
    /// Proves that one of the job has said this in this talk.
    fn proof(&self, said: &str) -> String {
        let mut hasher = blake3::Hasher::new_keyed(self.key);
        for part in ["muster roster", self.server, self.client, said] {
            hasher.update(&(part.len() as u64).to_le_bytes());
            hasher.update(part.as_bytes());
        }
        hex(&hasher.finalize().as_bytes()[..16])
    }

    fn is_proof(&self, said: &str, proof: &str) -> bool {
        // In constant time, whatever was sent.
        let own = blake3::hash(self.proof(said).as_bytes());
        own == blake3::hash(proof.as_bytes())
    }
}

fn hex(bytes: &[u8]) -> String {
    bytes.iter().map(|byte| format!("{byte:02x}")).collect()
}

fn nonce() -> String {
    hex(&draw_key()[..16])
}

/// Reads one line of at most so many bytes, without its end.
fn read_line(from: &mut impl Read, most: usize) -> io::Result<String> {
    let mut line = Vec::new();
    let mut byte = [0];
    loop {
        from.read_exact(&mut byte)?;
        if byte == *b"\n" {
            return String::from_utf8(line).map_err(io::Error::other);
        }
        if line.len() == most {
            return Err(io::Error::other("a line is too long"));
        }
        line.push(byte[0]);
    }
}

#[cfg(test)]
mod tests;
