//! The porch: a rank of the job brings its agent together with the others, through MPI's PMIx.
//!
//! Picture a village where every house has one spokesman. He nails his house's address to the
//! village board (`PMIx_Put`), reads those of the others when they appear, and hands them in at
//! his own door; the spokesman of the first house also nails up the key. Nobody waits for
//! everybody (no fence), and nobody is asked before the village exists (MPI_Init).
//!
//! The spokesman of a node is its lowest rank. The other ranks use the porch for one thing only:
//! telling their own MPI of deaths, where the application asked for it.
//!
//! What it is not: it does not wait, anywhere. [`Porch::advance`] does what can be done now and
//! says when it wants to be called again; answers of PMIx wake the caller.
//!
//! An address that is asked for before it is there is asked for again, with growing pauses: a
//! PRRTE server looks again only every two seconds, but answers "not found" at once if told to
//! refresh.

use std::collections::BTreeSet;
use std::ffi::CStr;
use std::sync::Arc;

use crate::pmix::{Answer, Error, Inbox, Job, Pmix, Session, Ticket};

/// Under this key each spokesman puts the rails of its node's agent, as text.
const RAILS: &CStr = c"muster.nids";
/// Under this key rank 0 puts the job's key, as 64 hexadecimal digits.
const KEY: &CStr = c"muster.key";

/// Nodes up to which every spokesman asks for every other; beyond, for a sample.
const ASK_ALL_NODES: usize = 64;
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

/// Something for the agent of this node.
#[derive(Clone, PartialEq, Eq)]
pub enum Delivery {
    /// The rails of another node's agent, as that agent wrote them.
    Seed(String),
    /// The job's key.
    Key([u8; 32]),
}

/// What the agent wants the job to know.
#[derive(Clone, PartialEq, Eq)]
pub struct Notice {
    /// Its rails, as text.
    pub rails: String,
    /// The key that it made; published by rank 0 only.
    pub key: [u8; 32],
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

/// The spokesman's work, and the feed of deaths to MPI.
pub struct Porch {
    wake: Arc<dyn Fn() + Send + Sync>,
    feed_mpi: bool,
    guest: Option<Guest>,
    /// The job data cannot be read: said once, then left alone.
    hopeless: bool,
    /// Ranks that MPI was told of, or shall be once it is up.
    told: BTreeSet<u32>,
    pending: Vec<u32>,
}

/// The part that exists once MPI is up.
struct Guest {
    session: Session,
    job: Job,
    inbox: Inbox,
    published: Option<Notice>,
    questions: Vec<Question>,
    asked: bool,
}

impl Porch {
    /// A porch that has looked at nothing yet. `wake` is called from PMIx's thread when there is
    /// reason to call [`Self::advance`], and must not block; `feed_mpi` says whether confirmed
    /// deaths are told to this process's MPI.
    pub fn new(wake: Arc<dyn Fn() + Send + Sync>, feed_mpi: bool) -> Self {
        Self {
            wake,
            feed_mpi,
            guest: None,
            hopeless: false,
            told: BTreeSet::new(),
            pending: Vec::new(),
        }
    }

    /// Whether there is nothing more to do but feed MPI: no pause, no open question.
    pub fn settled(&self) -> bool {
        self.hopeless
            || self
                .guest
                .as_ref()
                .is_some_and(|guest| guest.asked && guest.questions.is_empty())
    }

    /// The launcher's map of the job, once MPI is up.
    pub fn job(&self) -> Option<&Job> {
        self.guest.as_ref().map(|guest| &guest.job)
    }

    /// Does what can be done now: takes a reference to PMIx if MPI has come up, publishes
    /// `notice` (what the agent wants known, once it has said it), asks, and hands answers to
    /// `deliver`. Returns when to be called again at the latest, on the clock of `now_us`
    /// (monotonic microseconds); `None`: at the next wake or library call.
    pub fn advance(
        &mut self,
        now_us: u64,
        notice: Option<&Notice>,
        mut deliver: impl FnMut(Delivery),
    ) -> Option<u64> {
        if self.guest.is_none() && !self.hopeless {
            self.enter();
        }
        let guest = self.guest.as_mut()?;
        if self.feed_mpi {
            let own = guest.session.rank();
            for rank in self.pending.drain(..).filter(|rank| *rank != own) {
                // A refusal leaves MPI to its own detector; there is nothing better to do here.
                let _ = guest.session.notify_failed(rank);
            }
        }
        if !guest.speaks() {
            guest.asked = true;
            return None;
        }
        guest.publish(notice?);
        guest.ask_first(now_us);
        guest.collect(now_us, &mut deliver);
        guest.ask_again(now_us)
    }

    /// MPI shall know that `rank` is dead (confirmed, for good). Each rank is told once; before
    /// MPI is up it is kept and told then. Does nothing unless the feed was asked for.
    pub fn tell_failed(&mut self, rank: u32) {
        if self.feed_mpi && self.told.insert(rank) {
            self.pending.push(rank);
        }
    }

    /// Becomes a guest of MPI's PMIx, if that is there.
    fn enter(&mut self) {
        let Some(pmix) = Pmix::find().filter(Pmix::initialized) else {
            return;
        };
        let session = match pmix.hold() {
            Ok(session) => session,
            Err(Error::NotInitialized | Error::Held) => return,
            Err(_) => {
                self.hopeless = true;
                return;
            }
        };
        match session.job() {
            Ok(job) => {
                // A question at a time to each node, and one for the key.
                let room = job.nodes.len().min(ASK_ALL_NODES) + 1;
                let inbox = Inbox::new(room, Arc::clone(&self.wake));
                self.guest = Some(Guest {
                    session,
                    job,
                    inbox,
                    published: None,
                    questions: Vec::new(),
                    asked: false,
                });
            }
            Err(_) => self.hopeless = true,
        }
    }
}

impl Guest {
    /// Whether this rank is the lowest of its node.
    fn speaks(&self) -> bool {
        self.job
            .nodes
            .iter()
            .any(|node| node.spokesman == self.session.rank())
    }

    fn publish(&mut self, notice: &Notice) {
        if self.published.as_ref() == Some(notice) {
            return;
        }
        let mut done = self.session.put(RAILS, &notice.rails);
        if self.session.rank() == 0 {
            done = done.and_then(|()| self.session.put(KEY, &to_hex(&notice.key)));
        }
        if done.and_then(|()| self.session.commit()).is_ok() {
            self.published = Some(notice.clone());
        }
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
        let spokesmen: Vec<u32> = self.job.nodes.iter().map(|node| node.spokesman).collect();
        let others = whom_to_ask(&spokesmen, own);
        self.questions.extend(
            others
                .into_iter()
                .map(|rank| question(rank, Subject::Rails)),
        );
    }

    /// Hands on what has come; what came to nothing is asked again after a pause.
    fn collect(&mut self, now_us: u64, deliver: &mut impl FnMut(Delivery)) {
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
                (Ok(rails), Subject::Rails) => Some(Delivery::Seed(rails)),
                (Ok(hex), Subject::Key) => from_hex(&hex).map(Delivery::Key),
                (Err(_), _) => None,
            };
            match delivery {
                Some(delivery) => {
                    self.questions.swap_remove(index);
                    deliver(delivery);
                }
                None => question.pause(now_us),
            }
        }
    }

    /// Puts the questions that are due, and answers when the next one is.
    fn ask_again(&mut self, now_us: u64) -> Option<u64> {
        let (session, inbox) = (&self.session, &self.inbox);
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
                    }
                    Err(_) => question.pause(now_us),
                }
            }
            true
        });
        self.questions
            .iter()
            .map(|question| match question.waiting {
                Some(_) => question.at_us.saturating_add(UNANSWERED_US + 1),
                None => question.at_us,
            })
            .min()
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
        assert_eq!(
            whom_to_ask(&[0, 2], 1),
            Vec::<u32>::new(),
            "no spokesman, no questions"
        );
    }

    /// Everybody asks for the next in order, so that the questions alone connect the whole job.
    #[test]
    fn a_large_job_asks_a_few_and_stays_connected() {
        for count in [65, 66, 100, 1000, 4097] {
            let spokesmen: Vec<u32> = (0..count).map(|node| node * 16).collect();
            for (place, own) in spokesmen.iter().enumerate() {
                let asked = whom_to_ask(&spokesmen, *own);
                assert!(asked.len() <= SAMPLE_NODES && asked.len() > SAMPLE_NODES / 2);
                assert!(asked.contains(&spokesmen[(place + 1) % spokesmen.len()]));
                assert!(!asked.contains(own));
            }
        }
    }

    /// Without MPI there is no PMIx: nothing happens, nothing is given up, nobody is told.
    #[test]
    fn before_mpi_the_porch_waits() {
        let mut porch = Porch::new(Arc::new(|| {}), true);
        let notice = Notice {
            rails: "127.0.0.1:7741@udp0".to_owned(),
            key: [1; 32],
        };
        porch.tell_failed(3);
        porch.tell_failed(3);
        for now_us in [0, 1_000_000] {
            let next = porch.advance(now_us, Some(&notice), |_| panic!("nothing can have come"));
            assert_eq!(next, None);
        }
        assert!(!porch.settled());
        assert_eq!(
            porch.pending,
            vec![3],
            "each rank once, kept until MPI is up"
        );
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
