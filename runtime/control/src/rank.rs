//! The state of a rank in words: in events, and in the answer to `why`.

use super::member::member;
use super::words::{rank_word, state_word};
use muster_protocol::{Engine, Instant, MemberId, RankFact, RankState as State};
use muster_shm::Cause;
use serde_json::{Value, json};

/// In the code of a rank's detail: the argument is an exit code with the opposite sign.
pub const MINUS: u8 = 0x80;

/// Writes what a node states about a rank.
pub fn tell_rank(line: &mut Value, fact: &RankFact) {
    line["rank"] = fact.rank.into();
    line["state"] = rank_word(fact.state).into();
    let argument = i32::from(fact.detail.argument);
    let is_code = fact.detail.code & MINUS != 0;
    match Cause::from_number(u16::from(fact.detail.code & !MINUS)) {
        Some(cause @ (Cause::KernelFutex | Cause::Pidfd | Cause::CoreDump | Cause::Told))
            if fact.state != State::Left =>
        {
            line["cause"] = kernel_word(cause).into();
            let key = if is_code { "exit_code" } else { "signal" };
            if argument > 0 {
                line[key] = argument.into();
            }
        }
        Some(cause) => {
            line["cause"] = kernel_word(cause).into();
            if fact.state == State::Left {
                line["exit_code"] = if is_code { -argument } else { argument }.into();
            }
        }
        None => {}
    }
}

/// How the end or the halt of a rank is known.
fn kernel_word(cause: Cause) -> &'static str {
    match cause {
        Cause::KernelFutex => "kernel futex",
        Cause::Pidfd => "end of its process",
        Cause::CoreDump => "core dump",
        Cause::Stopped => "stopped",
        Cause::Stuck => "stuck in the kernel",
        Cause::NoTick => "no tick",
        Cause::Announced => "announced",
        Cause::Told => "told by the launcher",
        Cause::Joined => "joined",
        _ => "unspecified",
    }
}

/// The rank of this number: on which node, in which state, and how that is known. None if no node states it.
pub(super) fn find(engine: &Engine, number: u32, now: Instant) -> Option<(MemberId, Value)> {
    let mut found: Option<(MemberId, RankFact, bool)> = None;
    for view in engine.members() {
        let fact = view.ranks().find(|fact| fact.rank == number).copied();
        let Some(fact) = fact else { continue };
        let is_there = matches!(fact.state, State::Alive | State::Hung) && view.state().in_view();
        // One that ended on another node before is another process.
        if found.is_none() || is_there {
            found = Some((view.id(), fact, is_there));
        }
    }
    let (id, fact, is_there) = found?;
    let view = engine.member(id)?;
    let mut value = member(engine, &view, now);
    let mut rank = json!({ "rank": fact.rank, "node": view.name() });
    tell_rank(&mut rank, &fact);
    if !is_there && matches!(fact.state, State::Alive | State::Hung) {
        rank["state"] = rank_word(State::Failed).into();
        rank["cause"] = format!("{} is {}", view.name(), state_word(view.state())).into();
    }
    value["rank"] = rank;
    Some((id, value))
}
