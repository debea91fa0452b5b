//! Questions to one peer that wait for an answer.

/// The maximum of questions to one peer that wait for an answer.
const GETS_MAX: usize = 16;

/// Questions to one peer that are not answered yet.
#[derive(Debug, Default)]
pub(crate) struct Gets(Vec<Get>);

#[derive(Debug)]
struct Get {
    question: u64,
    /// None: the question is not known to have arrived.
    until_us: Option<u64>,
}

impl Gets {
    pub(crate) fn begin(&mut self, question: u64) {
        self.0.push(Get {
            question,
            until_us: None,
        });
    }

    /// Whether no further question may be sent now.
    pub(crate) fn is_full(&self) -> bool {
        self.0.len() >= GETS_MAX
    }

    /// Notes that a message has arrived. If it is a question, the time for its answer begins.
    pub(crate) fn sent(&mut self, message: u64, until_us: u64) {
        let get = self.0.iter_mut().find(|get| get.question == message);
        if let Some(get) = get {
            get.until_us = Some(until_us);
        }
    }

    /// Stops waiting for an answer to this message, if it is a question.
    pub(crate) fn end(&mut self, message: u64) {
        self.0.retain(|get| get.question != message);
    }

    /// Whether this question waits for an answer.
    pub(crate) fn has(&self, question: u64) -> bool {
        self.0.iter().any(|get| get.question == question)
    }

    /// Removes and returns the questions whose time has passed.
    pub(crate) fn expired(&mut self, now_us: u64) -> Vec<u64> {
        let is_expired = |get: &mut Get| get.until_us.is_some_and(|until_us| until_us <= now_us);
        self.0
            .extract_if(.., is_expired)
            .map(|get| get.question)
            .collect()
    }

    /// When the time of the first question passes.
    pub(crate) fn timeout(&self) -> Option<u64> {
        self.0.iter().filter_map(|get| get.until_us).min()
    }
}
