//! What an engine has done, in numbers with names.
//!
//! Counters only grow. They explain; nothing is decided by them.

use crate::reject::Reject;

macro_rules! counters {
    ($($(#[doc = $doc:literal])+ $name:ident,)+) => {
        /// Numbers of one engine since its start.
        #[derive(Clone, Debug, Default, PartialEq, Eq)]
        pub struct Counters {
            $($(#[doc = $doc])+ pub $name: u64,)+
            /// Inputs that were refused, by [`Reject`] number.
            pub rejected: [u64; Reject::COUNT],
        }

        impl Counters {
            /// Every counter with its name, the refusals as `rejected_REASON`.
            pub fn each(&self, mut visit: impl FnMut(&str, u64)) {
                $(visit(stringify!($name), self.$name);)+
                for reject in Reject::ALL {
                    visit(
                        &format!("rejected_{}", reject.name()),
                        self.rejected[reject as usize],
                    );
                }
            }
        }
    };
}

counters! {
    /// Datagrams handed in.
    datagrams_received,
    /// Bytes of them.
    bytes_received,
    /// Frames written.
    frames_sent,
    /// Bytes of them, once each (a copy per rail is the fabric's matter).
    bytes_sent,
    /// Beats among them.
    beats_sent,
    /// Beats left out because the application had just sent something there.
    beats_left_out,
    /// Times a message of the application stood for a beat.
    beats_stood_in,
    /// Beats written ahead, for messages of the application to carry.
    beats_offered,
    /// Beats that came in messages of the application.
    beats_carried,
    /// News frames sent.
    news_sent,
    /// News frames whose acknowledgement did not come in time; their facts were sent again.
    news_resent,
    /// Facts in news frames that arrived.
    news_facts,
    /// Facts among them that brought nothing new.
    news_duplicates,
    /// Frames with hints sent.
    hints_sent,
    /// Hints at something that was not held, and was asked for.
    hints_followed,
    /// Base views given to a link.
    base_views,
    /// Base views among them because digests went on differing.
    repairs,
    /// Direct probes of a silent member.
    probes_sent,
    /// Requests to helpers to probe a silent member.
    indirect_probes_sent,
    /// Own reports against a member.
    reports,
    /// Times own lateness stopped the clock of others.
    own_late,
    /// Times this member heard nobody and doubted itself first.
    self_doubts,
    /// Times this member refuted a report against itself.
    refutations,
    /// Times this member learnt that it was declared failed.
    outcasts,
    /// Failure claims of failed members that answered no recent frame, and were answered with a failure
    /// claim.
    failure_claims_requeried,
    /// Restarts of a failed member that a new member told of, and that were checked with a join request.
    restarts_queried,
    /// Discovery requests sent.
    join_requests_sent,
    /// Times this member found itself on the smaller side of a split.
    minorities,
    /// Frames not sent because the outbox was full, or too many waited that go to no member.
    outbox_dropped,
    /// Acknowledgements not sent because too many waited for one peer; it repeats its letter.
    acks_dropped,
    /// Requests that made no link, because there are too many.
    links_refused,
    /// Suspects not looked after, or not for this asker, because there are too many.
    indirect_probes_refused,
    /// Members with other parameters that were forgotten; they are told anew.
    refused_forgotten,
    /// Events not told because nobody drained them (the oldest goes).
    events_dropped,
    /// Facts not taken because a table was full.
    facts_refused,
    /// Claims of an incarnation that no clock gives.
    incarnations_refused,
    /// Removed members forgotten because the history was full.
    history_pruned,
    /// Frames that asked for attributes.
    attribute_requests_sent,
    /// Frames with attributes.
    attribute_replies_sent,
    /// Requests for attributes that were repeated: no answer in time.
    attribute_requests_repeated,
    /// Requests for attributes that went to all neighbours: who was asked has gone, or has none.
    attribute_requests_pushed,
    /// Sections of replies that held nothing new.
    attribute_duplicates,
    /// Requests of others that were dropped: too many ask at once.
    attribute_requests_dropped,
    /// Maps not taken, or not all of them, for want of room.
    attributes_refused,
    /// Pings of age gossip sent alone.
    pings_sent,
    /// Gossips that rode on messages of the application, so that no ping went.
    gossips_piggybacked,
    /// Gossips written ahead, for messages of the application to carry.
    gossips_offered,
    /// Gossips that came in messages of the application.
    gossips_carried,
    /// Replies of age gossip sent, the empty ones included.
    replies_sent,
    /// Ages in them.
    reply_entries,
    /// Gossips whose clock was too far behind.
    gossips_obsolete,
    /// Gossips in parts of which some never came, or not in time.
    gossips_torn,
    /// Cycles of age gossip that this member slept through.
    cycles_missed,
}

impl Counters {
    /// How many inputs were refused for this reason.
    #[must_use]
    pub fn rejected(&self, reason: Reject) -> u64 {
        self.rejected[reason as usize]
    }
}
