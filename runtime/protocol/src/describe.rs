//! A frame in words, for traces: what it says and about whom.
//!
//! Nothing is proven here and nothing decided: the tag is not looked at.

use crate::frame::{self, HEADER_SIZE, TAG_SIZE};
use crate::identity::{MemberId, Version};
use crate::wire::{Fact, Message, NodeFact};

/// Most facts written out.
const FACTS_MAX: usize = 6;

/// What a frame says, and the members it is about (its sender apart).
/// `None` if it cannot be read.
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
            format!("{word}, roles {roles}; I am {}", node(&own, &mut about))
        }
        Message::Probe => "are you alive?".to_owned(),
        Message::ProbeReply => "I am alive".to_owned(),
        Message::IndirectProbe { suspect, version } => {
            about.push(suspect);
            format!("is {suspect:?} {} alive?", short(version))
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
            format!("{suspect:?} {version} is {word}, heard {age_us} us ago")
        }
        Message::News { facts, .. } => format!("news: {}", all(&facts, &mut about)),
        Message::Ack { .. } => "acknowledged".to_owned(),
        Message::Join {
            own, failure_claim, ..
        } => {
            let own = node(&own, &mut about);
            match failure_claim {
                Some(failure_claim) => {
                    let about = node(&failure_claim.about, &mut about);
                    format!("knock: I am {own}; you are held {about}")
                }
                None => format!("knock: I am {own}"),
            }
        }
        Message::View { facts, .. } => format!("view: {}", all(&facts, &mut about)),
        Message::FailureClaim {
            failure_claim,
            answers,
        } => {
            let about = node(&failure_claim.about, &mut about);
            let (life, frame) = (answers.incarnation, answers.sequence);
            format!("you are held {about}; answers frame {frame} of v{life}")
        }
        Message::Verify { own, .. } => format!("say it to me: I am {}", node(&own, &mut about)),
        Message::Refusal { own, .. } => {
            format!(
                "refused: I am {}, with other parameters",
                node(&own, &mut about)
            )
        }
        Message::NameConflict { own, age_us, .. } => {
            let own = node(&own, &mut about);
            format!("name conflict, held for {age_us} us, sent by {own}")
        }
        Message::Hint { hints } => {
            about.extend(hints.iter().map(|hint| hint.subject.member()));
            let wanted = hints.iter().filter(|hint| hint.wanted).count();
            format!("hints at {} facts, asks for {wanted}", hints.len() - wanted)
        }
        Message::Request { asks } => format!("asks for {} maps", asks.len()),
        Message::Reply { sections, .. } => format!("gives of {} maps", sections.len()),
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
