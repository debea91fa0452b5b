//! The host loop: the one thread that drives protocol, rails and ranks.
//!
//! One round, in this order, and nothing blocks but step 7:
//!
//! 0. **what ranks have noted** of messages of their own, or carried in them (`traffic`), if the protocol is
//!    about to wake;
//! 1. **in by the rails**: what has arrived goes to the protocol, which checks it; an
//!    authentic frame is also told to the fabric (that rail of that peer works);
//! 2. **in by the ranks**: requests at the socket and findings of the kernel become inputs;
//! 3. **time**: the protocol is woken if it asked for it, and nothing it should have heard first waits
//!    in step 1; it is told for how long that has been so;
//! 4. **rails' own news** (`rail_liveness`): a silent rail of a living peer is told as "degraded", the end of a
//!    peer's process as "unreachable", and the others learn which of our rails fail;
//! 5. **out as events**: onto the board or the screen; whoever waits is woken;
//! 6. **out by the rails**: the protocol writes datagrams into our buffer until it has no more;
//! 7. **sleep**, until the next thing or the next deadline.
//!
//! News, the ranks and who asks wake the loop. The others' beats do not: they lie in their lane until
//! step 1 takes them, which is before step 3 judges anybody's silence and at the latest at our own
//! next beat. So a silence is judged up to one heartbeat later than it could be, and nobody is
//! accused of one whose beat has arrived. On an idle node one wake-up a heartbeat does everything,
//! and where only the time woke the loop, step 1 looks at the beats alone.
//!
//! A datagram never goes back: what step 1 causes leaves in steps 5 and 6.

use super::admin_endpoint::AdminEndpoint;
use super::admin_handlers::Begun;
use super::descriptors::{Descriptors, Renewals};
use super::drops::Drops;
use super::gossip;
use super::journal_record::journal_record;
use super::log;
use super::peers::{AddressSource, PeerDirectory};
use super::piggyback::Piggybacks;
use super::printer;
use super::priority::Priority;
use super::rails::Rails;
use super::rank_service::RankService;
use super::service::Watchdog;
use super::signals::Signals;
use super::slice::{LocalWork, Slice};
use super::spin_detector::SpinDetector;
use super::status::{RAILS_KEY, Status};
use super::unauthenticated::UnauthenticatedSenders;
use crate::journal::Journal;
use muster_control::Control;
use muster_fabric::{Arrival, Fabric, Nid, PeerHandle, Relayed, Transport};
use muster_protocol::{
    Class, Engine, EventKind, Input, Instant, MemberId, Phase, Profile, Reject, Route, Target,
    Version, frame,
};
use muster_sys::clock::monotonic_ns;
use muster_sys::poll::{Epoll, Ready};
use muster_sys::schedule::demotions;
use std::collections::{BTreeMap, BTreeSet};
use std::io;
use std::os::fd::AsFd;
use std::time::Duration;
use tracing::{error, info, warn};

/// Rounds of step 1, each of up to 64 datagrams a lane, before the other steps get their turn.
const ARRIVAL_ROUNDS_MAX: usize = 4;
/// So many times in a row with more to read in step 1, and step 3 is done all the same: what lay in
/// a lane when a silence began has been read by then.
const UNJUDGED_MAX: u32 = 4;
/// Datagrams of step 6 before the other steps get their turn.
const TRANSMITS_MAX: usize = 64;
/// Longest sleep: the loop looks around at least this often.
const SLEEP_MAX_US: u64 = 1_000_000;
/// How often what a worker leaves behind is brought up to date, at most.
const SNAPSHOT_INTERVAL_US: u64 = 20_000;

/// What a descriptor of the loop is about. Rails need no flag: they are read in every round.
pub(super) const TOKEN_RAILS: u64 = 0;
const TOKEN_SIGNALS: u64 = 1;
const TOKEN_CONTROL: u64 = 2;
const TOKEN_RANKS: u64 = 3;

/// Why the loop ended.
#[derive(Debug, PartialEq, Eq)]
pub(super) enum Ending {
    /// No longer needed.
    InOrder,
    /// Somebody asked us to: no rank may start another agent for it.
    Asked,
    /// Another living member has our name.
    NameTaken,
    /// Another worker takes over.
    Renewed,
}

/// Everything the loop drives.
pub(super) struct EventLoop {
    pub(super) fabric: Fabric,
    pub(super) engine: Engine,
    pub(super) peers: PeerDirectory,
    pub(super) rails: Rails,
    /// A change of them that is being made.
    pub(super) begun: Option<Begun>,
    /// The ranks' side; none in the foreground.
    pub(super) job: Option<RankService>,
    signals: Signals,
    pub(super) admin_endpoint: AdminEndpoint,
    /// Of a service.
    pub(super) watchdog: Option<Watchdog>,
    pub(super) epoll: Epoll,
    pub(super) heartbeat_us: u64,
    pub(super) deadline_us: u64,
    /// Since when step 1 has not come to an end, and how often in a row step 3 was put off for it.
    behind_since: Option<Instant>,
    unjudged: u32,
    /// Peers whose beats the fabric watches, by handle.
    pub(super) watched: BTreeMap<PeerHandle, MemberId>,
    /// Silent rails of each member.
    pub(super) silent_rails: BTreeMap<MemberId, BTreeSet<usize>>,
    /// Members that are heard through others only.
    pub(super) indirect: BTreeSet<MemberId>,
    /// Rails that members say do not work.
    pub(super) told_failing: BTreeMap<MemberId, Vec<Nid>>,
    /// Beats for messages of the ranks to carry.
    pub(super) piggybacks: Piggybacks,
    /// Who knocks with another key.
    pub(super) unauthenticated: UnauthenticatedSenders,
    /// Messages that no rail took.
    pub(super) drops: Drops,
    /// Whether the loop finds some, and whether this turn did anything.
    spin_detector: SpinDetector,
    pub(super) worked: bool,
    /// What this node wants, and how much of the time it took.
    local: LocalWork,
    priority: Priority,
    pub(super) descriptors: Descriptors,
    /// Our own, and what was told of them.
    pub(super) status: Status,
    /// Which of the outbox's lists the handles in `watched` are of.
    pub(super) begun_anew: u64,
    pub(super) buffer: Vec<u8>,
    /// Rails were opened or closed since the loop last looked whether it may sleep.
    pub(super) rails_are_new: bool,
    /// Who was heard on which rail in this round of step 1.
    heard: Vec<(MemberId, usize, Option<Relayed>)>,
    ending: Option<Ending>,
    /// Somebody asked us to end.
    is_asked: bool,
    /// The others declared us failed at least once.
    is_outcast: bool,
    pub(super) snapshot_due_us: Option<u64>,
    /// The version in the last snapshot: a successor must not start below one that is known.
    kept_version: Version,
}

impl EventLoop {
    pub(super) fn new(
        (fabric, rails): (Fabric, Rails),
        mut engine: Engine,
        mut job: Option<RankService>,
        admin_endpoint: AdminEndpoint,
        profile: Profile,
        signals: Signals,
    ) -> io::Result<Self> {
        let epoll = Epoll::new()?;
        epoll.add(signals.as_fd(), TOKEN_SIGNALS)?;
        if let Some(control) = &admin_endpoint.control {
            epoll.add(control.descriptor(), TOKEN_CONTROL)?;
        }
        for fd in fabric.wait_fds() {
            epoll.add_edge(fd, TOKEN_RAILS)?;
        }
        if let Some(job) = &mut job {
            for fd in job.descriptors() {
                epoll.add(fd, TOKEN_RANKS)?;
            }
            job.parent_pipe_due(&epoll, TOKEN_RANKS);
        }
        let buffer = vec![0; fabric.mtu()];
        let kept_version = engine.version();
        let priority = Priority::ask(&mut engine, profile.deadline_us());
        let status = Status::resume(engine.attribute(engine.id(), RAILS_KEY));
        let event_loop = Self {
            fabric,
            engine,
            peers: PeerDirectory::default(),
            rails,
            begun: None,
            job,
            signals,
            admin_endpoint,
            watchdog: None,
            epoll,
            heartbeat_us: profile.heartbeat_us(),
            deadline_us: profile.deadline_us(),
            behind_since: None,
            unjudged: 0,
            watched: BTreeMap::new(),
            silent_rails: BTreeMap::new(),
            indirect: BTreeSet::new(),
            told_failing: BTreeMap::new(),
            piggybacks: Piggybacks::default(),
            unauthenticated: UnauthenticatedSenders::default(),
            drops: Drops::default(),
            spin_detector: SpinDetector::default(),
            worked: false,
            local: LocalWork::default(),
            priority,
            descriptors: Descriptors::new(None, Renewals::default()),
            status,
            begun_anew: 0,
            buffer,
            rails_are_new: false,
            heard: Vec::new(),
            ending: None,
            is_asked: false,
            is_outcast: false,
            snapshot_due_us: Some(0),
            kept_version,
        };
        event_loop.publish_config();
        Ok(event_loop)
    }

    /// Tells the engine what the last worker knew and could not leave in its record.
    pub(super) fn catch_up(&mut self) {
        if let (Some(job), Engine::Age(age)) = (&self.job, &mut self.engine) {
            // It has taken over nothing: whoever died meanwhile would never be missed.
            job.present().for_each(|id| age.expect(id));
        }
        if let Some(job) = &self.job {
            let now = instant(monotonic_ns());
            for told in job.catch_up(&self.engine) {
                if let Err(reject) = self.engine.handle(now, Input::Told(told)) {
                    warn!(?reject, "a rank's end was refused");
                }
            }
        }
        if let Some(job) = &mut self.job {
            job.correct(&self.engine);
        }
    }

    /// Runs until there is a reason to end.
    pub(super) fn run(&mut self) -> io::Result<Ending> {
        let mut ready: Vec<Ready> = Vec::new();
        let mut news_may_wait = true;
        loop {
            // Before step 1, since a datagram may make the protocol beat, too.
            self.take_traffic();
            let more = self.receive(news_may_wait);
            let (begun_ns, slice) = (monotonic_ns(), self.local.slice(self.deadline_us));
            let mut is_left = self.serve(&ready, &slice)?;
            self.gather();
            self.wake_engine(more);
            self.hear_rails();
            is_left |= self.tell_events(Some(&slice))?;
            if let Some(job) = &mut self.job {
                is_left |= job.wake_up_on(&slice);
            }
            self.rest_from(begun_ns, &slice, is_left)?;
            self.end_if_stopped();
            if let Some(job) = &mut self.job {
                job.place_ranks(&self.engine);
            }
            if let (Some(files), Some(age)) =
                (&mut self.admin_endpoint.gossip_files, self.engine.age())
            {
                files.keep(age);
            }
            // What was read since may have made a ping due that a message has carried.
            self.settle_piggybacks();
            let sent_all = self.transmit();
            self.look_at_descriptors();
            self.keep_snapshot();
            if let Some(watchdog) = &mut self.watchdog {
                watchdog.look(monotonic_ns() / 1000);
            }
            if let Some(ending) = self.ending.take() {
                return Ok(ending);
            }
            news_may_wait |= std::mem::take(&mut self.rails_are_new);
            // What was found armed before the last sleep, and woke nobody, is armed still.
            let armed = !more && (!news_may_wait || self.fabric.may_sleep());
            let sleep = if armed && sent_all {
                self.sleep_time()
            } else {
                Duration::ZERO
            };
            let slept_from_ns = monotonic_ns();
            self.epoll.wait(&mut ready, Some(sleep))?;
            self.local.slept(monotonic_ns() - slept_from_ns);
            let worked = std::mem::take(&mut self.worked) || more || !ready.is_empty();
            if self.spin_detector.turn(worked || !sleep.is_zero()) {
                self.tell_unrest(armed);
            }
            news_may_wait = !armed || ready.iter().any(|ready| ready.token == TOKEN_RAILS);
        }
    }

    /// Step 1. True if there may be more.
    fn receive(&mut self, news_may_wait: bool) -> bool {
        let mut heard = std::mem::take(&mut self.heard);
        let (mut more, mut came) = (true, false);
        for _ in 0..ARRIVAL_ROUNDS_MAX {
            let now_ns = monotonic_ns();
            let (engine, unauthenticated) = (&mut self.engine, &mut self.unauthenticated);
            let mut deliver = |arrival: Arrival<'_>| {
                came = true;
                let input = Input::Datagram {
                    bytes: arrival.bytes,
                };
                // A frame that fails is counted inside, and not believed. Who is held failed is not listened to,
                // but is to be told so.
                let authentic = match engine.handle(instant(now_ns), input) {
                    Ok(()) | Err(Reject::Duplicate | Reject::Outcast) => true,
                    Err(Reject::Forged) => {
                        unauthenticated.note(now_ns / 1000, engine, arrival.bytes);
                        false
                    }
                    Err(_) => false,
                };
                if let Some(sender) = frame::sender(arrival.bytes).filter(|_| authentic) {
                    heard.push((sender, arrival.rail, arrival.relayed));
                }
            };
            more = if news_may_wait {
                self.fabric.poll(now_ns / 1000, &mut deliver)
            } else {
                self.fabric.poll_beats(now_ns / 1000, &mut deliver)
            };
            for (sender, rail, relayed) in heard.drain(..) {
                let Some(peer) = self.peer_of(Target::Member(sender)) else {
                    continue;
                };
                match relayed {
                    None => self.fabric.heard(now_ns / 1000, peer, rail),
                    // It lives; of our rails and its own that says nothing.
                    Some(relayed) => self.fabric.heard_through(now_ns / 1000, peer, relayed),
                }
            }
            if !more {
                break;
            }
        }
        self.heard = heard;
        self.worked |= came;
        more
    }

    /// Step 2. Only descriptors that are ready are served: they stay ready until they are.
    /// Says whether some of that had to be left.
    fn serve(&mut self, ready: &[Ready], slice: &Slice) -> io::Result<bool> {
        let is_ready = |token| ready.iter().any(|ready| ready.token == token);
        let is_resting = self.local.is_resting();
        if is_ready(TOKEN_CONTROL) || (self.local.again_ns.is_some() && !is_resting) {
            self.answer_requests(slice);
        }
        if is_ready(TOKEN_SIGNALS) && self.signals.take() {
            info!("asked to end");
            self.is_asked = true;
            self.input(Input::Leave { exit_code: 0 });
        }
        let Some(job) = &mut self.job else {
            return Ok(false);
        };
        let now = instant(monotonic_ns());
        let mut is_left = false;
        if is_ready(TOKEN_RANKS) || self.local.again_ns.is_some() || job.is_due() {
            let (engine, fabric) = (&mut self.engine, &mut self.fabric);
            let participant_discovery = &mut self.admin_endpoint.participant_discovery;
            is_left = job.serve(slice, is_resting, &mut |input| {
                if let (Input::Seed { address }, Some(participant_discovery)) =
                    (&input, &mut *participant_discovery)
                {
                    participant_discovery.note(address);
                }
                if let Input::Key(key) = input {
                    fabric.set_key(key);
                }
                match engine.handle(now, input) {
                    // An outcast serves its ranks on, but its word counts no more.
                    Ok(()) | Err(Reject::Stopped) => {}
                    Err(reject) => warn!(?reject, "an input of the ranks' side was refused"),
                }
            })?;
        }
        job.keep_incarnation(&self.engine);
        is_left |= job.answer(&mut self.engine, now, slice);
        if let Some(ranks) = job.moved() {
            self.rails.make_room(&self.fabric, &ranks);
        }
        if job.is_over() {
            match self.engine.phase() {
                Phase::Running => {
                    match job.had_clients() {
                        true => info!("the last client and its launcher have gone"),
                        false => info!("no client has come"),
                    }
                    job.shut();
                    self.input(Input::Leave { exit_code: 0 });
                }
                Phase::Stopped => self.ending = Some(Ending::InOrder),
                Phase::Leaving => {}
            }
        }
        Ok(is_left)
    }

    /// Behind the work for this node: if it was too much, the loop looks at it again after a pause, and neither
    /// clients nor operators wake it before that.
    fn rest_from(&mut self, begun_ns: u64, slice: &Slice, is_left: bool) -> io::Result<()> {
        let rested = self.local.again_ns.is_some();
        self.local.note(begun_ns, slice, is_left);
        let rests = self.local.again_ns.is_some();
        if rests == rested {
            return Ok(());
        }
        let clients = self
            .job
            .iter()
            .map(|job| (job.ipc.descriptor(), TOKEN_RANKS));
        let control = self.admin_endpoint.control.iter();
        let operators = control.map(|control| (control.descriptor(), TOKEN_CONTROL));
        for (descriptor, token) in clients.chain(operators) {
            match rests {
                true => self.epoll.remove(descriptor),
                false => self.epoll.add(descriptor, token)?,
            }
        }
        Ok(())
    }

    /// What was lost outside the protocol and the fabric, by name.
    pub(super) fn counters(&self) -> impl Iterator<Item = (&'static str, u64)> {
        let own = [
            ("messages_dropped", self.drops.total()),
            ("piggyback_taken", self.piggybacks.taken),
            ("restless_turns", self.spin_detector.restless),
            ("local_work_cut", self.local.cut),
            ("local_work_longest_us", self.local.longest_us),
            ("rails_lost", self.rails.lost()),
            ("addresses_contradict", self.peers.contradictions),
            ("addresses_unusable", self.peers.undeliverable),
            ("address_lists_begun_anew", self.peers.begun_anew),
            ("priority_demotions", demotions()),
            ("log_lines_lost", log::lost()),
            (
                "questions_unanswered",
                self.admin_endpoint
                    .control
                    .as_ref()
                    .map_or(0, Control::unanswered),
            ),
        ];
        own.into_iter()
            .chain(self.descriptors.counters())
            .chain(
                self.admin_endpoint
                    .journal
                    .iter()
                    .flat_map(Journal::counters),
            )
            .chain(self.job.iter().flat_map(RankService::counters))
    }

    /// Step 3. `more` waits to be read.
    fn wake_engine(&mut self, more: bool) {
        let now = instant(monotonic_ns());
        let since = *self.behind_since.get_or_insert(now);
        self.priority.look(now.0, &mut self.engine);
        self.engine.strained(now.since(since));
        if !more {
            self.behind_since = None;
        }
        self.unjudged = match more && self.unjudged < UNJUDGED_MAX {
            true => self.unjudged + 1,
            false => 0,
        };
        if self.unjudged == 0 && self.engine.poll_timeout() <= now {
            self.input(Input::Wake);
        }
    }

    /// After step 5, which says whether we were cast out: with policy "stop" the agent stays for its ranks then, or
    /// they would start another.
    fn end_if_stopped(&mut self) {
        let serves_on = self.is_outcast && self.job.is_some() && !self.is_asked;
        if self.engine.phase() == Phase::Stopped && !serves_on {
            self.ending.get_or_insert(if self.is_asked {
                Ending::Asked
            } else {
                Ending::InOrder
            });
        }
    }

    /// Step 5, as far as there is time if that is short; says whether there are more.
    pub(super) fn tell_events(&mut self, slice: Option<&Slice>) -> io::Result<bool> {
        let (mut news, mut is_left) = (false, false);
        if let Some(job) = &mut self.job {
            job.note_gone(&self.engine);
        }
        while let Some(event) = self.engine.poll_event() {
            self.worked = true;
            self.hear_status(&event);
            if let Some(age) = self.engine.age() {
                gossip::log(age, &event);
            }
            if let Some(journal) = &self.admin_endpoint.journal
                && !self.job.as_ref().is_some_and(|job| job.is_known(&event))
                && let Some(line) = journal_record(&self.engine, &event)
            {
                journal.record(line);
            }
            self.snapshot_due_us
                .get_or_insert(monotonic_ns() / 1000 + SNAPSHOT_INTERVAL_US);
            match event.kind {
                EventKind::NameTaken => {
                    let name = self.engine.name_of(self.engine.id()).unwrap_or("?");
                    error!(name, "an earlier living member of this job has our name");
                    self.ending = Some(Ending::NameTaken);
                }
                EventKind::NameClaimed => {
                    let name = self.engine.name_of(self.engine.id()).unwrap_or("?");
                    error!(
                        name,
                        "another node of this job was started with our name and told to stop; \
                         give every node a name of its own (MUSTER_NODE)"
                    );
                }
                EventKind::Outcast => {
                    warn!("the others declared this node failed");
                    self.is_outcast = true;
                }
                EventKind::Refused { parameter } => {
                    let (name, parameter) = (self.engine.name_of(event.member), parameter.name());
                    error!(
                        peer = name.unwrap_or("?"),
                        id = event.member.0,
                        parameter,
                        "a member of this job has another value of this parameter; \
                         neither listens to the other"
                    );
                }
                _ => {}
            }
            match &mut self.job {
                Some(job) => news |= job.tell(&self.engine, &event),
                None => printer::print(&self.engine, &event)?,
            }
            is_left = slice.is_some_and(Slice::is_over);
            if is_left {
                break;
            }
        }
        if let Some(job) = self.job.as_mut().filter(|_| news) {
            job.wake_up();
        }
        Ok(is_left)
    }

    /// Step 6. False if there may be more.
    fn transmit(&mut self) -> bool {
        let mut buffer = std::mem::take(&mut self.buffer);
        let mut sent_all = false;
        for _ in 0..TRANSMITS_MAX {
            let now_ns = monotonic_ns();
            let Some(transmit) = self.engine.poll_transmit(instant(now_ns), &mut buffer) else {
                sent_all = true;
                break;
            };
            self.worked = true;
            let class = match transmit.class {
                Class::Beat => muster_fabric::Class::Beat,
                Class::News => muster_fabric::Class::News,
            };
            let route = match transmit.route {
                Route::Next
                    if class == muster_fabric::Class::Beat && self.beats_everywhere(now_ns) =>
                {
                    muster_fabric::Route::All
                }
                Route::Next => muster_fabric::Route::Next,
                Route::All => muster_fabric::Route::All,
            };
            match self.peer_of(transmit.target) {
                // What cannot be sent is counted by the fabric; the protocol repeats what matters.
                Some(peer) => {
                    let bytes = &buffer[..transmit.size];
                    let sent = self.fabric.send(now_ns / 1000, peer, class, route, bytes);
                    if let (0, Some(reason)) = (sent.copies, sent.dropped) {
                        let tried = || self.fabric.pairs_tried(peer, &sent.tried);
                        self.drops.dropped(now_ns / 1000, reason, tried);
                    }
                }
                None => self.peers.undeliverable += 1,
            }
        }
        self.buffer = buffer;
        sent_all
    }

    /// Whether this heartbeat's beats take all rails. Where a rule or a distance prefers some, the
    /// others would carry nothing, and their silence would look like a fault. Every second beat leaves
    /// each of them five tries, as a peer of two rails waits for ten beats.
    fn beats_everywhere(&self, now_ns: u64) -> bool {
        let beat = now_ns / 1000 / self.heartbeat_us;
        self.rails.favours() && beat.is_multiple_of(2)
    }

    /// The loop goes round and does nothing: what keeps it awake.
    fn tell_unrest(&self, armed: bool) {
        let now_us = monotonic_ns() / 1000;
        let late_us = |due_us: Option<u64>| due_us.map(|due_us| now_us.saturating_sub(due_us));
        error!(
            armed,
            protocol_late_us = late_us(Some(self.engine.poll_timeout().0)),
            rails_late_us = late_us(self.fabric.next_timeout()),
            status_late_us = late_us(self.status.due_us()),
            missing_late_us = late_us(self.rails.due_us()),
            record_late_us = late_us(self.snapshot_due_us),
            "the loop finds no rest: a deadline stays in the past, or a rail never lets it sleep; please \
             report this"
        );
    }

    fn sleep_time(&self) -> Duration {
        let now_us = monotonic_ns() / 1000;
        let mut until_us = self.engine.poll_timeout().0.min(now_us + SLEEP_MAX_US);
        let others = [
            self.fabric.next_timeout(),
            self.status.due_us(),
            self.rails.due_us(),
            self.begun.as_ref().and_then(Begun::due_us),
            self.snapshot_due_us,
            self.piggybacks.due_us(),
            self.discovery_due_us(),
            self.watchdog.as_ref().map(Watchdog::due_us),
            self.local.again_ns.map(|again_ns| again_ns / 1000 + 1),
            match self.local.again_ns {
                // Then it is looked at anyway.
                Some(_) => None,
                None => self.job.as_ref().and_then(RankService::due_us),
            },
        ];
        for other in others {
            until_us = until_us.min(other.unwrap_or(until_us));
        }
        Duration::from_micros(until_us.saturating_sub(now_us))
    }

    /// Ends for the next worker, if descriptors run out, with all that it needs.
    fn look_at_descriptors(&mut self) {
        if self.ending.is_none() && self.descriptors.look(monotonic_ns() / 1000) {
            self.snapshot_due_us = Some(0);
            self.ending = Some(Ending::Renewed);
        }
    }

    /// Keeps what the next worker needs, a moment after the last change.
    fn keep_snapshot(&mut self) {
        let Some(job) = &mut self.job else {
            self.snapshot_due_us = None;
            return;
        };
        if self.engine.version() != self.kept_version {
            self.kept_version = self.engine.version();
            self.snapshot_due_us = Some(0);
        }
        if self
            .snapshot_due_us
            .is_some_and(|due_us| due_us <= monotonic_ns() / 1000)
        {
            self.snapshot_due_us = None;
            job.keep(&self.engine);
        }
    }

    pub(super) fn input(&mut self, input: Input<'_>) {
        if let Err(reject) = self.engine.handle(instant(monotonic_ns()), input) {
            warn!(?reject, "an input was refused");
        }
    }

    pub(super) fn peer_of(&mut self, target: Target) -> Option<PeerHandle> {
        let address = self.engine.address_of(target)?;
        let word = match target {
            Target::Member(_) => AddressSource::Own,
            Target::Seed(_) | Target::Address(_) => AddressSource::Hint,
        };
        let before = self.peers.resolved;
        let peer = self.peers.peer(&mut self.fabric, address, word)?;
        // What the member said of its rails may be older than the peer that it is now.
        if let Target::Member(member) = target
            && self.peers.resolved != before
            && let Some(nids) = self.told_failing.get(&member)
        {
            self.fabric.told_failing(peer, nids);
        }
        Some(peer)
    }

    /// Ends the ranks' service; says to those who are left why.
    pub(super) fn close(self, ending: &Ending) {
        let name = self.engine.name_of(self.engine.id()).unwrap_or("?");
        if let Some(job) = self.job {
            job.close(ending, name);
        }
    }
}

pub(super) fn instant(ns: u64) -> Instant {
    Instant(ns / 1000)
}
