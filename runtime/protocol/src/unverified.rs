//! The unverified sender of a frame: what the frame says of its sender, without any proof.
//!
//! For diagnostics only, such as why two members do not meet. No engine decides anything by it.

use crate::frame;
use crate::identity::MemberId;
use crate::wire::Message;

/// The sender that a frame names.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct UnverifiedSender<'a> {
    /// Its id.
    pub sender: MemberId,
    /// Its name and address, in frames that introduce their sender.
    pub introduction: Option<(&'a str, &'a [u8])>,
}

/// The sender that `bytes` name; `None` if they are no frame of this wire version.
#[must_use]
pub fn unverified_sender(bytes: &[u8]) -> Option<UnverifiedSender<'_>> {
    let (kind, sender, body) = frame::unproven(bytes)?;
    let introduction = match kind {
        // Reading these kinds allocates nothing.
        frame::Kind::Join | frame::Kind::Link | frame::Kind::LinkReply => {
            match Message::read(kind, body) {
                Ok(Message::Join { own, .. } | Message::Link { own, .. }) => {
                    (own.id == sender).then_some((own.name, own.address))
                }
                _ => None,
            }
        }
        _ => None,
    };
    Some(UnverifiedSender {
        sender,
        introduction,
    })
}
