//! The client of the gossip server: a participant joins, and waits for the list of all participants.

use super::{Entry, Exchange, LINE_MAX, VERSION, nonce, read_line};
use muster_protocol::age::config::PARTICIPANTS_MAX;
use std::io::{self, BufReader, Read, Write};
use std::net::{TcpStream, ToSocketAddrs};
use std::time::Duration;
use thiserror::Error;

/// For the connection, and for each line but the last.
const TIMEOUT: Duration = Duration::from_secs(5);
/// For the list. The agent then joins again, in case the server has gone.
const LIST_TIMEOUT: Duration = Duration::from_secs(60);
/// The longest list that is read before its proof is checked.
const LIST_MAX: usize = 64 << 20;

/// Why there is no list yet.
#[derive(Debug, Error)]
pub enum JoinError {
    /// The server cannot be reached, or has gone.
    #[error("{server}: {source}")]
    Io {
        /// The address as given.
        server: String,
        /// The system's error.
        source: io::Error,
    },
    /// The server refuses this node.
    #[error("{server} refuses this node: {why}")]
    Refused {
        /// The address as given.
        server: String,
        /// The server's reason.
        why: String,
    },
    /// The peer is not a gossip server of this job.
    #[error(
        "{server} is not a gossip server of this job: {why}; give it the same key (--key-file)"
    )]
    Foreign {
        /// The address as given.
        server: String,
        /// What is wrong.
        why: &'static str,
    },
}

/// Joins, and waits until all participants have.
///
/// # Errors
/// Why there is no list. The server may have registered this node; joining again is safe.
pub fn join(server: &str, key: &[u8; 32], own: &Entry) -> Result<Vec<Entry>, JoinError> {
    let io = |source| JoinError::Io {
        server: server.to_owned(),
        source,
    };
    let foreign = |why| JoinError::Foreign {
        server: server.to_owned(),
        why,
    };
    let stream = connect(server).map_err(io)?;
    stream.set_read_timeout(Some(TIMEOUT)).map_err(io)?;
    stream.set_write_timeout(Some(TIMEOUT)).map_err(io)?;
    let mut reader = BufReader::new(stream.try_clone().map_err(io)?);
    let greeting = read_line(&mut reader, LINE_MAX).map_err(io)?;
    let greeting = greeting
        .strip_prefix("rendezvous ")
        .and_then(|rest| rest.split_once(' '));
    let (version, server_nonce) =
        greeting.ok_or(foreign("its first line is not a gossip server's"))?;
    if version != VERSION {
        return Err(foreign(
            "its protocol version differs; run one release of Muster",
        ));
    }
    let client_nonce = nonce();
    let exchange = Exchange {
        key,
        server: server_nonce,
        client: &client_nonce,
    };
    let line = own.line();
    let request = format!("join {client_nonce} {line} {}\n", exchange.proof(&line));
    (&stream).write_all(request.as_bytes()).map_err(io)?;
    stream.set_read_timeout(Some(LIST_TIMEOUT)).map_err(io)?;
    let answer = read_line(&mut reader, LINE_MAX).map_err(io)?;
    if let Some(why) = answer.strip_prefix("refused ") {
        return Err(JoinError::Refused {
            server: server.to_owned(),
            why: why.to_owned(),
        });
    }
    let answer = answer
        .strip_prefix("list ")
        .and_then(|rest| rest.split_once(' '));
    let (count, proof) = answer.ok_or(foreign("its answer is neither a list nor a refusal"))?;
    let count = count
        .parse()
        .ok()
        .filter(|count| *count <= PARTICIPANTS_MAX);
    let count = count.ok_or(foreign("its list has too many participants"))?;
    read_list(&mut reader, count, &exchange, proof).map_err(|error| match error {
        ListError::Io(error) => io(error),
        ListError::Foreign => {
            foreign("the proof of its list is wrong, or the list cannot be parsed")
        }
    })
}

enum ListError {
    Io(io::Error),
    Foreign,
}

fn read_list(
    reader: &mut impl Read,
    count: usize,
    exchange: &Exchange<'_>,
    proof: &str,
) -> Result<Vec<Entry>, ListError> {
    let mut list = String::new();
    for _ in 0..count {
        list += &read_line(reader, LINE_MAX).map_err(ListError::Io)?;
        list.push('\n');
        if list.len() > LIST_MAX {
            return Err(ListError::Foreign);
        }
    }
    if !exchange.is_proof(&list, proof) {
        return Err(ListError::Foreign);
    }
    let entries: Option<Vec<Entry>> = list.lines().map(Entry::read).collect();
    entries.ok_or(ListError::Foreign)
}

fn connect(server: &str) -> io::Result<TcpStream> {
    let mut last = io::Error::other("the name has no address");
    for address in server.to_socket_addrs()? {
        match TcpStream::connect_timeout(&address, TIMEOUT) {
            Ok(stream) => return Ok(stream),
            Err(error) => last = error,
        }
    }
    Err(last)
}
