//! One who takes part comes to the server, and waits for the list.

use super::{Entry, LINE_MAX, Talk, VERSION, nonce, read_line};
use muster_protocol::age::config::PARTICIPANTS_MAX;
use std::io::{self, BufReader, Read, Write};
use std::net::{TcpStream, ToSocketAddrs};
use std::time::Duration;
use thiserror::Error;

/// For the connection, and for each word but the last.
const PATIENCE: Duration = Duration::from_secs(5);
/// For the list; then it is asked for again, in case the server is no more.
const PATIENCE_FOR_ALL: Duration = Duration::from_secs(60);
/// The longest list, before its proof is looked at.
const LIST_MAX: usize = 64 << 20;

/// Why there is no list yet.
#[derive(Debug, Error)]
pub(crate) enum JoinError {
    /// The server is not reached, or has gone.
    #[error("{server}: {source}")]
    Io {
        /// Its address as given.
        server: String,
        /// What the system says.
        source: io::Error,
    },
    /// The server does not take us.
    #[error("{server} refuses this node: {why}")]
    Refused {
        /// Its address as given.
        server: String,
        /// Its words.
        why: String,
    },
    /// What it says is no roster of this job.
    #[error("{server} is no gossip server of this job: {why}; is it given the same key?")]
    Foreign {
        /// Its address as given.
        server: String,
        /// What is wrong.
        why: &'static str,
    },
}

/// Joins, and waits until all have.
///
/// # Errors
/// Why there is no list. The server may have noted us; joining again is no harm.
pub(crate) fn join(server: &str, key: &[u8; 32], own: &Entry) -> Result<Vec<Entry>, JoinError> {
    let io = |source| JoinError::Io {
        server: server.to_owned(),
        source,
    };
    let foreign = |why| JoinError::Foreign {
        server: server.to_owned(),
        why,
    };
    let stream = connect(server).map_err(io)?;
    stream.set_read_timeout(Some(PATIENCE)).map_err(io)?;
    stream.set_write_timeout(Some(PATIENCE)).map_err(io)?;
    let mut reader = BufReader::new(stream.try_clone().map_err(io)?);
    let greeting = read_line(&mut reader, LINE_MAX).map_err(io)?;
    let greeting = greeting
        .strip_prefix("roster ")
        .and_then(|rest| rest.split_once(' '));
    let (version, theirs) = greeting.ok_or(foreign("it does not greet as one"))?;
    if version != VERSION {
        return Err(foreign("it is of another release"));
    }
    let ours = nonce();
    let talk = Talk {
        key,
        server: theirs,
        client: &ours,
    };
    let line = own.line();
    let said = format!("join {ours} {line} {}\n", talk.proof(&line));
    (&stream).write_all(said.as_bytes()).map_err(io)?;
    stream
        .set_read_timeout(Some(PATIENCE_FOR_ALL))
        .map_err(io)?;
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
    let (count, proof) = answer.ok_or(foreign("it answers something else"))?;
    let count = count
        .parse()
        .ok()
        .filter(|count| *count <= PARTICIPANTS_MAX);
    let count = count.ok_or(foreign("it tells of too many"))?;
    read_list(&mut reader, count, &talk, proof).map_err(|error| match error {
        ListError::Io(error) => io(error),
        ListError::Foreign => foreign("its list is not proven, or cannot be read"),
    })
}

enum ListError {
    Io(io::Error),
    Foreign,
}

fn read_list(
    reader: &mut impl Read,
    count: usize,
    talk: &Talk<'_>,
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
    if !talk.is_proof(&list, proof) {
        return Err(ListError::Foreign);
    }
    let entries: Option<Vec<Entry>> = list.lines().map(Entry::read).collect();
    entries.ok_or(ListError::Foreign)
}

fn connect(server: &str) -> io::Result<TcpStream> {
    let mut last = io::Error::other("the name has no address");
    for address in server.to_socket_addrs()? {
        match TcpStream::connect_timeout(&address, PATIENCE) {
            Ok(stream) => return Ok(stream),
            Err(error) => last = error,
        }
    }
    Err(last)
}
