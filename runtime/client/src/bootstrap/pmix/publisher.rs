//! The spokesman's round: publish, ask, take answers, tell the agent.
//!
//! Whoever is a guest of PMIx holds the launcher's map of the job; of all guests on a node one is
//! the spokesman. Each question is put again after a pause until it is answered; for addresses
//! that ends after a minute (whoever starts later finds us), for the key never.
//!
//! What is learned is kept, so that an agent that comes in the place of a lost one is told again.

use std::collections::BTreeSet;
use std::ffi::CStr;

use crate::AgentLink;
use muster_ipc::ADDRESS_MAX;
use muster_pmix::{Answer, Inbox, Job, Session, Ticket};

use super::LOOK_FIRST_US;

/// Under this key each spokesman puts the rails of its node's agent, as text.
const RAILS: &CStr = c"muster.nids";
/// Under this key rank 0 puts the job's key, as 64 hexadecimal digits.
const KEY: &CStr = c"muster.key";

/// Nodes up to which every spokesman asks for every other; beyond, for a sample. And up to which the agent is told
/// which ranks run where: participants of age gossip may be called by their rails, so all rails are needed for that,
/// and where its messages carry pings there are no more nodes.
const ASK_ALL_NODES: usize = 128;
/// How many nodes are asked for in a larger job, the next in order among them. Any one that
/// answers leads to all others, so this is for the case that the others are dead.
const SAMPLE_NODES: usize = 16;

/// The first pause before asking again, and the longest.
const PAUSE_FIRST_US: u64 = 2_000;
const PAUSE_MOST_US: u64 = 2_000_000;
/// A question without any answer for this long is put again: the first may have met a server that
/// has died since.
const UNANSWERED_US: u64 = 10_000_000;
/// After this long an address is not asked for any more: whoever starts later finds us.
const SEEK_SEEDS_US: u64 = 60_000_000;
/// How often to look whether an answer has come, at first; doubled each time, up to
/// [`PAUSE_MOST_US`].
const ANSWER_LOOK_US: u64 = 1_000;

/// Something for the agent of this node.
#[derive(Clone, PartialEq, Eq)]
enum Delivery {
    /// The rails of another node's agent, as that agent wrote them.
    Seed(String),
    /// The job's key.
    Key([u8; 32]),
    /// The ranks on the node of this name, or of these rails.
    Placed(String, Vec<u32>),
}

/// What the job shall know of this node's agent.
#[derive(Clone, PartialEq, Eq)]
struct Notice {
    rails: String,
    /// The job's key, if this node's agent made it.
    key: Option<[u8; 32]>,
}

/// A question to the job, until it is answered.
struct Question {
    rank: u32,
    subject: Subject,
    waiting: Option<Ticket>,
    /// When it was last put, or (not waiting) when to put it again.
    at_us: u64,
    pause_us: u64,
    since_us: u64,
}

#[derive(Clone, Copy, PartialEq, Eq)]
enum Subject {
    Rails,
    Key,
}

/// The part that exists once MPI is up.
pub(super) struct PmixSession {
    pub(super) session: Session,
    pub(super) job: Job,
    inbox: Inbox,
    published: Option<Notice>,
    questions: Vec<Question>,
    asked: bool,
    /// Whether PMIx numbers ranks as Muster does, and the agent is told where they run.
    places: bool,
    look_us: u64,
    /// Until the agent is asked again for what is to be published.
    pause_us: u64,
    /// What was learned; told again to an agent that comes in the place of a lost one.
    learned: Vec<Delivery>,
    /// How much of it the agent has been told.
    pub(super) told_agent: usize,
}
impl PmixSession {
    /// `is_alike`: ranks have one number in MPI and in Muster.
    pub(super) fn new(session: Session, job: Job, is_alike: bool) -> Self {
        // A question at a time to each node, and one for the key.
        let nodes = job.nodes.len();
        let inbox = Inbox::new(nodes.min(ASK_ALL_NODES) + 1);
        Self {
            session,
            job,
            inbox,
            places: is_alike && nodes <= ASK_ALL_NODES,
            published: None,
            questions: Vec::new(),
            asked: false,
            look_us: ANSWER_LOOK_US,
            pause_us: LOOK_FIRST_US,
            learned: Vec::new(),
            told_agent: 0,
        }
    }

    /// The spokesman's round. Answers when the next one is due, `None` when all is done.
    pub(super) fn speak(&mut self, now_us: u64, link: &AgentLink) -> Option<u64> {
        let published = self.publish(link);
        self.ask_first(now_us);
        self.collect(now_us);
        let next_us = self.ask_again(now_us);
        if !self.tell_agent(link) || !published {
            // The agent has not said its rails yet, or no key (it may have one from elsewhere), or its
            // socket is full.
            let due_us = now_us.saturating_add(self.pause_us);
            self.pause_us = (self.pause_us * 2).min(PAUSE_MOST_US);
            return Some(next_us.map_or(due_us, |next_us| next_us.min(due_us)));
        }
        self.pause_us = LOOK_FIRST_US;
        next_us
    }

    /// Whether this rank is the lowest of its node.
    pub(super) fn speaks(&self) -> bool {
        self.job
            .nodes
            .iter()
            .any(|node| node.publisher == self.session.rank())
    }

    /// Puts what the agent wants known. `false`: there is more to come from the agent, or PMIx
    /// did not take it.
    fn publish(&mut self, link: &AgentLink) -> bool {
        let Some(rails) = link.address() else {
            return false;
        };
        let makes_key = self.session.rank() == 0;
        let mut notice = Notice { rails, key: None };
        if makes_key {
            // The first key counts: an agent that comes in the place of a lost one gets that.
            let first = self.learned.iter().find_map(Delivery::key);
            let key = first.or_else(|| link.key_for_publication());
            if let Some(key) = key.filter(|_| first.is_none()) {
                self.learned.push(Delivery::Key(key));
            }
            notice.key = key;
        }
        // Without a key the rails are put all the same: the agents may have one from a file.
        let whole = !makes_key || notice.key.is_some();
        if self.published.as_ref() == Some(&notice) {
            return whole;
        }
        let mut done = self.session.put(RAILS, &notice.rails);
        if let Some(key) = &notice.key {
            done = done.and_then(|()| self.session.put(KEY, &to_hex(key)));
        }
        let done = done.and_then(|()| self.session.commit()).is_ok();
        if done {
            self.published = Some(notice);
        }
        done && whole
    }

    /// Tells the agent what it has not been told. `false`: its socket is full.
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

    /// Lists the questions, once; they are put by [`Self::ask_again`].
    fn ask_first(&mut self, now_us: u64) {
        if std::mem::replace(&mut self.asked, true) {
            return;
        }
        let own = self.session.rank();
        let question = |rank, subject| Question {
            rank,
            subject,
            waiting: None,
            at_us: now_us,
            pause_us: PAUSE_FIRST_US,
            since_us: now_us,
        };
        if own != 0 {
            self.questions.push(question(0, Subject::Key));
        }
        let spokesmen: Vec<u32> = self.job.nodes.iter().map(|node| node.publisher).collect();
        let others = whom_to_ask(&spokesmen, own);
        self.questions.extend(
            others
                .into_iter()
                .map(|rank| question(rank, Subject::Rails)),
        );
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

    /// Takes what has come; what came to nothing is asked again after a pause.
    fn collect(&mut self, now_us: u64) {
        while let Some(Answer { ticket, value }) = self.inbox.take() {
            let Some(index) = self
                .questions
                .iter()
                .position(|q| q.waiting == Some(ticket))
            else {
                continue;
            };
            let question = &mut self.questions[index];
            let delivery = match (value, question.subject) {
                (Ok(rails), Subject::Rails) => {
                    if self.places {
                        let ranks = self.job.ranks_with(question.rank);
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
                    self.questions.swap_remove(index);
                    self.learned.push(delivery);
                }
                None => question.pause(now_us),
            }
        }
    }

    /// Puts the questions that are due, and answers when the next one is.
    fn ask_again(&mut self, now_us: u64) -> Option<u64> {
        let (session, inbox) = (&self.session, &self.inbox);
        let mut asked = false;
        self.questions.retain_mut(|question| {
            let too_late = question.subject == Subject::Rails
                && now_us.saturating_sub(question.since_us) > SEEK_SEEDS_US;
            if let Some(ticket) = question.waiting
                && (too_late || now_us.saturating_sub(question.at_us) > UNANSWERED_US)
            {
                inbox.forget(ticket);
                question.waiting = None;
                question.at_us = now_us;
            }
            if too_late {
                return false;
            }
            if question.waiting.is_none() && now_us >= question.at_us {
                let key = if question.subject == Subject::Key {
                    KEY
                } else {
                    RAILS
                };
                match session.ask(question.rank, key, true, inbox) {
                    Ok(ticket) => {
                        question.waiting = Some(ticket);
                        question.at_us = now_us;
                        asked = true;
                    }
                    Err(_) => question.pause(now_us),
                }
            }
            true
        });
        self.look_us = if asked {
            ANSWER_LOOK_US
        } else {
            (self.look_us * 2).min(PAUSE_MOST_US)
        };
        let look_us = now_us.saturating_add(self.look_us);
        self.questions
            .iter()
            .map(|question| {
                if question.waiting.is_some() {
                    look_us
                } else {
                    question.at_us
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

impl Question {
    fn pause(&mut self, now_us: u64) {
        self.waiting = None;
        self.at_us = now_us.saturating_add(self.pause_us);
        self.pause_us = (self.pause_us * 2).min(PAUSE_MOST_US);
    }
}

/// All other spokesmen of a small job; of a large one the next in order, which closes a ring over
/// all nodes, and some that are spread over the rest.
fn whom_to_ask(spokesmen: &[u32], own: u32) -> Vec<u32> {
    let Some(place) = spokesmen.iter().position(|rank| *rank == own) else {
        return Vec::new();
    };
    let count = spokesmen.len();
    let others = count - 1;
    let at = |distance: usize| spokesmen[(place + distance) % count];
    if count <= ASK_ALL_NODES {
        return (1..=others).map(at).collect();
    }
    // Distances 1, then evenly spread with an offset that differs from node to node.
    let stride = others / SAMPLE_NODES;
    let offset = place % stride;
    let mut distances = BTreeSet::from([1]);
    distances.extend((1..SAMPLE_NODES).map(|i| 1 + (i * stride + offset) % others));
    distances.into_iter().map(at).collect()
}

fn to_hex(key: &[u8; 32]) -> String {
    key.iter().map(|byte| format!("{byte:02x}")).collect()
}

/// 64 hexadecimal digits, nothing else.
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
    fn a_key_survives_the_village_board() {
        let key: [u8; 32] = std::array::from_fn(|i| (i * 37) as u8);
        assert_eq!(from_hex(&to_hex(&key)), Some(key));
        assert_eq!(from_hex("00"), None);
        assert_eq!(from_hex(&"g".repeat(64)), None);
        assert_eq!(from_hex(&"+1".repeat(32)), None);
    }

    #[test]
    fn a_small_job_asks_everybody() {
        assert_eq!(whom_to_ask(&[0, 2, 4, 6], 4), vec![6, 0, 2]);
        assert_eq!(whom_to_ask(&[0], 0), Vec::<u32>::new());
        // As many as carry pings in messages: each is placed by its rails.
        let most: Vec<u32> = (0..GOSSIP_AHEAD_MEMBERS_MAX as u32).collect();
        assert_eq!(whom_to_ask(&most, 7).len(), most.len() - 1);
        assert_eq!(
            whom_to_ask(&[0, 2], 1),
            Vec::<u32>::new(),
            "no spokesman, no questions"
        );
    }

    /// Everybody asks for the next in order, so that the questions alone connect the whole job.
    #[test]
    fn a_large_job_asks_a_few_and_stays_connected() {
        for count in [129, 130, 200, 1000, 4097] {
            let spokesmen: Vec<u32> = (0..count).map(|node| node * 16).collect();
            for (place, own) in spokesmen.iter().enumerate() {
                let asked = whom_to_ask(&spokesmen, *own);
                assert!(asked.len() <= SAMPLE_NODES && asked.len() > SAMPLE_NODES / 2);
                assert!(asked.contains(&spokesmen[(place + 1) % spokesmen.len()]));
                assert!(!asked.contains(own));
            }
        }
    }

    #[test]
    fn pauses_grow_to_a_bound() {
        let mut question = Question {
            rank: 0,
            subject: Subject::Key,
            waiting: Some(1),
            at_us: 0,
            pause_us: PAUSE_FIRST_US,
            since_us: 0,
        };
        question.pause(100);
        assert_eq!(
            (question.waiting, question.at_us),
            (None, 100 + PAUSE_FIRST_US)
        );
        for _ in 0..20 {
            question.pause(0);
        }
        assert_eq!(question.pause_us, PAUSE_MOST_US);
    }
}
