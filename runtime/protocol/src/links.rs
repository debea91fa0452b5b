//! The links of a member, with their timers.
//!
//! Each link is filed under what the engine asks for after every input: when it has news, hints, a request or a
//! retransmission to send, whether a beat is due, and whether the peer is watched. A link that was handed out
//! for a change is stale, and [`Links::settle`] files the stale ones anew. So an input costs as much as the links
//! that it changes, however many there are.

use crate::identity::MemberId;
use crate::link::{AckWait, Link};
use crate::resends::{Resend, Resends};
use crate::sorted::{SortedMap, SortedSet};
use crate::time::Instant;
use crate::timers::Timers;
use crate::work::visited;

/// What a link is filed under.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Keys {
    send_at: Instant,
    hint_at: Instant,
    request_at: Instant,
    resend: Resend,
    watches: bool,
}

impl Keys {
    const NONE: Self = Self {
        send_at: Instant::NEVER,
        hint_at: Instant::NEVER,
        request_at: Instant::NEVER,
        resend: Resend::NONE,
        watches: false,
    };

    fn of(link: &Link, ack_wait_us: u64, mutual: bool) -> Self {
        Self {
            send_at: link.send_at(),
            hint_at: link.hint_at(),
            request_at: link.wanted_request_at(),
            resend: Resend::of(link, ack_wait_us),
            watches: link.watches(mutual),
        }
    }
}

#[derive(Clone, Debug)]
struct Filed {
    link: Link,
    keys: Keys,
    is_stale: bool,
}

/// All links of a member.
#[derive(Clone, Debug)]
pub(crate) struct Links {
    links: SortedMap<MemberId, Box<Filed>>,
    /// Links that may have changed since they were filed.
    stale: Vec<MemberId>,
    news: Timers,
    hints: Timers,
    requests: Timers,
    resends: Resends,
    /// Peers to which a beat is due. Each has a link.
    pub(crate) beats: SortedSet<MemberId>,
    watched: SortedSet<MemberId>,
    /// How long a news frame waits for its acknowledgement at least.
    ack_wait_us: u64,
    /// The two sides of each link watch each other.
    mutual: bool,
    /// When links were last settled.
    settled_at: Instant,
}

impl Links {
    /// No links; a news frame waits for its acknowledgement for at least `ack_wait_us`. If links are `mutual`,
    /// the two sides of each watch each other.
    pub(crate) fn new(ack_wait_us: u64, mutual: bool) -> Self {
        Self {
            links: SortedMap::new(),
            stale: Vec::new(),
            news: Timers::default(),
            hints: Timers::default(),
            requests: Timers::default(),
            resends: Resends::default(),
            beats: SortedSet::new(),
            watched: SortedSet::new(),
            ack_wait_us,
            mutual,
            settled_at: Instant::default(),
        }
    }

    pub(crate) fn len(&self) -> usize {
        self.links.len()
    }

    pub(crate) fn contains_key(&self, id: &MemberId) -> bool {
        self.links.contains_key(id)
    }

    pub(crate) fn get(&self, id: &MemberId) -> Option<&Link> {
        let filed = self.links.get(id)?;
        visited();
        Some(&filed.link)
    }

    /// A link for a change of nothing that links are filed under.
    pub(crate) fn get_unfiled(&mut self, id: &MemberId) -> Option<&mut Link> {
        let filed = self.links.get_mut(id)?;
        visited();
        Some(&mut filed.link)
    }

    /// A link that may be changed.
    pub(crate) fn get_mut(&mut self, id: &MemberId) -> Option<&mut Link> {
        let filed = self.links.get_mut(id)?;
        visited();
        if !core::mem::replace(&mut filed.is_stale, true) {
            self.stale.push(*id);
        }
        Some(&mut filed.link)
    }

    /// The link with a peer; a new one if there is none.
    pub(crate) fn open(&mut self, id: MemberId, now: Instant) -> &mut Link {
        visited();
        let filed = self.links.get_or_insert_with(id, || {
            let (link, keys, is_stale) = (Link::new(now), Keys::NONE, false);
            Box::new(Filed {
                link,
                keys,
                is_stale,
            })
        });
        if !core::mem::replace(&mut filed.is_stale, true) {
            self.stale.push(id);
        }
        &mut filed.link
    }

    pub(crate) fn remove(&mut self, id: &MemberId) {
        if let Some(filed) = self.links.remove(id) {
            self.file(*id, filed.keys, Keys::NONE);
            self.beats.remove(id);
        }
    }

    pub(crate) fn clear(&mut self) {
        *self = Self::new(self.ack_wait_us, self.mutual);
    }

    pub(crate) fn iter(&self) -> impl Iterator<Item = (MemberId, &Link)> {
        self.links.iter().map(|(id, filed)| {
            visited();
            (*id, &filed.link)
        })
    }

    pub(crate) fn ids(&self) -> impl Iterator<Item = MemberId> {
        self.links.keys().copied()
    }

    pub(crate) fn values(&self) -> impl Iterator<Item = &Link> {
        self.iter().map(|(_, link)| link)
    }

    /// All links, each of which may be changed.
    pub(crate) fn iter_mut(&mut self) -> impl Iterator<Item = (MemberId, &mut Link)> {
        let Self { links, stale, .. } = self;
        links.iter_mut().map(move |(id, filed)| {
            visited();
            if !core::mem::replace(&mut filed.is_stale, true) {
                stale.push(*id);
            }
            (*id, &mut filed.link)
        })
    }

    /// Makes a beat due to each peer that watches the local member, and to no other; except those that are left out.
    /// Returns their number.
    pub(crate) fn make_beats_due(&mut self, is_left_out: impl Fn(MemberId, &Link) -> bool) -> u64 {
        self.beats.clear();
        let mut left_out = 0;
        for (id, filed) in self.links.iter_mut() {
            visited();
            let is_watched = filed.link.is_watched(self.mutual);
            filed.link.left_out = is_watched && is_left_out(*id, &filed.link);
            left_out += u64::from(filed.link.left_out);
            if is_watched && !filed.link.left_out {
                self.beats.insert(*id);
            }
        }
        left_out
    }

    pub(crate) fn values_mut(&mut self) -> impl Iterator<Item = &mut Link> {
        self.iter_mut().map(|(_, link)| link)
    }

    /// Files all links that were handed out for a change, and moves time on to `now`.
    pub(crate) fn settle(&mut self, now: Instant) {
        if self.stale.is_empty() && self.settled_at == now {
            return;
        }
        self.settled_at = now;
        while let Some(id) = self.stale.pop() {
            if let Some(filed) = self.links.get_mut(&id) {
                visited();
                filed.is_stale = false;
                let keys = Keys::of(&filed.link, self.ack_wait_us, self.mutual);
                let before = core::mem::replace(&mut filed.keys, keys);
                self.file(id, before, keys);
            }
        }
        for timers in [&mut self.news, &mut self.hints, &mut self.requests] {
            timers.pass(now);
        }
        self.resends.pass(now);
    }

    fn file(&mut self, id: MemberId, before: Keys, keys: Keys) {
        self.news.set(id, before.send_at, keys.send_at);
        self.hints.set(id, before.hint_at, keys.hint_at);
        self.requests.set(id, before.request_at, keys.request_at);
        self.resends.set(id, before.resend, keys.resend);
        if before.watches != keys.watches && !self.watched.remove(&id) {
            self.watched.insert(id);
        }
    }

    // The following are for settled links.

    /// Whether a beat, news or hints can be sent at `now`.
    pub(crate) fn want_to_send(&self, now: Instant) -> bool {
        debug_assert!(self.stale.is_empty());
        !self.beats.is_empty() || now >= self.news.next().min(self.hints.next())
    }

    /// The first peer to which news can be sent.
    pub(crate) fn first_news(&self) -> Option<MemberId> {
        debug_assert!(self.stale.is_empty());
        self.news.due().next()
    }

    /// The first peer whose hints are due.
    pub(crate) fn first_hints(&self) -> Option<MemberId> {
        debug_assert!(self.stale.is_empty());
        self.hints.due().next()
    }

    /// The peers whose requests are due.
    pub(crate) fn due_requests(&self) -> Vec<MemberId> {
        debug_assert!(self.stale.is_empty());
        self.requests.due().collect()
    }

    /// The peers whose oldest news frame counts as lost.
    pub(crate) fn due_resends(&self, now: Instant, wait: AckWait) -> Vec<MemberId> {
        debug_assert!(self.stale.is_empty());
        self.resends.due(now, wait)
    }

    /// The watched peers.
    pub(crate) fn watched(&self) -> impl Iterator<Item = (MemberId, &Link)> {
        self.watched
            .iter()
            .filter_map(|id| Some((*id, self.get(id)?)))
    }

    /// When the next request is due.
    pub(crate) fn next_request(&self) -> Instant {
        debug_assert!(self.stale.is_empty());
        self.requests.next()
    }

    /// When there is news to send or to retransmit, or a hint.
    pub(crate) fn next_news(&self, wait: AckWait) -> Instant {
        debug_assert!(self.stale.is_empty());
        let news_at = self.news.next().min(self.hints.next());
        self.resends.next(wait).min(news_at)
    }
}
