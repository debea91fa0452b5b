//! Writes the document as YAML.

use super::super::yaml::Quoted;
use super::{RailsDocument, VERSION, switch_word};
use muster_fabric::{Net, Nid, Subject};
use std::fmt::Write;

impl RailsDocument {
    /// The document as YAML. Rails are grouped by net, in the order in which the nets first appear.
    #[must_use]
    pub fn export(&self) -> String {
        let mut text = String::new();
        self.write(&mut text)
            .expect("writing to a string cannot fail");
        text
    }

    fn write(&self, to: &mut String) -> std::fmt::Result {
        writeln!(to, "version: {VERSION}")?;
        match self.rails.is_empty() {
            true => writeln!(to, "nets: []")?,
            false => writeln!(to, "nets:")?,
        }
        let mut nets: Vec<Net> = Vec::new();
        for rail in &self.rails {
            if !nets.contains(&rail.nid.net) {
                nets.push(rail.nid.net);
            }
        }
        for net in nets {
            writeln!(to, "  - net: {net}\n    rails:")?;
            for rail in self.rails.iter().filter(|rail| rail.nid.net == net) {
                writeln!(to, "      - nid: {}", Quoted(&rail.nid.to_string()))?;
                if !rail.partitions.is_empty() {
                    writeln!(to, "        partitions: {}", list(&rail.partitions))?;
                }
            }
        }
        match self.peers.is_empty() {
            true => writeln!(to, "peers: []")?,
            false => writeln!(to, "peers:")?,
        }
        for peer in &self.peers {
            let nids: Vec<&Nid> = peer.iter().collect();
            writeln!(to, "  - nids: {}", list(&nids))?;
        }
        writeln!(to, "numa_range: {}", self.numa_range)?;
        writeln!(to, "relay: {}", switch_word(self.relay))?;
        let health = &self.health;
        writeln!(to, "health:")?;
        writeln!(to, "  sensitivity: {}", health.sensitivity)?;
        writeln!(to, "  recovery: {}", health.recovery)?;
        writeln!(to, "  shun_below: {}", health.shun_below)?;
        writeln!(to, "  pause_min_us: {}", health.pause_min_us)?;
        writeln!(to, "  pause_max_us: {}", health.pause_max_us)?;
        match self.policy.rules().is_empty() {
            true => writeln!(to, "policy: []")?,
            false => writeln!(to, "policy:")?,
        }
        for rule in self.policy.rules() {
            match &rule.subject {
                Subject::Net(net) => writeln!(to, "  - net: {net}")?,
                Subject::Local(local) => writeln!(to, "  - local: {}", list(local))?,
                Subject::Pairs { local, remote } => {
                    writeln!(to, "  - local: {}", list(local))?;
                    writeln!(to, "    remote: {}", list(remote))?;
                }
            }
            writeln!(to, "    priority: {}", rule.priority)?;
            if let Some(messages) = rule.messages {
                writeln!(to, "    messages: {messages}")?;
            }
        }
        let times = &self.timeouts;
        writeln!(to, "timeouts:")?;
        writeln!(to, "  transport_us: {}", times.transport_us)?;
        writeln!(to, "  retry_us: {}", times.retry_us)?;
        writeln!(to, "  reply_us: {}", times.reply_us)?;
        if let Some(upper_us) = times.upper_us {
            writeln!(to, "  upper_us: {upper_us}")?;
        }
        writeln!(to, "  retries_max: {}", times.retries_max)
    }
}

/// A list in brackets, with quotes where YAML requires them.
fn list<T: ToString>(values: &[T]) -> String {
    let texts: Vec<String> = values
        .iter()
        .map(|value| Quoted(&value.to_string()).to_string())
        .collect();
    format!("[{}]", texts.join(", "))
}
