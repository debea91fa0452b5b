//! The bulk messages to and from one peer: two streams, questions, and acknowledgements to be sent.

use super::gets::Gets;
use super::{Due, Frame, Kind, NO_FRAGMENT, Operation, Receiver, Sender, Session, Standing, Taken};
use crate::peer_handle::PeerHandle;
use crate::select::{Choice, Tried};
use crate::timeouts::Timeouts;
use muster_rail_health::{Health, HealthChange, HealthConfig, Outcome};

/// The pause before a send is repeated that the provider refused with "try again". It doubles each time, up to the
/// limit.
const PAUSE_MIN_US: u64 = 1_000;
const PAUSE_MAX_US: u64 = 50_000;

/// Failed paths are probed for this long after the last message to or from the peer.
const PROBING_US: u64 = 60_000_000;

/// The two streams of messages to and from a peer, by whether they are urgent. Urgent messages overtake regular ones.
/// Messages of one stream stay in order.
pub(crate) const STREAMS: [bool; 2] = [true, false];

/// The bulk state of a peer.
#[derive(Debug)]
pub(crate) struct PeerBulk {
    pub(crate) session: Session,
    streams: [Stream; 2],
    pub(crate) gets: Gets,
    /// Acknowledgements to be sent: at most one for each stream, path and carrier, and one more for a session of the
    /// peer that does not know ours.
    pub(crate) acks: Vec<PendingAck>,
    /// The time of the last traffic.
    pub(crate) used_us: u64,
    /// Whether the peer is in the fabric's list of peers with bulk messages under way.
    pub(crate) noted: bool,
}

/// The messages of one urgency.
#[derive(Debug, Default)]
pub(crate) struct Stream {
    pub(crate) sender: Sender,
    pub(crate) receiver: Receiver,
    /// The path of the next fragment, from its choice until it has taken a fragment.
    pub(crate) choice: Option<Choice>,
    /// `choice` is the path of the previous message, which is sent without acknowledgement and may be under way. By
    /// another path the next message could overtake it.
    pub(crate) kept: bool,
    /// The same for the message under way, until a fragment of it is acknowledged.
    pub(crate) follows: bool,
    /// Paths that failed for the message under way.
    pub(crate) tried: Tried,
    /// The ids of failed paths whose replacement was not reported yet.
    pub(crate) left: Vec<u32>,
    /// The member that carries the message instead, and those that failed to.
    pub(crate) through: Option<PeerHandle>,
    pub(crate) through_tried: Vec<PeerHandle>,
    /// The ids of the paths that the message under way has taken.
    pub(crate) taken: Vec<u32>,
    /// The members that have carried it.
    pub(crate) carriers: Vec<PeerHandle>,
    /// All paths were tried and the timer has expired: start again with all paths.
    pub(crate) retry_all: bool,
    pause_us: u64,
    pub(crate) next_us: u64,
}

/// An acknowledgement that the path back has not taken yet.
#[derive(Debug)]
pub(crate) struct PendingAck {
    pub(crate) back: Back,
    /// Its stamp is that of the frame that it answers.
    pub(crate) frame: Frame,
    /// It only announces this node's session.
    pub(crate) introduces: bool,
    pub(crate) next_us: u64,
    pub(crate) pause_us: u64,
}

/// The path of an acknowledgement: that of its fragment, in reverse.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Back {
    /// By a path, by its id.
    Path(u32),
    /// Through another member.
    Through(PeerHandle),
}

/// The result of a frame.
#[derive(Debug, Default)]
pub(crate) struct FrameTaken {
    pub(crate) urgent: bool,
    pub(crate) due: Option<Due>,
    pub(crate) change: Option<HealthChange>,
    /// An acknowledgement is queued now.
    pub(crate) queues_ack: bool,
    /// The frame is new and for this session.
    pub(crate) is_new: bool,
    pub(crate) refused: bool,
    /// A message that is complete now, with its last frame and the path of that; no path if another member carried
    /// it.
    pub(crate) whole: Option<(Frame, Option<u32>, Vec<u8>)>,
}

impl Stream {
    /// Waits before the next try; the pause doubles each time.
    pub(crate) fn put_off(&mut self, now_us: u64) {
        self.pause_us = (2 * self.pause_us).clamp(PAUSE_MIN_US, PAUSE_MAX_US);
        self.next_us = now_us + self.pause_us;
    }

    pub(crate) fn note_progress(&mut self) {
        self.pause_us = 0;
        self.next_us = 0;
    }

    /// Whether all fragments of the message under way have to take one path, as far as is known.
    pub(crate) fn is_bound(&self, operation: Operation) -> bool {
        operation == Operation::PutUnacked || self.follows && !self.sender.has_acked()
    }

    pub(crate) fn forget_choice(&mut self) {
        self.choice = None;
        self.kept = false;
        self.follows = false;
    }

    /// Notes the path of the message under way.
    pub(crate) fn note_taken(&mut self, path: Option<u32>) {
        self.taken
            .extend(path.filter(|id| !self.taken.contains(id)));
    }

    /// Takes the message under way off its carrier. It continues by a path, if there is one.
    pub(crate) fn leave_carrier(&mut self, now_us: u64) {
        if self.through.take().is_some() {
            self.through_tried.clear();
            self.sender.resend();
            self.pause_us = 0;
            self.next_us = now_us.max(1);
        }
    }

    /// The paths have changed: the message under way continues by any of them, now.
    fn reroute(&mut self, now_us: u64) {
        self.forget_choice();
        self.left.clear();
        self.tried = Tried::default();
        self.through = None;
        self.through_tried.clear();
        if self.sender.timeout().is_some() {
            self.sender.resend();
            self.pause_us = 0;
            self.next_us = now_us.max(1);
        }
    }

    /// Ends the message under way. Returns the paths that it took and the members that carried it.
    pub(crate) fn end(&mut self, due: Due) -> (Vec<u32>, Vec<PeerHandle>) {
        self.tried = Tried::default();
        self.through = None;
        self.through_tried.clear();
        self.follows = false;
        self.left.clear();
        self.kept = matches!(due, Due::Sent(_)) && self.choice.is_some();
        if !self.kept {
            self.choice = None;
        }
        let (paths, carriers) = (&mut self.taken, &mut self.carriers);
        (std::mem::take(paths), std::mem::take(carriers))
    }

    /// When it has something to do; none if nothing is under way.
    fn timeout(&self, used_us: u64, reply_us: u64) -> Option<u64> {
        let put_off = (self.next_us > 0).then_some(self.next_us);
        let is_busy = self.receiver.is_busy();
        let assembly = is_busy.then_some(used_us.saturating_add(reply_us));
        let all = [self.sender.timeout(), put_off, assembly];
        all.into_iter().flatten().min()
    }
}

impl PeerBulk {
    /// With a new session, whose number follows the last one.
    pub(crate) fn new(last_session: &mut u64) -> PeerBulk {
        *last_session = last_session.saturating_add(1);
        PeerBulk {
            session: Session::new(*last_session),
            streams: Default::default(),
            gets: Gets::default(),
            acks: Vec::new(),
            used_us: 0,
            noted: false,
        }
    }

    /// The session, and one of the streams.
    pub(crate) fn parts(&mut self, urgent: bool) -> (&mut Session, &mut Stream) {
        (&mut self.session, &mut self.streams[usize::from(!urgent)])
    }

    /// The peer has begun a session that has no state of earlier ones.
    fn restart(&mut self, now_us: u64, timeouts: &Timeouts) {
        for stream in &mut self.streams {
            stream.sender.restart(now_us, timeouts);
            stream.note_progress();
        }
    }

    pub(crate) fn stream(&mut self, urgent: bool) -> &mut Stream {
        &mut self.streams[usize::from(!urgent)]
    }

    /// The receiver of one of the streams.
    pub(crate) fn receiver(&self, urgent: bool) -> &Receiver {
        &self.streams[usize::from(!urgent)].receiver
    }

    /// Takes the number of messages that arrived in part and were dropped.
    pub(crate) fn take_dropped(&mut self) -> u64 {
        let streams = self.streams.iter_mut();
        streams
            .map(|stream| std::mem::take(&mut stream.receiver.dropped))
            .sum()
    }

    /// Both streams.
    pub(crate) fn streams(&self) -> impl Iterator<Item = &Stream> {
        self.streams.iter()
    }

    /// The paths have changed: messages under way continue by any of them, now.
    pub(crate) fn reroute(&mut self, now_us: u64) {
        for stream in &mut self.streams {
            stream.reroute(now_us);
        }
    }

    /// Whether an urgent message waits for its lane.
    pub(crate) fn urgent_waits(&self, now_us: u64) -> bool {
        let [urgent, _] = &self.streams;
        urgent.next_us > now_us && urgent.sender.next().is_some()
    }

    /// Makes regular messages wait for urgent ones that take the same lane. Returns whether they wait.
    pub(crate) fn hold_regular(&mut self, now_us: u64, timeouts: &Timeouts) -> bool {
        let waits = self.urgent_waits(now_us);
        let [urgent, regular] = &mut self.streams;
        let rails = urgent.choice.zip(regular.choice);
        // A carrier may use one lane for both.
        let waits = waits && rails.is_none_or(|(one, other)| one.rail == other.rail);
        if waits && regular.sender.next().is_some() {
            regular.next_us = regular.next_us.max(urgent.next_us);
            regular.sender.hold(now_us, timeouts);
        }
        waits
    }

    /// Queues an acknowledgement. It replaces the one that was queued there, since it covers more.
    fn queue_ack(&mut self, back: Back, frame: Frame, introduces: bool) {
        let of = |ack: &PendingAck| (ack.back, ack.frame.urgent, ack.introduces);
        let is_same = |ack: &PendingAck| of(ack) == (back, frame.urgent, introduces);
        self.acks.retain(|ack| !is_same(ack));
        self.acks.push(PendingAck {
            back,
            frame,
            introduces,
            next_us: 0,
            pause_us: PAUSE_MIN_US,
        });
    }

    /// When it has something to do; none if nothing is under way. `probe_us` is when the first of the failed paths is
    /// to be probed.
    pub(crate) fn timeout(&self, probe_us: Option<u64>, reply_us: u64) -> Option<u64> {
        let of_stream = |stream: &Stream| stream.timeout(self.used_us, reply_us);
        let streams = self.streams().filter_map(of_stream).min();
        let acks = self.acks.iter().map(|ack| ack.next_us).min();
        let until_us = self.used_us + PROBING_US;
        let probe = probe_us.filter(|probe_us| *probe_us < until_us);
        [streams, acks, self.gets.timeout(), probe]
            .into_iter()
            .flatten()
            .min()
    }

    /// Takes a frame of the peer. `path` is the health of the bulk lane on the path that it arrived by; none if another
    /// member carried it.
    pub(crate) fn take_frame(
        &mut self,
        now_us: u64,
        timeouts: &Timeouts,
        path: Option<(&mut Health, &HealthConfig)>,
        back: Back,
        frame: Frame,
        bytes: &[u8],
    ) -> FrameTaken {
        let mut taken = FrameTaken {
            urgent: frame.urgent,
            ..FrameTaken::default()
        };
        match self.session.take(frame.stamp) {
            Standing::New => {}
            Standing::Began => self.restart(now_us, timeouts),
            // Unless the frame is a recording, its sender needs the number of this session.
            Standing::Elsewhere if !matches!(frame.kind, Kind::Acked(_)) => {
                let kind = Kind::Acked(0);
                let fragment = NO_FRAGMENT;
                let answer = Frame {
                    kind,
                    fragment,
                    ..frame
                };
                self.queue_ack(back, answer, true);
                (taken.queues_ack, taken.refused) = (true, frame.kind == Kind::Fragment);
                return taken;
            }
            Standing::Elsewhere | Standing::Repeated => {
                taken.refused = true;
                return taken;
            }
        }
        taken.is_new = true;
        let stream = &mut self.streams[usize::from(!frame.urgent)];
        let bits = match frame.kind {
            Kind::Acked(bits) => {
                // Whatever the acknowledgement is for, this path works in both directions.
                taken.change =
                    path.and_then(|(health, config)| health.tell(now_us, Outcome::Success, config));
                let message = frame.fragment.message;
                taken.due = stream.sender.acked(now_us, message, bits, timeouts);
                stream.note_progress();
                self.used_us = now_us;
                return taken;
            }
            Kind::Probe => 0,
            Kind::Fragment => {
                match stream
                    .receiver
                    .take(now_us, frame.stamp.session, frame.fragment, bytes)
                {
                    Taken::Acked { bits, whole } => {
                        let path = match back {
                            Back::Path(id) => Some(id),
                            Back::Through(_) => None,
                        };
                        taken.whole = whole.map(|bytes| (frame, path, bytes));
                        bits
                    }
                    // A later message has overtaken it. It never arrived completely, and is not delivered any more.
                    Taken::Past { .. } if frame.operation == Operation::PutUnacked => {
                        taken.refused = true;
                        return taken;
                    }
                    // It has arrived before, and its acknowledgement was lost.
                    Taken::Past { bits } => bits,
                    Taken::Stale | Taken::Malformed => {
                        taken.refused = true;
                        return taken;
                    }
                }
            }
        };
        self.used_us = now_us;
        if frame.operation != Operation::PutUnacked {
            let kind = Kind::Acked(bits);
            self.queue_ack(back, Frame { kind, ..frame }, false);
        }
        taken.queues_ack = true;
        taken
    }
}
