//! Signals: those that the launcher gets, and those that ranks send to each other.

use std::time::Duration;

use signal_hook::consts::{SIGHUP, SIGKILL, SIGTERM, SIGUSR1, SIGUSR2};

use super::Core;
use super::messages::{Action, Answer, RequestId};
use super::node_status::{Abort, Signal};

/// Two signals within this time are one: a terminal sends a signal to all of its processes, and this launcher gets
/// it from its parent as well.
pub(crate) const DUPLICATE_SIGNAL_WINDOW: Duration = Duration::from_secs(1);
/// The error of a job that a signal ends; the signal's number follows.
const BY_SIGNAL: &str = "ended by signal";
/// Most signals from ranks to others in a node status: no launcher can have missed that many.
const SIGNALS_MAX: usize = 64;
/// Most bytes of them in a node status.
const SIGNALS_SIZE: usize = 8192;

impl Core {
    /// Handles a signal that a rank sends to others.
    pub(super) fn send_signal(&mut self, request: RequestId, ranks: &[u32], number: i32) {
        let signal = Signal {
            serial: self.signal_count + 1,
            ranks: ranges(ranks),
            signal: number,
        };
        if size_of(&signal) > SIGNALS_SIZE {
            self.print(format!(
                "a signal to {} ranks that are not adjacent is too large; send it to all, or to \
                 fewer at a time",
                ranks.len()
            ));
            return self.answer(request, Answer::Refused);
        }
        self.act(Action::SignalRanks {
            ranks: signal.ranks.clone(),
            signal: number,
        });
        self.signal_count = signal.serial;
        self.node_status.signals.push(signal);
        drop_oldest(&mut self.node_status.signals);
        self.answer(request, Answer::Done);
    }

    /// Handles the signals of other nodes' ranks, once each.
    pub(super) fn forward_signals(&mut self) {
        let mut new = Vec::new();
        for (node, node_status) in self.view.others() {
            let seen = self.signals_seen.entry(node).or_default();
            let signals = node_status.signals.iter();
            new.extend(signals.filter(|one| one.serial > *seen).cloned());
            *seen = node_status.signals.last().map_or(*seen, |one| one.serial);
        }
        for Signal { ranks, signal, .. } in new {
            self.act(Action::SignalRanks { ranks, signal });
        }
    }

    /// Handles a signal to this process. Where Slurm sends a signal to all processes, it is not forwarded: ranks
    /// of a step must not get it twice.
    pub(super) fn take_signal(&mut self, signal: i32) {
        let have_it = self.config.signals_all;
        if signal == SIGHUP && self.is_cut {
            // This SIGHUP only wakes the loop.
            return;
        }
        if signal == SIGUSR1 || signal == SIGUSR2 {
            if !have_it {
                let ranks = Vec::new();
                self.act(Action::SignalRanks { ranks, signal });
            }
            return;
        }
        let is_second = |since: Duration| self.now > since + DUPLICATE_SIGNAL_WINDOW;
        if self.node_status.abort.is_none() {
            self.act(match have_it {
                true => Action::NoteSent(signal),
                false => Action::EndRanks(signal),
            });
            self.ranks_have_term |= signal == SIGTERM;
            let why = format!("{BY_SIGNAL} {signal}");
            // As a rule all launchers get the signal.
            match self.config.own {
                0 => self.abort(128 + signal as u8, &why),
                _ => self.abort_silently(128 + signal as u8, &why),
            }
        } else if self.end_requested_at().is_some_and(is_second) {
            // This is a second request to end.
            if self.config.own == 0 && self.kill_at.is_some() {
                self.print("second request to end; the ranks are killed");
            }
            self.kill_at = None;
            self.act(Action::EndRanks(SIGKILL));
        }
        self.end_requested_since.get_or_insert(self.now);
    }

    /// When the end was requested. Another launcher's abort by a signal may arrive before the signal itself.
    fn end_requested_at(&self) -> Option<Duration> {
        let is_signal = |abort: &Abort| abort.why.starts_with(BY_SIGNAL);
        match &self.node_status.abort {
            Some(abort) if !is_signal(abort) => self.abort_since,
            _ => self.end_requested_since,
        }
    }
}

/// Converts ranks to ranges.
pub(super) fn ranges(ranks: &[u32]) -> Vec<(u32, u32)> {
    let mut ranks = ranks.to_vec();
    ranks.sort_unstable();
    let mut ranges: Vec<(u32, u32)> = Vec::new();
    for rank in ranks {
        match ranges.last_mut() {
            Some((_, last)) if rank <= last.saturating_add(1) => *last = rank,
            _ => ranges.push((rank, rank)),
        }
    }
    ranges
}

/// Size of a signal in the node status, as an upper bound.
fn size_of(signal: &Signal) -> usize {
    let digits = |number: u32| number.checked_ilog10().unwrap_or(0) as usize + 1;
    let range = |(from, to): &(u32, u32)| digits(*from) + digits(*to) + 4;
    64 + signal.ranks.iter().map(range).sum::<usize>()
}

/// Drops the oldest signals beyond the limits of number and size.
fn drop_oldest(signals: &mut Vec<Signal>) {
    let mut total: usize = signals.iter().map(size_of).sum();
    let mut old = 0;
    while signals.len() - old > SIGNALS_MAX || total > SIGNALS_SIZE {
        total -= size_of(&signals[old]);
        old += 1;
    }
    signals.drain(..old);
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A signal to ranks that are not adjacent.
    fn signal(serial: u64, ranks: u32) -> Signal {
        let ranks: Vec<u32> = (0..ranks).map(|rank| 10_000 + 2 * rank).collect();
        Signal {
            serial,
            ranks: ranges(&ranks),
            signal: 10,
        }
    }

    #[test]
    fn signals_are_bounded_in_number_and_size() {
        for (ranks, count, kept) in [(1, 100, SIGNALS_MAX), (150, 64, 3), (500, 3, 1)] {
            let mut signals: Vec<Signal> = (0..count).map(|serial| signal(serial, ranks)).collect();
            drop_oldest(&mut signals);
            assert_eq!(signals.len(), kept, "{ranks}");
            assert_eq!(signals.last().map(|one| one.serial), Some(count - 1));
            let written = serde_json::to_vec(&signals).unwrap().len();
            assert!(written <= SIGNALS_SIZE, "{ranks}: {written}");
        }
    }

    #[test]
    fn adjacent_ranks_become_one_range() {
        let all: Vec<u32> = (0..1_000_000).rev().collect();
        assert_eq!(ranges(&all), [(0, 999_999)]);
        assert_eq!(ranges(&[7, 3, 4, 4, 9]), [(3, 4), (7, 7), (9, 9)]);
        assert_eq!(ranges(&[]), []);
        for many in [1, 100, 10_000] {
            let one = signal(u64::MAX >> 20, many);
            assert!(serde_json::to_vec(&one).unwrap().len() <= size_of(&one));
        }
        assert!(size_of(&signal(1, 10_000)) > SIGNALS_SIZE);
    }
}
