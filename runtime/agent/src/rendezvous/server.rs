//! The server: it greets, notes who comes, and tells all when all are there. One thread, nobody is waited for.

use super::{Entry, LINE_MAX, Talk, VERSION, nonce};
use muster_protocol::AgeConfig;
use muster_protocol::age::Participant;
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use std::collections::BTreeMap;
use std::io::{self, ErrorKind, Read, Write};
use std::net::{SocketAddr, TcpListener, TcpStream};
use std::time::{Duration, Instant};
use tracing::{info, warn};

/// Connections beyond the number of participants: those who come again, and strangers.
const GUESTS_MORE: usize = 256;
/// Who has said nothing for so long, or takes so long to read, is hung up on.
const PATIENCE: Duration = Duration::from_secs(10);
/// Connections that are told the list at the same time: each has a copy.
const TOLD_AT_ONCE: usize = 64;
/// After a connection could not be taken.
const REST: Duration = Duration::from_millis(100);
/// How often it is looked for them.
const LOOK: Timespec = Timespec {
    tv_sec: 1,
    tv_nsec: 0,
};

/// A gossip server.
pub struct Server {
    listener: TcpListener,
    key: [u8; 32],
    /// How many take part.
    expected: usize,
    joined: BTreeMap<String, Entry>,
    /// Lines of all who take part, once all have come.
    list: Option<String>,
    registrants: Vec<Registrant>,
}

/// A connection.
struct Registrant {
    stream: TcpStream,
    nonce: String,
    heard: Vec<u8>,
    /// What it is told, and how much of that it has been.
    told: Vec<u8>,
    sent: usize,
    stage: Stage,
    since: Instant,
}

#[derive(Debug, PartialEq, Eq)]
enum Stage {
    /// It has not said who it is.
    New,
    /// It waits for the list, which is proven with its nonce.
    Waiting(String),
    /// It is told the last.
    Leaving,
}

impl Server {
    /// A server for so many participants of the job with this key.
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

    /// Where it listens.
    ///
    /// # Errors
    /// What the system says.
    pub fn address(&self) -> io::Result<SocketAddr> {
        self.listener.local_addr()
    }

    /// How many have come.
    #[must_use]
    pub fn joined(&self) -> usize {
        self.joined.len()
    }

    /// Waits for something, for a second at most, and does it.
    ///
    /// # Errors
    /// The wait failed. What happens to one connection ends that one.
    pub fn turn(&mut self) -> io::Result<()> {
        let mut waited = vec![PollFd::new(&self.listener, PollFlags::IN)];
        waited.extend(self.registrants.iter().map(|registrant| {
            let writes = registrant.sent < registrant.told.len();
            let wanted = if writes {
                PollFlags::OUT
            } else {
                PollFlags::IN
            };
            PollFd::new(&registrant.stream, wanted)
        }));
        match poll(&mut waited, Some(&LOOK)) {
            Ok(_) | Err(rustix::io::Errno::INTR) => {}
            Err(error) => return Err(error.into()),
        }
        drop(waited);
        self.let_in();
        let mut registrants = std::mem::take(&mut self.registrants);
        registrants.retain_mut(|registrant| self.serve(registrant));
        self.registrants = registrants;
        self.tell_all();
        Ok(())
    }

    fn let_in(&mut self) {
        loop {
            let stream = match self.listener.accept() {
                Ok((stream, _)) => stream,
                Err(error) if error.kind() == ErrorKind::WouldBlock => return,
                Err(error) => {
                    warn!(%error, "a connection could not be taken");
                    // The system may have no descriptors left: those who have been served leave some.
                    return std::thread::sleep(REST);
                }
            };
            let is_full = self.registrants.len() >= self.expected + GUESTS_MORE;
            if is_full || stream.set_nonblocking(true).is_err() {
                warn!("a connection was turned away");
                continue;
            }
            let nonce = nonce();
            self.registrants.push(Registrant {
                stream,
                told: format!("roster {VERSION} {nonce}\n").into_bytes(),
                nonce,
                heard: Vec::new(),
                sent: 0,
                stage: Stage::New,
                since: Instant::now(),
            });
        }
    }

    /// Writes and reads what there is. Whether the connection stays.
    fn serve(&mut self, registrant: &mut Registrant) -> bool {
        if !registrant.write() {
            return false;
        }
        let is_told = registrant.sent == registrant.told.len();
        if registrant.stage == Stage::Leaving && is_told {
            return false;
        }
        let may_wait = matches!(registrant.stage, Stage::Waiting(_)) && is_told;
        if !may_wait && registrant.since.elapsed() > PATIENCE {
            return false;
        }
        match registrant.read() {
            Heard::Nothing => true,
            Heard::End => false,
            // Whoever waits has said all there is to say.
            Heard::Line(_) if registrant.stage != Stage::New => false,
            Heard::Line(line) => {
                match self.note(registrant, &line) {
                    Ok(nonce) => registrant.stage = Stage::Waiting(nonce),
                    Err(why) => registrant.refuse(&why),
                }
                true
            }
        }
    }

    /// Somebody says who it is. Its nonce, or why it is not taken.
    fn note(&mut self, registrant: &Registrant, line: &str) -> Result<String, String> {
        let words: Vec<&str> = line.split(' ').collect();
        let ["join", client, nids, group, name, proof] = words[..] else {
            return Err("it says something else than who it is".into());
        };
        let talk = Talk {
            key: &self.key,
            server: &registrant.nonce,
            client,
        };
        let said = format!("{nids} {group} {name}");
        if !talk.is_proof(&said, proof) {
            warn!(nids, "one with another key was refused");
            return Err("it has another key than the server (--key-file)".into());
        }
        let entry = Entry::read(&said).ok_or("it names no NID")?;
        let known = self.joined.get(entry.first_nid());
        if self.list.is_some() && known != Some(&entry) {
            warn!(
                nids,
                group, "one who is not in the list came after all others"
            );
            return Err(format!(
                "{} participants have come, and it is not one of them with these NIDs, this group and this \
                 name; start the server anew for others",
                self.expected
            ));
        }
        if known.is_some_and(|known| *known != entry) {
            return Err("another participant has its first NID".into());
        }
        if self
            .joined
            .insert(entry.first_nid().to_owned(), entry)
            .is_none()
        {
            let (joined, expected) = (self.joined.len(), self.expected);
            info!(nids, group, joined, expected, "one has joined");
        }
        Ok(client.to_owned())
    }

    /// All are there: whoever waits is told.
    fn tell_all(&mut self) {
        if self.list.is_none() && self.joined.len() == self.expected {
            match self.check() {
                Ok(()) => {
                    let entries = self.joined.values();
                    self.list = Some(entries.map(|entry| entry.line() + "\n").collect());
                    info!(participants = self.expected, "the list is complete");
                }
                Err(why) => {
                    warn!(why, "these participants cannot gossip; they are forgotten");
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
        let is_told = |registrant: &&Registrant| registrant.stage == Stage::Leaving;
        let told = self.registrants.iter().filter(is_told).count();
        let mut room = TOLD_AT_ONCE.saturating_sub(told);
        for registrant in &mut self.registrants {
            let Stage::Waiting(client) = &registrant.stage else {
                continue;
            };
            if room == 0 {
                break;
            }
            room -= 1;
            let talk = Talk {
                key: &self.key,
                server: &registrant.nonce,
                client,
            };
            let head = format!("list {} {}\n", self.expected, talk.proof(list));
            registrant.told.extend(head.bytes().chain(list.bytes()));
            registrant.stage = Stage::Leaving;
            registrant.since = Instant::now();
        }
    }

    /// What the engine says of these participants: all on one net, with names that can be.
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

enum Heard {
    Nothing,
    Line(String),
    End,
}

impl Registrant {
    /// Writes what it is to be told. Whether the connection stands.
    fn write(&mut self) -> bool {
        while self.sent < self.told.len() {
            match self.stream.write(&self.told[self.sent..]) {
                Ok(0) => return false,
                Ok(count) => self.sent += count,
                Err(error) if error.kind() == ErrorKind::WouldBlock => return true,
                Err(error) if error.kind() == ErrorKind::Interrupted => {}
                Err(_) => return false,
            }
        }
        true
    }

    fn read(&mut self) -> Heard {
        let mut bytes = [0; LINE_MAX];
        match self.stream.read(&mut bytes) {
            Ok(0) => return Heard::End,
            Ok(count) => self.heard.extend(&bytes[..count]),
            Err(error)
                if matches!(error.kind(), ErrorKind::WouldBlock | ErrorKind::Interrupted) =>
            {
                return Heard::Nothing;
            }
            Err(_) => return Heard::End,
        }
        let Some(end) = self.heard.iter().position(|byte| *byte == b'\n') else {
            let is_too_long = self.heard.len() > LINE_MAX;
            return if is_too_long {
                Heard::End
            } else {
                Heard::Nothing
            };
        };
        let line = self.heard.drain(..=end).take(end).collect();
        String::from_utf8(line).map_or(Heard::End, Heard::Line)
    }

    fn refuse(&mut self, why: &str) {
        // One line, whatever it quotes.
        let why: String = why.chars().filter(|c| !c.is_control()).take(400).collect();
        self.told.extend(format!("refused {why}\n").bytes());
        self.stage = Stage::Leaving;
        self.since = Instant::now();
    }
}
