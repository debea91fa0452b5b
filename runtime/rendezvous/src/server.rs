//! The server: sends a greeting, registers participants, and sends all of them the list when all have joined. It
//! has one thread and waits for no single client.

use super::{Entry, Exchange, LINE_MAX, VERSION, nonce};
use muster_protocol::AgeConfig;
use muster_protocol::age::Participant;
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use std::collections::BTreeMap;
use std::io::{self, ErrorKind, Read, Write};
use std::net::{SocketAddr, TcpListener, TcpStream};
use std::time::{Duration, Instant};
use tracing::{info, warn};

/// Connections beyond the number of participants: for those that join again, and for unauthenticated senders.
const SPARE_CONNECTIONS: usize = 256;
/// A connection that sends nothing, or does not read, for this long is closed.
const TIMEOUT: Duration = Duration::from_secs(10);
/// Connections that are sent the list at a time: each has a copy of it.
const SENDING_MAX: usize = 64;
/// Pause after a failed accept.
const ACCEPT_PAUSE: Duration = Duration::from_millis(100);
/// Longest wait for an event, so that time-outs are checked.
const POLL_INTERVAL: Timespec = Timespec {
    tv_sec: 1,
    tv_nsec: 0,
};

/// A gossip server.
pub struct Server {
    listener: TcpListener,
    key: [u8; 32],
    /// Number of participants.
    expected: usize,
    joined: BTreeMap<String, Entry>,
    /// The lines of all participants, once all have joined.
    list: Option<String>,
    registrants: Vec<Registrant>,
}

/// A connection.
struct Registrant {
    stream: TcpStream,
    nonce: String,
    received: Vec<u8>,
    /// What it is sent, and how much of that has been.
    outgoing: Vec<u8>,
    sent: usize,
    stage: Stage,
    since: Instant,
}

#[derive(Debug, PartialEq, Eq)]
enum Stage {
    /// It has not joined yet.
    New,
    /// It waits for the list, whose proof includes this nonce of the client.
    Waiting(String),
    /// It is sent its last message.
    Leaving,
}

impl Server {
    /// Opens a server for this many participants of the job with this key.
    ///
    /// # Errors
    /// The address cannot be listened at.
    pub fn open(at: SocketAddr, expected: usize, key: [u8; 32]) -> io::Result<Self> {
        let listener = TcpListener::bind(at)?;
        listener.set_nonblocking(true)?;
        Ok(Self {
            listener,
            key,
            expected,
            joined: BTreeMap::new(),
            list: None,
            registrants: Vec::new(),
        })
    }

    /// The address at which it listens.
    ///
    /// # Errors
    /// The system's error.
    pub fn address(&self) -> io::Result<SocketAddr> {
        self.listener.local_addr()
    }

    /// How many participants have joined.
    #[must_use]
    pub fn joined(&self) -> usize {
        self.joined.len()
    }

    /// Waits for events for at most a second, and handles them.
    ///
    /// # Errors
    /// The wait failed. An error on one connection only closes that connection.
    pub fn turn(&mut self) -> io::Result<()> {
        let mut waited = vec![PollFd::new(&self.listener, PollFlags::IN)];
        waited.extend(self.registrants.iter().map(|registrant| {
            let writes = registrant.sent < registrant.outgoing.len();
            let wanted = if writes {
                PollFlags::OUT
            } else {
                PollFlags::IN
            };
            PollFd::new(&registrant.stream, wanted)
        }));
        match poll(&mut waited, Some(&POLL_INTERVAL)) {
            Ok(_) | Err(rustix::io::Errno::INTR) => {}
            Err(error) => return Err(error.into()),
        }
        drop(waited);
        self.accept();
        let mut registrants = std::mem::take(&mut self.registrants);
        registrants.retain_mut(|registrant| self.serve(registrant));
        self.registrants = registrants;
        self.send_list();
        Ok(())
    }

    fn accept(&mut self) {
        loop {
            let stream = match self.listener.accept() {
                Ok((stream, _)) => stream,
                Err(error) if error.kind() == ErrorKind::WouldBlock => return,
                Err(error) => {
                    warn!(%error, "cannot accept a connection; pausing");
                    // The system may be out of descriptors: connections that end free some.
                    return std::thread::sleep(ACCEPT_PAUSE);
                }
            };
            let is_full = self.registrants.len() >= self.expected + SPARE_CONNECTIONS;
            if is_full || stream.set_nonblocking(true).is_err() {
                warn!("closed a connection: too many are open, or it cannot be made non-blocking");
                continue;
            }
            let nonce = nonce();
            self.registrants.push(Registrant {
                stream,
                outgoing: format!("rendezvous {VERSION} {nonce}\n").into_bytes(),
                nonce,
                received: Vec::new(),
                sent: 0,
                stage: Stage::New,
                since: Instant::now(),
            });
        }
    }

    /// Writes and reads what is possible. Returns whether the connection stays open.
    fn serve(&mut self, registrant: &mut Registrant) -> bool {
        if !registrant.write() {
            return false;
        }
        let is_sent = registrant.sent == registrant.outgoing.len();
        if registrant.stage == Stage::Leaving && is_sent {
            return false;
        }
        let may_wait = matches!(registrant.stage, Stage::Waiting(_)) && is_sent;
        if !may_wait && registrant.since.elapsed() > TIMEOUT {
            return false;
        }
        match registrant.read() {
            Received::Nothing => true,
            Received::End => false,
            // A client that waits has nothing more to send.
            Received::Line(_) if registrant.stage != Stage::New => false,
            Received::Line(line) => {
                match self.register(registrant, &line) {
                    Ok(nonce) => registrant.stage = Stage::Waiting(nonce),
                    Err(why) => registrant.refuse(&why),
                }
                true
            }
        }
    }

    /// Handles a join request. Returns the client's nonce, or why it is refused.
    fn register(&mut self, registrant: &Registrant, line: &str) -> Result<String, String> {
        let fields: Vec<&str> = line.split(' ').collect();
        let ["join", client, nids, group, name, proof] = fields[..] else {
            return Err("its line is not a join request".into());
        };
        let exchange = Exchange {
            key: &self.key,
            server: &registrant.nonce,
            client,
        };
        let payload = format!("{nids} {group} {name}");
        if !exchange.is_proof(&payload, proof) {
            warn!(
                nids,
                "refused a participant: it has another key; give it and the server one key (--key-file)"
            );
            return Err(
                "it has another key than the server; give both the same key (--key-file)".into(),
            );
        }
        let entry = Entry::read(&payload).ok_or("its entry cannot be parsed")?;
        let known = self.joined.get(entry.first_nid());
        if self.list.is_some() && known != Some(&entry) {
            warn!(
                nids,
                group, "refused a participant that is not in the complete list"
            );
            return Err(format!(
                "{} participants have joined, and it is not one of them with these NIDs, this group and this \
                 name; restart the server for other participants",
                self.expected
            ));
        }
        if known.is_some_and(|known| *known != entry) {
            return Err("another participant has the same first NID; give each its own".into());
        }
        if self
            .joined
            .insert(entry.first_nid().to_owned(), entry)
            .is_none()
        {
            let (joined, expected) = (self.joined.len(), self.expected);
            info!(nids, group, joined, expected, "a participant joined");
        }
        Ok(client.to_owned())
    }

    /// If all have joined, sends the list to those that wait.
    fn send_list(&mut self) {
        if self.list.is_none() && self.joined.len() == self.expected {
            match self.check() {
                Ok(()) => {
                    let entries = self.joined.values();
                    self.list = Some(entries.map(|entry| entry.line() + "\n").collect());
                    info!(participants = self.expected, "the list is complete");
                }
                Err(why) => {
                    warn!(
                        why,
                        "these participants cannot gossip; the server forgets them"
                    );
                    self.joined.clear();
                    for registrant in &mut self.registrants {
                        if matches!(registrant.stage, Stage::Waiting(_)) {
                            registrant.refuse(&why);
                        }
                    }
                }
            }
        }
        let Some(list) = &self.list else { return };
        let is_sent = |registrant: &&Registrant| registrant.stage == Stage::Leaving;
        let outgoing = self.registrants.iter().filter(is_sent).count();
        let mut room = SENDING_MAX.saturating_sub(outgoing);
        for registrant in &mut self.registrants {
            let Stage::Waiting(client) = &registrant.stage else {
                continue;
            };
            if room == 0 {
                break;
            }
            room -= 1;
            let exchange = Exchange {
                key: &self.key,
                server: &registrant.nonce,
                client,
            };
            let head = format!("list {} {}\n", self.expected, exchange.proof(list));
            registrant.outgoing.extend(head.bytes().chain(list.bytes()));
            registrant.stage = Stage::Leaving;
            registrant.since = Instant::now();
        }
    }

    /// Checks the participants as the engine does: all on one net, with valid names.
    fn check(&self) -> Result<(), String> {
        let participants = self.joined.values().map(|entry| Participant {
            group: entry.group.clone(),
            name: entry.name.clone(),
            ..Participant::new(&entry.nids)
        });
        let own = self.joined.keys().next().cloned().unwrap_or_default();
        let config = AgeConfig::new(&own, participants.collect());
        config.check().map_err(|error| error.to_string())
    }
}

enum Received {
    Nothing,
    Line(String),
    End,
}

impl Registrant {
    /// Writes what is pending. Returns whether the connection stays open.
    fn write(&mut self) -> bool {
        while self.sent < self.outgoing.len() {
            match self.stream.write(&self.outgoing[self.sent..]) {
                Ok(0) => return false,
                Ok(count) => self.sent += count,
                Err(error) if error.kind() == ErrorKind::WouldBlock => return true,
                Err(error) if error.kind() == ErrorKind::Interrupted => {}
                Err(_) => return false,
            }
        }
        true
    }

    fn read(&mut self) -> Received {
        let mut bytes = [0; LINE_MAX];
        match self.stream.read(&mut bytes) {
            Ok(0) => return Received::End,
            Ok(count) => self.received.extend(&bytes[..count]),
            Err(error)
                if matches!(error.kind(), ErrorKind::WouldBlock | ErrorKind::Interrupted) =>
            {
                return Received::Nothing;
            }
            Err(_) => return Received::End,
        }
        let Some(end) = self.received.iter().position(|byte| *byte == b'\n') else {
            let is_too_long = self.received.len() > LINE_MAX;
            return if is_too_long {
                Received::End
            } else {
                Received::Nothing
            };
        };
        let line = self.received.drain(..=end).take(end).collect();
        String::from_utf8(line).map_or(Received::End, Received::Line)
    }

    fn refuse(&mut self, why: &str) {
        // One line, whatever text it quotes.
        let why: String = why.chars().filter(|c| !c.is_control()).take(400).collect();
        self.outgoing.extend(format!("refused {why}\n").bytes());
        self.stage = Stage::Leaving;
        self.since = Instant::now();
    }
}
