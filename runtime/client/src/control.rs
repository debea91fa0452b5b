//! Requests of administrators from within a process of the job, at the agent's control socket.
//!
//! Requests are the lines that `muster` sends; answers are JSON, unchanged from the agent. The library does not parse
//! them, so it need not know what its agent supports.

use std::io::ErrorKind;
use std::time::Duration;

use super::{Client, Error};
use muster_ipc::control_socket::{MARK, PROTOCOL, SOCKET};
use muster_sys::stream::{self, Trust};

/// How long the agent may take to answer.
const ANSWER_DEADLINE: Duration = Duration::from_secs(5);
/// Longest answer, in bytes.
const ANSWER_MAX: usize = 64 << 20;
/// The key of a text for people, as it is in the answer.
const EXPLANATION: &str = "\"explanation\":\"";
/// Prefix of an answer that refuses.
const REFUSAL: &str = "{\"error\":\"";

impl Client {
    /// Sends a request to the agent of this node, which returns information or changes something: one line such as
    /// `rails`, `peers`, `policy`, `stats` or `rails add eth1@udp1`, or the line `import` followed by a document. The
    /// answer is JSON.
    ///
    /// # Errors
    /// [`Error::Declined`] with the agent's reason; nothing was changed. [`Error::Unanswered`],
    /// [`Error::Deadline`], [`Error::System`]: a change may have been made.
    pub fn control(&self, request: &str) -> Result<String, Error> {
        self.table()?;
        let path = self.inner.setting.agent_directory.directory().join(SOCKET);
        let line = format!("{MARK}{PROTOCOL} {request}\n");
        let received = stream::ask(
            &path,
            line.as_bytes(),
            ANSWER_MAX,
            ANSWER_DEADLINE,
            Trust::Own,
        );
        let answer = received.map_err(|cause| match cause.kind() {
            ErrorKind::NotFound
            | ErrorKind::ConnectionRefused
            | ErrorKind::ConnectionReset
            | ErrorKind::BrokenPipe => Error::Unanswered(format!("{}: {cause}", path.display())),
            ErrorKind::TimedOut => Error::Deadline {
                socket: path.clone(),
                waited_ms: ANSWER_DEADLINE.as_millis() as u64,
                last: format!(
                    "waited for the answer to {:?}",
                    request.lines().next().unwrap_or("")
                ),
            },
            _ => Error::System {
                what: "send a request to the agent's control socket",
                cause,
            },
        })?;
        let answer = String::from_utf8_lossy(&answer).into_owned();
        match answer.strip_prefix(REFUSAL) {
            Some(reason) => Err(Error::Declined(unescaped(reason))),
            None if !answer.ends_with('\n') => Err(Error::Unanswered(
                "the connection closed before the end of the answer".into(),
            )),
            None => Ok(answer),
        }
    }
}

impl Client {
    /// What is known about the node of this index, and which members observed it: the text of `muster why`, one line
    /// per observation.
    ///
    /// # Errors
    /// [`Error::NoSuchNode`]; others as [`Client::control`].
    pub fn why(&self, node: u32) -> Result<String, Error> {
        let name = self
            .node_name(node)?
            .ok_or_else(|| self.no_such_node(node))?;
        let answer = self.control(&format!("why {name}"))?;
        // Quotes inside of texts are escaped, so this matches only a key.
        let explanation = answer
            .split_once(EXPLANATION)
            .map_or("", |(_, explanation)| explanation);
        Ok(unescaped(explanation))
    }
}

/// Decodes a JSON string, up to the quote that ends it.
fn unescaped(quoted: &str) -> String {
    let mut text = String::new();
    let mut characters = quoted.chars();
    while let Some(character) = characters.next().filter(|character| *character != '"') {
        if character != '\\' {
            text.push(character);
            continue;
        }
        match characters.next() {
            Some('n') => text.push('\n'),
            Some('t') => text.push('\t'),
            Some('u') => {
                let digits: String = characters.by_ref().take(4).collect();
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
    fn escapes_in_a_refusal_are_decoded() {
        assert_eq!(
            unescaped(r#"two rules are about \"net udp0\"; see \u0041\n\\"}"#),
            "two rules are about \"net udp0\"; see A\n\\"
        );
        assert_eq!(unescaped("cut"), "cut");
    }
}
