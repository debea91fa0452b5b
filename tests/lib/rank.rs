//! A rank of a job on emulated nodes: its lines as events, and the requests that a test sends it.

use crate::DEADLINE;
use crate::process::Process;
use crate::program;
use crate::until;
use std::cell::{Cell, RefCell};
use std::collections::VecDeque;
use std::process::{Command, Stdio};
use std::time::Instant;

/// The program of ranks: see `tests/programs/rank.rs`.
pub fn rank_program() -> String {
    program("muster-test-rank").display().to_string()
}

/// The view in which nodes `n1` to `n<nodes>` and this many ranks are alive, as a rank prints it.
pub fn alive(nodes: usize, ranks: u32) -> String {
    let nodes = (1..=nodes).map(|node| format!("n{node}=Alive"));
    let ranks = (0..ranks).map(|rank| format!("{rank}=Alive"));
    nodes.chain(ranks).collect::<Vec<_>>().join(" ")
}

/// A running rank. It is killed when dropped.
pub struct Rank {
    process: Process,
    /// Lines that were read while the test waited for another one.
    passed: RefCell<VecDeque<String>>,
    name: String,
}

impl Rank {
    /// Starts a rank.
    ///
    /// # Panics
    /// If it cannot be started.
    pub fn start(command: &mut Command, name: &str) -> Self {
        command.stdin(Stdio::piped()).stdout(Stdio::piped());
        Self {
            process: Process::start(command),
            passed: RefCell::default(),
            name: name.to_owned(),
        }
    }

    /// Waits until its agent has accepted it.
    ///
    /// # Panics
    /// If it is refused or ends, or nothing happens before the deadline.
    pub fn attached(self) -> Self {
        self.await_words(&["ATTACHED"]);
        self
    }

    /// Its process.
    pub fn pid(&self) -> u32 {
        self.process.id()
    }

    /// Sends it a command.
    pub fn send(&mut self, command: &str) {
        self.process.send(command);
    }

    /// Waits for a line that `wanted` accepts, and returns it. Lines before it are kept for
    /// [`Rank::take_passed`]; lines that were read before are not checked again.
    ///
    /// # Panics
    /// If none comes before the deadline, or the rank has ended.
    pub fn await_line(&self, mut wanted: impl FnMut(&str) -> bool) -> String {
        let end = Instant::now() + DEADLINE;
        loop {
            match self.process.line_until(end) {
                Ok(line) if wanted(&line) => return line,
                Ok(line) => self.passed.borrow_mut().push_back(line),
                Err(cause) => panic!("{}: {cause}; lines before it: {:?}", self.name, self.passed),
            }
        }
    }

    /// Waits for a line that begins with all of these words.
    ///
    /// # Panics
    /// See [`Rank::await_line`].
    pub fn await_words(&self, words: &[&str]) -> String {
        self.await_line(|line| has_words(line, words))
    }

    /// Waits until there is a line with each of these lists of words, in any order.
    ///
    /// # Panics
    /// See [`Rank::await_line`].
    pub fn await_each(&self, lists: &[&[&str]]) {
        let mut missing = lists.to_vec();
        while !missing.is_empty() {
            let mut found = None;
            let line = self.await_line(|line| {
                found = missing.iter().position(|words| has_words(line, words));
                found.is_some()
            });
            match found {
                Some(index) => drop(missing.swap_remove(index)),
                None => self.passed.borrow_mut().push_back(line),
            }
        }
    }

    /// The lines that were passed over until now.
    pub fn take_passed(&self) -> Vec<String> {
        self.passed.borrow_mut().drain(..).collect()
    }

    /// Those of the lines that were passed over until now that contain one of these words. The others are dropped.
    pub fn take_passed_with(&self, words: &[&str]) -> Vec<String> {
        let has_one = |line: &String| words.iter().any(|word| line.contains(word));
        self.take_passed().into_iter().filter(has_one).collect()
    }

    /// Requests its view until that is `expected`; repeats the request after every event.
    ///
    /// # Panics
    /// If it does not become so before the deadline.
    pub fn await_states(&mut self, expected: &str) {
        let expected = format!("STATES {expected}");
        self.await_view(|view| view == expected);
    }

    /// Requests its view until `wanted` accepts it; repeats the request after every event.
    ///
    /// # Panics
    /// If it does not become so before the deadline.
    pub fn await_view(&mut self, wanted: impl Fn(&str) -> bool) {
        let is_event = |line: &str| line.starts_with("EVENT");
        loop {
            self.send("states");
            let before = self.passed.borrow().len();
            let view = self.await_words(&["STATES"]);
            if wanted(&view) {
                return;
            }
            // Events that were printed while the view was read may be missing in it.
            let overtaken = self
                .passed
                .borrow()
                .range(before..)
                .any(|line| is_event(line));
            self.passed.borrow_mut().push_back(view);
            if !overtaken {
                let news = self.await_line(is_event);
                self.passed.borrow_mut().push_back(news);
            }
        }
    }

    /// Requests its view until that contains this word, also where no event announces it.
    ///
    /// # Panics
    /// If it does not before the deadline.
    pub fn await_in_view(&mut self, word: &str) {
        let view = RefCell::new(String::new());
        let missing = || format!("{word} in {}", view.borrow());
        until(missing, || {
            self.send("states");
            view.replace(self.await_words(&["STATES"]));
            let has_it = view.borrow().split(' ').any(|one| one == word);
            has_it.then_some(())
        });
    }

    /// A counter of its agent.
    ///
    /// # Panics
    /// If there is no counter with this name.
    pub fn counter(&mut self, name: &str) -> u64 {
        self.send(&format!("stats {name}"));
        let answer = self.await_words(&["STATS", name]);
        let number = answer.split(' ').nth(2).expect("a number");
        number.parse().expect("a number")
    }

    /// Polls until a counter of its agent has at least this value.
    ///
    /// # Panics
    /// If it does not become so before the deadline.
    pub fn await_counter(&mut self, name: &str, least: u64) {
        let count = Cell::new(0);
        let stays = || format!("{name} is still {}", count.get());
        until(stays, || {
            count.set(self.counter(name));
            (count.get() >= least).then_some(())
        });
    }

    /// Waits for its end. Returns its exit code.
    ///
    /// # Panics
    /// If it does not end before the deadline.
    pub fn await_end(mut self) -> Option<i32> {
        self.process.end().code()
    }

    /// Kills it and waits for its end.
    pub fn kill(mut self) {
        self.process.kill();
    }
}

/// Whether a line has these words, in this order.
fn has_words(line: &str, words: &[&str]) -> bool {
    let mut parts = line.split(' ');
    words.iter().all(|word| parts.any(|part| part == *word))
}
