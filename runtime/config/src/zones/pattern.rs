//! The pattern over host names: `(x*)(c*)s*n*`.
//!
//! `*` stands for a number, everything else for itself. Each pair of parentheses is a part of the zone's path, the
//! outermost zone first: with this pattern `x1000c2s7n0` is in zone `x1000/c2`.

use muster_zones::{Directory, NodeIndex, ZoneEntry};

use super::{Entries, ZoneSourceError};

/// A part of a pattern.
enum Part {
    Open,
    Close,
    Number,
    Other(char),
}

pub(super) fn entries(text: &str, directory: &Directory) -> Entries {
    let fault = |reason: String| ZoneSourceError::Pattern {
        pattern: text.to_owned(),
        reason,
    };
    let parts = parse(text).map_err(fault)?;
    let entry = |(place, name): (usize, String)| {
        let path = zone_of(&parts, &name).ok_or_else(|| {
            fault(format!(
                "node {name} does not fit it; '*' stands for digits, everything else for itself"
            ))
        })?;
        Ok(ZoneEntry {
            path,
            nodes: vec![NodeIndex(place as u32)],
        })
    };
    directory.names().enumerate().map(entry).collect()
}

fn parse(text: &str) -> Result<Vec<Part>, String> {
    let (mut parts, mut open, mut groups) = (Vec::new(), false, 0);
    for character in text.chars() {
        let part = match character {
            '(' if open => return Err("'(' within '('; close the first one before".to_owned()),
            ')' if !open => return Err("')' without '('; add the '(' or remove it".to_owned()),
            '(' => Part::Open,
            ')' => Part::Close,
            '*' if matches!(parts.last(), Some(Part::Number)) => {
                return Err("two '*' in a row; one stands for a whole number".to_owned());
            }
            '*' => Part::Number,
            character => Part::Other(character),
        };
        match part {
            Part::Open => (open, groups) = (true, groups + 1),
            Part::Close => open = false,
            Part::Number | Part::Other(_) => {}
        }
        parts.push(part);
    }
    match (open, groups) {
        (true, _) => Err("'(' without ')'; add the ')'".to_owned()),
        (_, 0) => {
            Err("no parentheses; put them around what names the zone, as in (r*)n*".to_owned())
        }
        _ => Ok(parts),
    }
}

/// The zone's path of a name; `None` if the name does not fit.
fn zone_of(parts: &[Part], name: &str) -> Option<String> {
    let (mut rest, mut path, mut group) = (name, Vec::new(), name);
    for part in parts {
        match part {
            Part::Open => group = rest,
            Part::Close => path.push(&group[..group.len() - rest.len()]),
            Part::Other(character) => rest = rest.strip_prefix(*character)?,
            Part::Number => {
                let end = rest
                    .find(|c: char| !c.is_ascii_digit())
                    .unwrap_or(rest.len());
                if end == 0 {
                    return None;
                }
                rest = &rest[end..];
            }
        }
    }
    rest.is_empty().then(|| path.join("/"))
}
