//! The bootstrap publisher: publishes the agent's rails, requests those of others, and tells the agent.
//!
//! Every rank that holds a PMIx session has the launcher's map of the job. One rank of each node is its publisher.
//! A request is repeated after a pause until it is answered. For addresses that ends after a minute: an agent that
//! starts later finds this one. For the key it never ends.
//!
//! All answers are kept, so that an agent that replaces a lost one gets them again.

use std::collections::BTreeSet;
use std::ffi::CStr;

use crate::AgentLink;
use muster_ipc::ADDRESS_MAX;
use muster_pmix::{Answer, Inbox, Job, Session, Ticket};

use super::CHECK_FIRST_US;

/// PMIx key under which each publisher puts the rails of its node's agent, as text.
const RAILS: &CStr = c"muster.nids";
/// PMIx key under which rank 0 puts the job's key, as 64 hexadecimal digits.
const KEY: &CStr = c"muster.key";

/// Up to this many nodes every publisher requests every other's rails; beyond, those of a sample. Up to this many
/// nodes the agent is also told which ranks run where. Participants of age gossip may be named by their rails, so
/// that needs all rails; age gossip with pings in messages has no more nodes than this.
const ASK_ALL_NODES: usize = 128;
/// Nodes that are requested in a larger job, among them the next in order. Any one that answers leads to all
/// others; the sample is for the case that the others are dead.
const SAMPLE_NODES: usize = 16;

/// First and longest pause before a request is repeated.
const PAUSE_FIRST_US: u64 = 2_000;
const PAUSE_MAX_US: u64 = 2_000_000;
/// A request that got no answer for this long is repeated: the server that received it may have died.
const UNANSWERED_US: u64 = 10_000_000;
/// After this long an address is not requested any more: an agent that starts later finds this one.
const SEEK_SEEDS_US: u64 = 60_000_000;
/// First interval between two checks for answers; doubled each time, up to [`PAUSE_MAX_US`].
const ANSWER_CHECK_US: u64 = 1_000;

/// An item for the agent of this node.
#[derive(Clone, PartialEq, Eq)]
enum Delivery {
    /// The rails of another node's agent, in that agent's text form.
    Seed(String),
    /// The job's key.
    Key([u8; 32]),
    /// The ranks on a node, which is given by its name or its rails.
    Placed(String, Vec<u32>),
}

/// What this node publishes about its agent.
#[derive(Clone, PartialEq, Eq)]
struct Publication {
    rails: String,
    /// The job's key, if this node's agent created it.
    key: Option<[u8; 32]>,
}

/// A request for a published value, until it is answered.
struct Request {
    rank: u32,
    subject: Subject,
    waiting: Option<Ticket>,
    /// When it was last sent, or (not waiting) when to send it again.
    at_us: u64,
    pause_us: u64,
    since_us: u64,
}

#[derive(Clone, Copy, PartialEq, Eq)]
enum Subject {
    Rails,
    Key,
}

/// The state that exists once MPI's PMIx is up.
pub(super) struct PmixSession {
    pub(super) session: Session,
    pub(super) job: Job,
    inbox: Inbox,
    published: Option<Publication>,
    requests: Vec<Request>,
    asked: bool,
    /// Whether PMIx numbers ranks as Muster does, so that the agent is told where they run.
    places: bool,
    check_us: u64,
    /// Pause before the agent is asked again for what is to be published.
    pause_us: u64,
    /// All answers; they are sent again to an agent that replaces a lost one.
    learned: Vec<Delivery>,
    /// How many of them the agent has been told.
    pub(super) told_agent: usize,
}
impl PmixSession {
    /// `is_alike`: ranks have the same number in MPI and in Muster.
    pub(super) fn new(session: Session, job: Job, is_alike: bool) -> Self {
        // At most one request to each node at a time, and one for the key.
        let nodes = job.nodes.len();
        let inbox = Inbox::new(nodes.min(ASK_ALL_NODES) + 1);
        Self {
            session,
            job,
            inbox,
            places: is_alike && nodes <= ASK_ALL_NODES,
            published: None,
            requests: Vec::new(),
            asked: false,
            check_us: ANSWER_CHECK_US,
            pause_us: CHECK_FIRST_US,
            learned: Vec::new(),
            told_agent: 0,
        }
    }

    /// Runs one round. Returns when the next one is due, `None` when all is done.
    pub(super) fn run(&mut self, now_us: u64, link: &AgentLink) -> Option<u64> {
        let published = self.publish(link);
        self.list_requests(now_us);
        self.collect(now_us);
        let next_us = self.send_requests(now_us);
        if !self.tell_agent(link) || !published {
            // The agent has not stated its rails yet, or has no key to publish (it may have one from
            // elsewhere), or its socket is full.
            let due_us = now_us.saturating_add(self.pause_us);
            self.pause_us = (self.pause_us * 2).min(PAUSE_MAX_US);
            return Some(next_us.map_or(due_us, |next_us| next_us.min(due_us)));
        }
        self.pause_us = CHECK_FIRST_US;
        next_us
    }

    /// Whether this rank is the publisher of its node: the lowest one there.
    pub(super) fn is_publisher(&self) -> bool {
        self.job
            .nodes
            .iter()
            .any(|node| node.publisher == self.session.rank())
    }

    /// Publishes the agent's rails and, on rank 0, the key. `false`: the agent has more to publish, or PMIx
    /// refused it.
    fn publish(&mut self, link: &AgentLink) -> bool {
        let Some(rails) = link.address() else {
            return false;
        };
        let makes_key = self.session.rank() == 0;
        let mut publication = Publication { rails, key: None };
        if makes_key {
            // The first key counts: an agent that replaces a lost one gets that key.
            let first = self.learned.iter().find_map(Delivery::key);
            let key = first.or_else(|| link.key_for_publication());
            if let Some(key) = key.filter(|_| first.is_none()) {
                self.learned.push(Delivery::Key(key));
            }
            publication.key = key;
        }
        // Without a key the rails are published all the same: the agents may have a key from a file.
        let whole = !makes_key || publication.key.is_some();
        if self.published.as_ref() == Some(&publication) {
            return whole;
        }
        let mut done = self.session.put(RAILS, &publication.rails);
        if let Some(key) = &publication.key {
            done = done.and_then(|()| self.session.put(KEY, &to_hex(key)));
        }
        let done = done.and_then(|()| self.session.commit()).is_ok();
        if done {
            self.published = Some(publication);
        }
        done && whole
    }

    /// Sends the agent what it has not been told. `false`: its socket is full.
    fn tell_agent(&mut self, link: &AgentLink) -> bool {
        while let Some(delivery) = self.learned.get(self.told_agent) {
            let taken = match delivery {
                Delivery::Seed(rails) if rails.len() > ADDRESS_MAX => true,
                Delivery::Seed(rails) => link.send_seed(rails),
                Delivery::Key(key) => link.send_key(*key),
                Delivery::Placed(node, _) if node.len() > ADDRESS_MAX => true,
                Delivery::Placed(node, ranks) => link.send_placed(node, ranks),
            };
            if !taken {
                return false;
            }
            self.told_agent += 1;
        }
        true
    }

    /// Lists the requests, once; [`Self::send_requests`] sends them.
    fn list_requests(&mut self, now_us: u64) {
        if std::mem::replace(&mut self.asked, true) {
            return;
        }
        let own = self.session.rank();
        let request = |rank, subject| Request {
            rank,
            subject,
            waiting: None,
            at_us: now_us,
            pause_us: PAUSE_FIRST_US,
            since_us: now_us,
        };
        if own != 0 {
            self.requests.push(request(0, Subject::Key));
        }
        let publishers: Vec<u32> = self.job.nodes.iter().map(|node| node.publisher).collect();
        let others = publishers_to_ask(&publishers, own);
        self.requests
            .extend(others.into_iter().map(|rank| request(rank, Subject::Rails)));
        for node in self
            .job
            .nodes
            .iter()
            .filter(|node| self.places && node.publisher != own)
        {
            if !node.name.is_empty() {
                let ranks = self.job.ranks_with(node.publisher);
                self.learned
                    .push(Delivery::Placed(node.name.clone(), ranks));
            }
        }
    }

    /// Takes the answers that have come. A request that failed is repeated after a pause.
    fn collect(&mut self, now_us: u64) {
        while let Some(Answer { ticket, value }) = self.inbox.take() {
            let Some(index) = self.requests.iter().position(|q| q.waiting == Some(ticket)) else {
                continue;
            };
            let request = &mut self.requests[index];
            let delivery = match (value, request.subject) {
                (Ok(rails), Subject::Rails) => {
                    if self.places {
                        let ranks = self.job.ranks_with(request.rank);
                        let placed = Delivery::Placed(rails.clone(), ranks);
                        self.learned.push(placed);
                    }
                    Some(Delivery::Seed(rails))
                }
                (Ok(hex), Subject::Key) => from_hex(&hex).map(Delivery::Key),
                (Err(_), _) => None,
            };
            match delivery {
                Some(delivery) => {
                    self.requests.swap_remove(index);
                    self.learned.push(delivery);
                }
                None => request.pause(now_us),
            }
        }
    }

    /// Sends the requests that are due. Returns when the next one is.
    fn send_requests(&mut self, now_us: u64) -> Option<u64> {
        let (session, inbox) = (&self.session, &self.inbox);
        let mut asked = false;
        self.requests.retain_mut(|request| {
            let too_late = request.subject == Subject::Rails
                && now_us.saturating_sub(request.since_us) > SEEK_SEEDS_US;
            if let Some(ticket) = request.waiting
                && (too_late || now_us.saturating_sub(request.at_us) > UNANSWERED_US)
            {
                inbox.forget(ticket);
                request.waiting = None;
                request.at_us = now_us;
            }
            if too_late {
                return false;
            }
            if request.waiting.is_none() && now_us >= request.at_us {
                let key = if request.subject == Subject::Key {
                    KEY
                } else {
                    RAILS
                };
                match session.ask(request.rank, key, true, inbox) {
                    Ok(ticket) => {
                        request.waiting = Some(ticket);
                        request.at_us = now_us;
                        asked = true;
                    }
                    Err(_) => request.pause(now_us),
                }
            }
            true
        });
        self.check_us = if asked {
            ANSWER_CHECK_US
        } else {
            (self.check_us * 2).min(PAUSE_MAX_US)
        };
        let check_us = now_us.saturating_add(self.check_us);
        self.requests
            .iter()
            .map(|request| {
                if request.waiting.is_some() {
                    check_us
                } else {
                    request.at_us
                }
            })
            .min()
    }
}

impl Delivery {
    fn key(&self) -> Option<[u8; 32]> {
        match self {
            Self::Key(key) => Some(*key),
            Self::Seed(_) | Self::Placed(..) => None,
        }
    }
}

impl Request {
    fn pause(&mut self, now_us: u64) {
        self.waiting = None;
        self.at_us = now_us.saturating_add(self.pause_us);
        self.pause_us = (self.pause_us * 2).min(PAUSE_MAX_US);
    }
}

/// Returns all other publishers of a small job. In a large job, returns the next one in order, which closes a ring
/// over all nodes, and some that are spread evenly over the others.
fn publishers_to_ask(publishers: &[u32], own: u32) -> Vec<u32> {
    let Some(place) = publishers.iter().position(|rank| *rank == own) else {
        return Vec::new();
    };
    let count = publishers.len();
    let others = count - 1;
    let at = |distance: usize| publishers[(place + distance) % count];
    if count <= ASK_ALL_NODES {
        return (1..=others).map(at).collect();
    }
    // Distance 1, and evenly spread ones with an offset that differs from node to node.
    let stride = others / SAMPLE_NODES;
    let offset = place % stride;
    let mut distances = BTreeSet::from([1]);
    distances.extend((1..SAMPLE_NODES).map(|i| 1 + (i * stride + offset) % others));
    distances.into_iter().map(at).collect()
}

fn to_hex(key: &[u8; 32]) -> String {
    key.iter().map(|byte| format!("{byte:02x}")).collect()
}

/// Parses exactly 64 hexadecimal digits.
fn from_hex(text: &str) -> Option<[u8; 32]> {
    let digits = text.as_bytes();
    if digits.len() != 64 {
        return None;
    }
    let mut key = [0; 32];
    for (byte, pair) in key.iter_mut().zip(digits.chunks_exact(2)) {
        let value = |digit: u8| char::from(digit).to_digit(16);
        *byte = (value(pair[0])? << 4 | value(pair[1])?) as u8;
    }
    Some(key)
}
#[cfg(test)]
mod tests {
    use super::*;
    use muster_protocol::GOSSIP_AHEAD_MEMBERS_MAX;

    #[test]
    fn a_key_survives_its_text_form() {
        let key: [u8; 32] = std::array::from_fn(|i| (i * 37) as u8);
        assert_eq!(from_hex(&to_hex(&key)), Some(key));
        assert_eq!(from_hex("00"), None);
        assert_eq!(from_hex(&"g".repeat(64)), None);
        assert_eq!(from_hex(&"+1".repeat(32)), None);
    }

    #[test]
    fn a_publisher_of_a_small_job_asks_all_others() {
        assert_eq!(publishers_to_ask(&[0, 2, 4, 6], 4), vec![6, 0, 2]);
        assert_eq!(publishers_to_ask(&[0], 0), Vec::<u32>::new());
        // In the largest job with pings in messages, all nodes are requested.
        let most: Vec<u32> = (0..GOSSIP_AHEAD_MEMBERS_MAX as u32).collect();
        assert_eq!(publishers_to_ask(&most, 7).len(), most.len() - 1);
        assert_eq!(
            publishers_to_ask(&[0, 2], 1),
            Vec::<u32>::new(),
            "only a publisher has requests"
        );
    }

    /// Every publisher requests the next one in order, so the requests alone connect the whole job.
    #[test]
    fn a_publisher_of_a_large_job_asks_a_few_and_the_job_stays_connected() {
        for count in [129, 130, 200, 1000, 4097] {
            let publishers: Vec<u32> = (0..count).map(|node| node * 16).collect();
            for (place, own) in publishers.iter().enumerate() {
                let asked = publishers_to_ask(&publishers, *own);
                assert!(asked.len() <= SAMPLE_NODES && asked.len() > SAMPLE_NODES / 2);
                assert!(asked.contains(&publishers[(place + 1) % publishers.len()]));
                assert!(!asked.contains(own));
            }
        }
    }

    #[test]
    fn pauses_grow_to_a_bound() {
        let mut request = Request {
            rank: 0,
            subject: Subject::Key,
            waiting: Some(1),
            at_us: 0,
            pause_us: PAUSE_FIRST_US,
            since_us: 0,
        };
        request.pause(100);
        assert_eq!(
            (request.waiting, request.at_us),
            (None, 100 + PAUSE_FIRST_US)
        );
        for _ in 0..20 {
            request.pause(0);
        }
        assert_eq!(request.pause_us, PAUSE_MAX_US);
    }
}
