//! Describes frames as text, for traces. The tag is not checked.

use crate::frame::{self, HEADER_SIZE, TAG_SIZE};
use crate::identity::{MemberId, Version};
use crate::wire::{Fact, Message, NodeFact};

/// Most facts in a description.
const FACTS_MAX: usize = 6;

/// The description of a frame, and the members it is about, without its sender. `None` if it cannot be
/// parsed.
#[must_use]
pub fn frame(bytes: &[u8]) -> Option<(String, Vec<MemberId>)> {
    let header = frame::peek(bytes)?;
    let body = bytes.get(HEADER_SIZE..bytes.len().checked_sub(TAG_SIZE)?)?;
    let message = Message::read(header, body).ok()?;
    let mut about = Vec::new();
    let text = match message {
        Message::Beat { late_ms, .. } => format!("beat, late by {late_ms} ms"),
        Message::Link {
            own, asked, roles, ..
        } => {
            let word = if asked.is_some() {
                "link reply"
            } else {
                "link request"
            };
            format!("{word}, roles {roles}; from {}", node(&own, &mut about))
        }
        Message::Probe => "probe".to_owned(),
        Message::ProbeReply => "probe reply".to_owned(),
        Message::IndirectProbe { suspect, version } => {
            about.push(suspect);
            format!("indirect probe of {suspect:?} {}", short(version))
        }
        Message::IndirectProbeReply {
            suspect,
            version,
            alive,
            age_us,
        } => {
            about.push(suspect);
            let word = if alive { "alive" } else { "silent" };
            let version = short(version);
            format!("indirect probe reply: {suspect:?} {version} is {word}, heard {age_us} us ago")
        }
        Message::News { facts, .. } => format!("news: {}", all(&facts, &mut about)),
        Message::Ack { .. } => "acknowledgement".to_owned(),
        Message::Join {
            own, failure_claim, ..
        } => {
            let own = node(&own, &mut about);
            match failure_claim {
                Some(failure_claim) => {
                    let about = node(&failure_claim.about, &mut about);
                    format!("join from {own}; the receiver is held {about}")
                }
                None => format!("join from {own}"),
            }
        }
        Message::View { facts, .. } => format!("view: {}", all(&facts, &mut about)),
        Message::FailureClaim {
            failure_claim,
            answers,
        } => {
            let about = node(&failure_claim.about, &mut about);
            let (incarnation, frame) = (answers.incarnation, answers.sequence);
            format!(
                "failure claim: the receiver is held {about}; answers frame {frame} of v{incarnation}"
            )
        }
        Message::Verify { own, .. } => format!("verify from {}", node(&own, &mut about)),
        Message::Refusal { own, .. } => {
            format!("refusal from {}: parameters differ", node(&own, &mut about))
        }
        Message::NameConflict { own, age_us, .. } => {
            let own = node(&own, &mut about);
            format!("name conflict: {own} has held the name for {age_us} us")
        }
        Message::Hint { hints } => {
            about.extend(hints.iter().filter_map(|hint| hint.subject.member()));
            let wanted = hints.iter().filter(|hint| hint.wanted).count();
            format!("hints at {} facts, requests {wanted}", hints.len() - wanted)
        }
        Message::Request { asks } => format!("requests {} maps", asks.len()),
        Message::Reply { sections, .. } => format!("parts of {} maps", sections.len()),
    };
    Some((text, about))
}

fn all(facts: &[Fact<'_>], about: &mut Vec<MemberId>) -> String {
    let words: Vec<String> = facts
        .iter()
        .map(|fact| match fact {
            Fact::Node(fact) => node(fact, about),
            Fact::Rank {
                node: id,
                incarnation,
                fact,
            } => {
                about.push(*id);
                format!(
                    "rank {} of {id:?} ({incarnation}) {:?}#{}",
                    fact.rank, fact.state, fact.sequence
                )
            }
            Fact::Suspicion {
                reporter,
                suspect,
                version,
            } => {
                about.push(*suspect);
                format!("{reporter:?} reports {suspect:?} {}", short(*version))
            }
            Fact::Map {
                node: id, version, ..
            } => {
                about.push(*id);
                format!("attributes of {id:?} up to {version}")
            }
            Fact::Record(entry) => format!("entry of {:?}", entry.key()),
        })
        .collect();
    let more = words.len().saturating_sub(FACTS_MAX);
    let mut text = words[..words.len().min(FACTS_MAX)].join(", ");
    if more > 0 {
        text.push_str(&format!(" and {more} more"));
    }
    text
}

fn node(fact: &NodeFact<'_>, about: &mut Vec<MemberId>) -> String {
    about.push(fact.id);
    let version = short(fact.version);
    match fact.reporters.len() {
        0 => format!("{} {:?} {version}", fact.name, fact.state),
        some => format!("{} {:?} {version} by {some}", fact.name, fact.state),
    }
}

fn short(version: Version) -> String {
    format!("v{}.{}", version.incarnation, version.minor)
}
