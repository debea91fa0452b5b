//! The event loop: the one thread that drives the engine, the rails and the ranks.
//!
//! One round has these steps, in this order. Only step 7 blocks.
//!
//! 0. **Traffic stamps**: if the engine is about to wake, read what ranks recorded (traffic stamps and piggybacks) for
//!    messages of their own (`piggyback`).
//! 1. **Receive from the rails**: each datagram goes to the engine, which checks it. For an authentic frame the fabric
//!    notes that this rail of this peer works.
//! 2. **Serve the ranks**: requests at the socket and ends of processes become inputs of the engine.
//! 3. **Time**: the engine is woken if its time-out has passed and step 1 has read all that arrived. If step 1 has not,
//!    the engine is told for how long that has been so.
//! 4. **Events of the rails** (`rail_liveness`): a silent rail of a live peer is reported as "degraded", the end of a
//!    peer's process as "unreachable", and the other members are told which rails of this node fail.
//! 5. **Publish events**: to the state table or the terminal; waiting ranks are woken.
//! 6. **Send on the rails**: the engine writes datagrams into a buffer until it has no more.
//! 7. **Sleep** until a descriptor is ready or the next deadline.
//!
//! News, ranks and operators wake the loop. Beats of peers do not: they stay in their lane until step 1 reads them,
//! at the latest at this node's own next beat. Step 1 precedes step 3, so a peer whose beat has arrived is not
//! suspected. A silence is detected up to one heartbeat later than it could be. On an idle node one wake-up per
//! heartbeat does everything. If only a time-out woke the loop, step 1 reads only the beats.
//!
//! Step 1 never sends: what a datagram causes is published in step 5 and sent in step 6.

mod gossip;
mod rail_changes;
mod rail_liveness;
mod requests;
mod state;
mod zones;

use crate::admin_endpoint::AdminEndpoint;
use crate::descriptors::Descriptors;
use crate::difference::words;
use crate::ending::Ending;
use crate::journal::Journal;
use crate::journal_record::journal_record;
use crate::log;
use crate::participant_discovery::ParticipantDiscovery;
use crate::peers::{AddressSource, PeerDirectory};
use crate::pending_change::PendingChange;
use crate::piggyback::Piggybacks;
use crate::printer;
use crate::priority::Priority;
use crate::rails::Rails;
use crate::rank_service::RankService;
use crate::service::Watchdog;
use crate::signals::Signals;
use crate::slice::{LocalWork, Slice};
use crate::spin_detector::SpinDetector;
use crate::status::{RAILS_KEY, Status};
use crate::unauthenticated::UnauthenticatedSenders;
use muster_control::Control;
use muster_fabric::{Arrival, Fabric, PeerHandle, Transport};
use muster_protocol::{
    Class, Engine, EventKind, Input, Instant, MemberId, Phase, Profile, Reject, Route, Target,
    frame,
};
use muster_sys::clock::monotonic_ns;
use muster_sys::poll::{Epoll, Ready};
use muster_sys::schedule::demotions;
use muster_zones::{Tree, TreeEvent};
use state::{Lifetime, Poller, RailMonitor, Timing};
use std::io;
use std::os::fd::AsFd;
use std::time::Duration;
use tracing::{error, info, warn};

/// Rounds of step 1, each of up to 64 datagrams a lane, before the other steps run.
const ARRIVAL_ROUNDS_MAX: usize = 4;
/// After this number of rounds in which step 1 did not read everything, step 3 runs anyway. By then all datagrams
/// that were in a lane when a silence began have been read.
const DEFERRALS_MAX: u32 = 4;
/// Datagrams of step 6 before the other steps run.
const TRANSMITS_MAX: usize = 64;
/// Longest sleep: the loop runs at least this often.
const SLEEP_MAX_US: u64 = 1_000_000;
/// Minimum time between two updates of the inherited state.
const SNAPSHOT_INTERVAL_US: u64 = 20_000;

/// Tokens of the loop's descriptors. Rails need no separate ones: they are read in every round.
const TOKEN_RAILS: u64 = 0;
const TOKEN_SIGNALS: u64 = 1;
const TOKEN_CONTROL: u64 = 2;
const TOKEN_RANKS: u64 = 3;

/// All objects that the loop drives.
pub(super) struct EventLoop {
    fabric: Fabric,
    tree: Tree,
    peers: PeerDirectory,
    rails: Rails,
    monitor: RailMonitor,
    /// The service for ranks; none in the foreground.
    job: Option<RankService>,
    /// Beats for the ranks' messages to carry.
    piggybacks: Piggybacks,
    /// Senders of frames with another key.
    unauthenticated: UnauthenticatedSenders,
    admin_endpoint: AdminEndpoint,
    timing: Timing,
    lifetime: Lifetime,
    poller: Poller,
}

impl EventLoop {
    pub(super) fn new(
        (fabric, rails): (Fabric, Rails),
        mut tree: Tree,
        mut job: Option<RankService>,
        admin_endpoint: AdminEndpoint,
        profile: Profile,
        signals: Signals,
        descriptors: Descriptors,
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
            job.watch_parent_pipe(&epoll, TOKEN_RANKS);
        }
        let buffer = vec![0; fabric.mtu()];
        let saved_version = tree.base().version();
        let priority = Priority::request(&mut tree, profile.deadline_us());
        let mut status = Status::resume(tree.base().attribute(tree.base().id(), RAILS_KEY));
        status.set_policy(rails.document().common_digest());
        let monitor = RailMonitor {
            status,
            ..RailMonitor::default()
        };
        let timing = Timing {
            heartbeat_us: profile.heartbeat_us(),
            deadline_us: profile.deadline_us(),
            behind_since: None,
            deferrals: 0,
            worked: false,
            spin_detector: SpinDetector::default(),
            local: LocalWork::default(),
            priority,
        };
        let lifetime = Lifetime {
            signals,
            watchdog: None,
            ending: None,
            end_requested: false,
            wants_renewal: false,
            is_outcast: false,
            snapshot_due_us: Some(0),
            saved_version,
        };
        let poller = Poller {
            epoll,
            descriptors,
            buffer,
            heard: Vec::new(),
        };
        let event_loop = Self {
            fabric,
            tree,
            peers: PeerDirectory::default(),
            rails,
            monitor,
            job,
            piggybacks: Piggybacks::default(),
            unauthenticated: UnauthenticatedSenders::default(),
            admin_endpoint,
            timing,
            lifetime,
            poller,
        };
        event_loop.publish_config();
        Ok(event_loop)
    }

    /// Reports to the service manager from now on that the loop runs.
    pub(super) fn feed_watchdog(&mut self, watchdog: Option<Watchdog>) {
        self.lifetime.watchdog = watchdog;
    }

    /// Age gossip inherits no members. Without this, a member that failed before this worker took over would never
    /// be missed.
    fn expect_present(&mut self) {
        if let (Some(job), Engine::Age(age)) = (&self.job, self.tree.base_mut()) {
            job.present().for_each(|id| age.expect(id));
        }
    }

    /// Tells the engine what the last worker knew and could not leave in its snapshot.
    pub(super) fn catch_up(&mut self) {
        self.expect_present();
        if let Some(job) = &self.job {
            let now = instant(monotonic_ns());
            for report in job.catch_up(self.tree.base()) {
                if let Err(reject) = self.tree.handle(now, report) {
                    warn!(?reject, "the engine refused the report of a rank's end");
                }
            }
        }
        if let Some(job) = &mut self.job {
            job.correct(self.tree.base());
        }
    }

    /// Runs until there is a reason to end.
    pub(super) fn run(&mut self) -> io::Result<Ending> {
        let mut ready: Vec<Ready> = Vec::new();
        let mut news_may_wait = true;
        loop {
            // Before step 1, because a datagram may also make the engine send a beat.
            self.read_traffic();
            let unread = self.receive(news_may_wait);
            let (begun_ns, slice) = (
                monotonic_ns(),
                self.timing.local.slice(self.timing.deadline_us),
            );
            let mut has_more = self.serve(&ready, &slice)?;
            self.discover_participants();
            self.wake_engine(unread);
            self.check_liveness();
            self.continue_change();
            self.reopen_rails();
            self.publish_status();
            has_more |= self.handle_events(Some(&slice))?;
            if let Some(job) = &mut self.job {
                has_more |= job.wake_up_on(&slice);
            }
            self.pause_local_work(begun_ns, &slice, has_more)?;
            self.end_if_stopped();
            if let Some(job) = &mut self.job {
                job.place_ranks(self.tree.base());
            }
            if let (Some(files), Some(age)) = (
                &mut self.admin_endpoint.gossip_files,
                self.tree.base().age(),
            ) {
                files.write_if_changed(age);
            }
            // What was read since may have made a ping due that a message has already carried.
            self.settle_piggybacks();
            let sent_all = self.transmit();
            self.check_renewal();
            self.save_snapshot();
            if let Some(watchdog) = &mut self.lifetime.watchdog {
                watchdog.notify_if_due(monotonic_ns() / 1000);
            }
            if let Some(ending) = self.lifetime.ending.take() {
                return Ok(ending);
            }
            news_may_wait |= std::mem::take(&mut self.monitor.rails_are_new);
            // If a lane was armed before the last sleep, and did not wake the loop, it is still armed.
            let armed = !unread && (!news_may_wait || self.fabric.may_sleep());
            let sleep = if armed && sent_all {
                self.sleep_time()
            } else {
                Duration::ZERO
            };
            let slept_from_ns = monotonic_ns();
            self.poller.epoll.wait(&mut ready, Some(sleep))?;
            self.timing.local.slept(monotonic_ns() - slept_from_ns);
            let worked = std::mem::take(&mut self.timing.worked) || unread || !ready.is_empty();
            if self.timing.spin_detector.round(worked || !sleep.is_zero()) {
                self.report_spin(armed);
            }
            news_may_wait = !armed || ready.iter().any(|ready| ready.token == TOKEN_RAILS);
        }
    }

    /// Step 0.
    fn read_traffic(&mut self) {
        let spares_beats = || spares_beats(&self.fabric, &self.rails);
        if let Some(job) = &mut self.job {
            let tree = &mut self.tree;
            self.piggybacks.read_traffic(tree, job, &spares_beats);
        }
    }

    fn settle_piggybacks(&mut self) {
        let spares_beats = || spares_beats(&self.fabric, &self.rails);
        if let Some(job) = &mut self.job {
            let tree = &mut self.tree;
            self.piggybacks.settle(tree, job, &spares_beats);
        }
    }

    /// Step 1. Returns true if there may be more to read.
    fn receive(&mut self, news_may_wait: bool) -> bool {
        let mut heard = std::mem::take(&mut self.poller.heard);
        let (mut unread, mut received) = (true, false);
        for _ in 0..ARRIVAL_ROUNDS_MAX {
            let now_ns = monotonic_ns();
            let (tree, unauthenticated) = (&mut self.tree, &mut self.unauthenticated);
            let mut deliver = |arrival: Arrival<'_>| {
                received = true;
                let input = Input::Datagram {
                    bytes: arrival.bytes,
                };
                // The engine counts and drops a frame that is not valid. Frames of an outcast are not used, but the
                // engine answers that it is an outcast.
                let authentic = match tree.handle(instant(now_ns), input) {
                    Ok(()) | Err(Reject::Duplicate | Reject::Outcast) => true,
                    Err(Reject::Forged) => {
                        unauthenticated.note(now_ns / 1000, tree.base(), arrival.bytes);
                        false
                    }
                    Err(_) => false,
                };
                if let Some(sender) = frame::sender(arrival.bytes).filter(|_| authentic) {
                    heard.push((sender, arrival.rail, arrival.relayed));
                }
            };
            unread = if news_may_wait {
                self.fabric.poll(now_ns / 1000, &mut deliver)
            } else {
                self.fabric.poll_beats(now_ns / 1000, &mut deliver)
            };
            for (sender, rail, relayed) in heard.drain(..) {
                let Some(peer) = self.peer_of(sender) else {
                    continue;
                };
                match relayed {
                    None => self.fabric.heard(now_ns / 1000, peer, rail),
                    // It shows that the member is alive, but not that a rail of this node or of the member works.
                    Some(relayed) => self.fabric.heard_through(now_ns / 1000, peer, relayed),
                }
            }
            if !unread {
                break;
            }
        }
        self.poller.heard = heard;
        self.timing.worked |= received;
        unread
    }

    /// Step 2. Serves only descriptors that are ready; they stay ready until they are served. Returns whether some
    /// work was left.
    fn serve(&mut self, ready: &[Ready], slice: &Slice) -> io::Result<bool> {
        let is_ready = |token| ready.iter().any(|ready| ready.token == token);
        let is_paused = self.timing.local.is_paused();
        if is_ready(TOKEN_CONTROL) || (self.timing.local.resume_ns.is_some() && !is_paused) {
            self.answer_requests(slice);
        }
        if is_ready(TOKEN_SIGNALS) && self.lifetime.signals.take() {
            info!("received a signal to end");
            self.lifetime.end_requested = true;
            self.input(Input::Leave { exit_code: 0 });
        }
        let Some(job) = &mut self.job else {
            return Ok(false);
        };
        let now = instant(monotonic_ns());
        let mut has_more = false;
        if is_ready(TOKEN_RANKS) || self.timing.local.resume_ns.is_some() || job.is_due() {
            let (tree, fabric) = (&mut self.tree, &mut self.fabric);
            let participant_discovery = &mut self.admin_endpoint.participant_discovery;
            has_more = job.serve(slice, is_paused, &mut |input| {
                if let (Input::Seed { address }, Some(participant_discovery)) =
                    (&input, &mut *participant_discovery)
                {
                    participant_discovery.note(zones::without_name(address));
                }
                if let Input::Key(key) = input {
                    fabric.set_key(key);
                }
                let done = match input {
                    Input::Seed { address } => zones::seed(tree, now, address),
                    input => tree.handle(now, input),
                };
                match done {
                    // An outcast continues to serve its ranks, but the engine accepts no more inputs.
                    Ok(()) | Err(Reject::Stopped) => {}
                    Err(reject) => {
                        warn!(?reject, "the engine refused an input of the rank service");
                    }
                }
            })?;
        }
        job.save_incarnation(self.tree.base());
        has_more |= job.answer(&mut self.tree, now, slice);
        if let Some(ranks) = job.changed_processes() {
            self.rails.choose_core(&self.fabric, &ranks);
        }
        if job.is_over() {
            match self.tree.phase() {
                Phase::Running => {
                    match job.had_clients() {
                        true => info!("the last client and its launcher have ended"),
                        false => info!("no client has attached"),
                    }
                    job.stop_accepting();
                    self.input(Input::Leave { exit_code: 0 });
                }
                Phase::Stopped => self.lifetime.ending = Some(Ending::InOrder),
                Phase::Leaving => {}
            }
        }
        Ok(has_more)
    }

    /// Ends the work for this node. If it took too long, the loop continues it after a pause; until then neither
    /// clients nor operators wake the loop.
    fn pause_local_work(&mut self, begun_ns: u64, slice: &Slice, has_more: bool) -> io::Result<()> {
        let was_paused = self.timing.local.resume_ns.is_some();
        self.timing.local.note(begun_ns, slice, has_more);
        let is_paused = self.timing.local.resume_ns.is_some();
        if is_paused == was_paused {
            return Ok(());
        }
        let clients = self.job.iter().map(|job| (job.clients(), TOKEN_RANKS));
        let control = self.admin_endpoint.control.iter();
        let operators = control.map(|control| (control.descriptor(), TOKEN_CONTROL));
        for (descriptor, token) in clients.chain(operators) {
            match is_paused {
                true => self.poller.epoll.remove(descriptor),
                false => self.poller.epoll.add(descriptor, token)?,
            }
        }
        Ok(())
    }

    /// Counters of the agent itself; engine and fabric have their own.
    fn counters(&self) -> impl Iterator<Item = (&'static str, u64)> {
        let own = [
            ("messages_dropped", self.monitor.drops.total()),
            ("piggyback_taken", self.piggybacks.taken),
            ("restless_turns", self.timing.spin_detector.idle_rounds),
            ("local_work_cut", self.timing.local.cut),
            ("local_work_longest_us", self.timing.local.longest_us),
            ("rails_lost", self.rails.lost()),
            ("addresses_contradict", self.peers.contradictions),
            ("addresses_unusable", self.peers.undeliverable),
            ("address_lists_begun_anew", self.peers.cleared),
            ("priority_demotions", demotions()),
            ("log_lines_lost", log::lost()),
            ("zone_events_lost", self.tree.events_lost()),
            ("zone_copies_refused", self.tree.copies_refused()),
            ("zone_reports_refused", self.tree.reports_refused()),
            (
                "questions_unanswered",
                self.admin_endpoint
                    .control
                    .as_ref()
                    .map_or(0, Control::unanswered),
            ),
        ];
        own.into_iter()
            .chain(self.poller.descriptors.counters())
            .chain(
                self.admin_endpoint
                    .journal
                    .iter()
                    .flat_map(Journal::counters),
            )
            .chain(self.job.iter().flat_map(RankService::counters))
    }

    /// Step 3. `unread` is true if step 1 has not read everything.
    fn wake_engine(&mut self, unread: bool) {
        let now = instant(monotonic_ns());
        let since = *self.timing.behind_since.get_or_insert(now);
        self.timing.priority.check(now.0, &mut self.tree);
        self.tree.strained(now.since(since));
        if !unread {
            self.timing.behind_since = None;
        }
        self.timing.deferrals = match unread && self.timing.deferrals < DEFERRALS_MAX {
            true => self.timing.deferrals + 1,
            false => 0,
        };
        if self.timing.deferrals == 0 && self.tree.poll_timeout() <= now {
            self.input(Input::Wake);
        }
    }

    /// Ends the loop once the engine has stopped. Runs after step 5, which tells whether this node is an outcast:
    /// with policy "stop" an outcast's agent stays for its ranks, because they would start another one.
    fn end_if_stopped(&mut self) {
        let serves_on =
            self.lifetime.is_outcast && self.job.is_some() && !self.lifetime.end_requested;
        if self.tree.phase() == Phase::Stopped && !serves_on {
            self.lifetime
                .ending
                .get_or_insert(if self.lifetime.end_requested {
                    Ending::Requested
                } else {
                    Ending::InOrder
                });
        }
    }

    /// Step 5. Returns whether events are left because the slice is over.
    fn handle_events(&mut self, slice: Option<&Slice>) -> io::Result<bool> {
        let (mut news, mut has_more) = (false, false);
        if let Some(job) = &mut self.job {
            job.publish_gone(self.tree.base());
        }
        while let Some(event) = self.tree.poll_event() {
            self.timing.worked = true;
            let event = match event {
                TreeEvent::Base(event) => event,
                other => {
                    news |= self.handle_zone_event(other)?;
                    has_more = slice.is_some_and(Slice::is_over);
                    if has_more {
                        break;
                    }
                    continue;
                }
            };
            self.note_status_event(&event);
            let name = self.tree.base().name_of(event.member).unwrap_or("?");
            if let Some(age) = self.tree.base().age() {
                gossip::log(age, &event);
            }
            if let Some(journal) = &self.admin_endpoint.journal
                && !self.job.as_ref().is_some_and(|job| job.is_known(&event))
                && let Some(line) = journal_record(&self.tree, &event, name)
            {
                journal.record(&line);
            }
            self.lifetime
                .snapshot_due_us
                .get_or_insert(monotonic_ns() / 1000 + SNAPSHOT_INTERVAL_US);
            match event.kind {
                EventKind::NameTaken => {
                    let name = self.own_name();
                    error!(
                        name,
                        "a live member of this job had this name first; this agent ends"
                    );
                    self.lifetime.ending = Some(Ending::NameTaken);
                }
                EventKind::NameClaimed => {
                    let name = self.own_name();
                    error!(
                        name,
                        "another node of this job was started with this node's name and told to stop; \
                         give each node a name of its own (MUSTER_NODE)"
                    );
                }
                EventKind::Outcast => {
                    warn!("the other members declared this node failed");
                    self.lifetime.is_outcast = true;
                }
                EventKind::Refused(difference) => {
                    let [parameter, own, other] = words(difference);
                    error!(
                        peer = self.tree.base().name_of(event.member).unwrap_or("?"),
                        id = event.member.0,
                        parameter,
                        own,
                        other,
                        "a member of this job has another value of this parameter, and neither accepts \
                         frames of the other; set it to the same value on all nodes"
                    );
                }
                _ => {}
            }
            match &mut self.job {
                Some(job) => news |= job.publish(&self.tree, &event),
                None => printer::print(self.tree.base(), &event, name)?,
            }
            has_more = slice.is_some_and(Slice::is_over);
            if has_more {
                break;
            }
        }
        if let Some(job) = self.job.as_mut().filter(|_| news) {
            job.wake_up();
        }
        Ok(has_more)
    }

    /// Step 6. Returns false if there may be more to send.
    fn transmit(&mut self) -> bool {
        let mut buffer = std::mem::take(&mut self.poller.buffer);
        let mut sent_all = false;
        for _ in 0..TRANSMITS_MAX {
            let now_ns = monotonic_ns();
            let transmit = self.tree.poll_transmit(instant(now_ns), &mut buffer);
            let Some((level, transmit)) = transmit else {
                sent_all = true;
                break;
            };
            self.timing.worked = true;
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
            match self.peer_at(level, transmit.target) {
                // The fabric counts frames that cannot be sent. The engine repeats what matters.
                Some(peer) => {
                    let bytes = &buffer[..transmit.size];
                    let sent = self.fabric.send(now_ns / 1000, peer, class, route, bytes);
                    if let (0, Some(reason)) = (sent.copies, sent.dropped) {
                        let tried = || self.fabric.pairs_tried(peer, &sent.tried);
                        self.monitor.drops.dropped(now_ns / 1000, reason, tried);
                    }
                }
                None => self.peers.undeliverable += 1,
            }
        }
        self.poller.buffer = buffer;
        sent_all
    }

    /// Whether this heartbeat's beats use all rails. Where a rule or a distance prefers some rails, the others would
    /// carry nothing, and their silence would look like a fault. With every second beat on all rails, each gets five
    /// tries in the ten beats that a peer of two rails waits.
    fn beats_everywhere(&self, now_ns: u64) -> bool {
        let beat = now_ns / 1000 / self.timing.heartbeat_us;
        self.rails.has_preferences() && beat.is_multiple_of(2)
    }

    /// Logs an endless loop without work, with the deadlines that may keep it awake.
    fn report_spin(&self, armed: bool) {
        let now_us = monotonic_ns() / 1000;
        let late_us = |due_us: Option<u64>| due_us.map(|due_us| now_us.saturating_sub(due_us));
        error!(
            armed,
            protocol_late_us = late_us(Some(self.tree.poll_timeout().0)),
            rails_late_us = late_us(self.fabric.next_timeout()),
            status_late_us = late_us(self.monitor.status.due_us()),
            missing_late_us = late_us(self.rails.due_us()),
            record_late_us = late_us(self.lifetime.snapshot_due_us),
            "the event loop does not sleep though it has no work: a deadline stays in the past, or a rail cannot be \
             armed; please report this"
        );
    }

    fn sleep_time(&self) -> Duration {
        let now_us = monotonic_ns() / 1000;
        let mut until_us = self.tree.poll_timeout().0.min(now_us + SLEEP_MAX_US);
        let others = [
            self.fabric.next_timeout(),
            self.monitor.status.due_us(),
            self.rails.due_us(),
            self.admin_endpoint
                .pending_change
                .as_ref()
                .and_then(PendingChange::due_us),
            self.lifetime.snapshot_due_us,
            self.piggybacks.due_us(),
            self.admin_endpoint
                .participant_discovery
                .as_ref()
                .map(ParticipantDiscovery::due_us),
            self.lifetime.watchdog.as_ref().map(Watchdog::due_us),
            self.timing
                .local
                .resume_ns
                .map(|resume_ns| resume_ns / 1000 + 1),
            match self.timing.local.resume_ns {
                // Client work is then due at the end of the pause.
                Some(_) => None,
                None => self.job.as_ref().and_then(RankService::due_us),
            },
        ];
        for other in others {
            until_us = until_us.min(other.unwrap_or(until_us));
        }
        Duration::from_micros(until_us.saturating_sub(now_us))
    }

    /// Ends for the next worker if descriptors run out, or the only rail has to be opened again, and stores the
    /// inherited state.
    fn check_renewal(&mut self) {
        if self.lifetime.ending.is_some() {
            return;
        }
        let now_us = monotonic_ns() / 1000;
        let descriptors = &mut self.poller.descriptors;
        let is_wanted = self.lifetime.wants_renewal && descriptors.may_renew(now_us);
        if is_wanted || descriptors.check(now_us) {
            self.lifetime.snapshot_due_us = Some(0);
            self.lifetime.ending = Some(Ending::Renewed);
        }
    }

    /// Stores the inherited state a short time after the last change.
    fn save_snapshot(&mut self) {
        let Some(job) = &mut self.job else {
            self.lifetime.snapshot_due_us = None;
            return;
        };
        if self.tree.base().version() != self.lifetime.saved_version {
            self.lifetime.saved_version = self.tree.base().version();
            self.lifetime.snapshot_due_us = Some(0);
        }
        if self
            .lifetime
            .snapshot_due_us
            .is_some_and(|due_us| due_us <= monotonic_ns() / 1000)
        {
            self.lifetime.snapshot_due_us = None;
            job.save(self.tree.base());
        }
    }

    fn input(&mut self, input: Input<'_>) {
        if let Err(reject) = self.tree.handle(instant(monotonic_ns()), input) {
            warn!(?reject, "the engine refused an input");
        }
    }

    /// The peer of a target that the engine at this level of the tree named.
    fn peer_at(&mut self, level: usize, target: Target) -> Option<PeerHandle> {
        if let Target::Member(member) = target {
            return self.peer_of(member);
        }
        let address = self.tree.address_of(level, target)?;
        let source = AddressSource::Hint;
        self.peers.peer(&mut self.fabric, address, source)
    }

    /// The peer of a member of any of this node's zones: it has one address.
    fn peer_of(&mut self, member: MemberId) -> Option<PeerHandle> {
        let address = self.tree.address_of_member(member)?;
        if let Some(peer) = self.peers.of_member(member, address) {
            return Some(peer);
        }
        let (before, source) = (self.peers.resolved, AddressSource::Own);
        let peer = self.peers.peer(&mut self.fabric, address, source)?;
        self.peers.note_member(member, address, peer);
        // The member may have reported its failing rails before this peer was resolved.
        if self.peers.resolved != before
            && let Some(nids) = self.monitor.reported_failing.get(&member)
        {
            self.fabric.told_failing(peer, nids);
        }
        Some(peer)
    }

    /// Ends the service for ranks, and tells the remaining ranks the reason.
    pub(super) fn close(self, ending: &Ending) {
        let name = self.own_name().to_owned();
        if let Some(job) = self.job {
            job.close(ending, &name);
        }
    }

    fn own_name(&self) -> &str {
        let base = self.tree.base();
        base.name_of(base.id()).unwrap_or("?")
    }
}

/// Whether traffic may replace beats. It may not where beats also monitor rails: with several rails, or with
/// preferences among them, only frames on a rail show that it works.
fn spares_beats(fabric: &Fabric, rails: &Rails) -> bool {
    !rails.has_preferences() && fabric.rail_count() == 1
}

fn instant(ns: u64) -> Instant {
    Instant(ns / 1000)
}
