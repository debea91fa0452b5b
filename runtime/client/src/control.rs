//! What an administrator may ask and change, from within a process of the job: the agent's side door.
//!
//! Requests are the lines that `muster` sends, answers are JSON as the agent gives it: nothing of it is
//! understood here, so a library need not know what its agent can do.

use std::io::ErrorKind;
use std::time::Duration;

use super::{Client, Error};
use muster_ipc::control_socket::{MARK, PROTOCOL, SOCKET};
use muster_sys::stream::{self, Trust};

/// How long the agent may take to answer.
const ANSWER_DEADLINE: Duration = Duration::from_secs(5);
/// Longest answer, in bytes.
const ANSWER_MAX: usize = 64 << 20;
/// The key of a text for people.
const EXPLANATION: &str = "\"explanation\":\"";
/// How an answer begins that refuses.
const REFUSAL: &str = "{\"error\":\"";

impl Client {
    /// Asks the agent of this node for something, or has it change something: one line as `rails`,
    /// `peers`, `policy`, `stats` or `rails add eth1@udp1`, or the line `import` with a document behind
    /// it. The answer is JSON.
    ///
    /// # Errors
    /// [`Error::Declined`] with the agent's reason; nothing was changed. [`Error::Unanswered`],
    /// [`Error::Deadline`], [`Error::System`]: a change may have been made.
    pub fn control(&self, request: &str) -> Result<String, Error> {
        self.table()?;
        let path = self.inner.setting.place.directory().join(SOCKET);
        let said = format!("{MARK}{PROTOCOL} {request}\n");
        let asked = stream::ask(
            &path,
            said.as_bytes(),
            ANSWER_MAX,
            ANSWER_DEADLINE,
            Trust::Own,
        );
        let answer = asked.map_err(|cause| match cause.kind() {
            ErrorKind::NotFound
            | ErrorKind::ConnectionRefused
            | ErrorKind::ConnectionReset
            | ErrorKind::BrokenPipe => Error::Unanswered(format!("{}: {cause}", path.display())),
            ErrorKind::TimedOut => Error::Deadline {
                socket: path.clone(),
                waited_ms: ANSWER_DEADLINE.as_millis() as u64,
                last: format!("{:?} was asked for", request.lines().next().unwrap_or("")),
            },
            _ => Error::System {
                what: "ask the agent at its control socket",
                cause,
            },
        })?;
        let answer = String::from_utf8_lossy(&answer).into_owned();
        match answer.strip_prefix(REFUSAL) {
            Some(reason) => Err(Error::Declined(plain(reason))),
            None if !answer.ends_with('\n') => Err(Error::Unanswered(
                "it went away before the end of it".into(),
            )),
            None => Ok(answer),
        }
    }
}

impl Client {
    /// What is known about the node of this index, and from whom: the text of `muster why`, a line for
    /// each observation.
    ///
    /// # Errors
    /// [`Error::NoSuchNode`]; others as [`Client::control`].
    pub fn why(&self, node: u32) -> Result<String, Error> {
        let name = self
            .node_name(node)?
            .ok_or_else(|| self.no_such_node(node))?;
        let answer = self.control(&format!("why {name}"))?;
        // Quotes inside of texts are escaped, so this is found as a key only.
        let story = answer
            .split_once(EXPLANATION)
            .map_or("", |(_, story)| story);
        Ok(plain(story))
    }
}

/// The text of a JSON string, up to the quote that ends it.
fn plain(quoted: &str) -> String {
    let mut text = String::new();
    let mut letters = quoted.chars();
    while let Some(letter) = letters.next().filter(|letter| *letter != '"') {
        if letter != '\\' {
            text.push(letter);
            continue;
        }
        match letters.next() {
            Some('n') => text.push('\n'),
            Some('t') => text.push('\t'),
            Some('u') => {
                let digits: String = letters.by_ref().take(4).collect();
                let code = u32::from_str_radix(&digits, 16).ok();
                text.push(code.and_then(char::from_u32).unwrap_or('?'));
            }
            Some(other) => text.push(other),
            None => {}
        }
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_refusal_is_read_as_it_was_meant() {
        assert_eq!(
            plain(r#"two rules are about \"net udp0\"; see \u0041\n\\"}"#),
            "two rules are about \"net udp0\"; see A\n\\"
        );
        assert_eq!(plain("cut"), "cut");
    }
}
