//! A member's name, group and address, one after the other in one piece of memory.
//!
//! Everybody keeps these of everybody: three pieces would take more for the pieces than for the
//! letters in them.

use crate::age::Participant;
use crate::config::Config;
use crate::wire::NodeFact;

#[derive(Clone, Debug)]
pub(crate) struct Label {
    text: Box<[u8]>,
    name_size: u8,
    group_size: u8,
}

impl Label {
    /// The bounds of names and groups are far below what is cut off here.
    fn new(name: &str, group: &str, address: &[u8]) -> Self {
        let cut = |text: &str| text.len().min(usize::from(u8::MAX)) as u8;
        let (name_size, group_size) = (cut(name), cut(group));
        let (name, group) = (name.as_bytes(), group.as_bytes());
        let parts = [
            &name[..name_size.into()],
            &group[..group_size.into()],
            address,
        ];
        Self {
            text: parts.concat().into(),
            name_size,
            group_size,
        }
    }

    /// As a record on its way has it.
    pub(crate) fn of(fact: &NodeFact<'_>) -> Self {
        Self::new(fact.name, fact.group, fact.address)
    }

    /// Of a participant of age gossip.
    pub(crate) fn of_participant(participant: &Participant) -> Self {
        let Participant {
            name,
            address,
            group,
            ..
        } = participant;
        Self::new(name, group, address.as_bytes())
    }

    /// Our own.
    pub(crate) fn own(config: &Config) -> Self {
        Self::new(&config.name, &config.group, &config.address)
    }

    pub(crate) fn name(&self) -> &str {
        self.word(0, self.name_size.into())
    }

    pub(crate) fn group(&self) -> &str {
        let start = usize::from(self.name_size);
        self.word(start, start + usize::from(self.group_size))
    }

    pub(crate) fn address(&self) -> &[u8] {
        let start = usize::from(self.name_size) + usize::from(self.group_size);
        &self.text[start..]
    }

    fn word(&self, start: usize, end: usize) -> &str {
        core::str::from_utf8(&self.text[start..end]).unwrap_or_default()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_put_together_comes_apart() {
        for (name, group, address) in [
            ("n", "", &b"a"[..]),
            ("node17", "rack3", b"10.0.0.1@tcp0"),
            ("", "", &[0xff; 255]),
        ] {
            let label = Label::new(name, group, address);
            assert_eq!(label.name(), name);
            assert_eq!(label.group(), group);
            assert_eq!(label.address(), address);
        }
    }
}
