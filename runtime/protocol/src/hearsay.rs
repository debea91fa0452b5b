//! What a frame says of its sender, and nobody has proven.
//!
//! Intuition: a letter whose seal is another house's is not read, and yet the address on its back may tell
//! who it is that writes in vain. It is for people who ask why two do not meet, and for nothing else: no
//! engine looks at it.

use crate::frame;
use crate::identity::MemberId;
use crate::wire::Message;

/// Who a frame says that it is from.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Hearsay<'a> {
    /// Its id.
    pub sender: MemberId,
    /// Its name and its address, in the kinds of frame with which somebody introduces himself.
    pub introduction: Option<(&'a str, &'a [u8])>,
}

/// What these bytes say of their sender; none if they are no frame of this release.
#[must_use]
pub fn hearsay(bytes: &[u8]) -> Option<Hearsay<'_>> {
    let (kind, sender, body) = frame::unproven(bytes)?;
    let introduction = match kind {
        // These allocate nothing.
        frame::Kind::Discover | frame::Kind::Link | frame::Kind::LinkReply => {
            match Message::read(kind, body) {
                Ok(Message::Discover { own, .. } | Message::Link { own, .. }) => {
                    (own.id == sender).then_some((own.name, own.address))
                }
                _ => None,
            }
        }
        _ => None,
    };
    Some(Hearsay {
        sender,
        introduction,
    })
}
