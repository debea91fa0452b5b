//! Counters of an engine. They only grow, and nothing is decided by them.

use crate::reject::Reject;

macro_rules! counters {
    ($($(#[doc = $doc:literal])+ $name:ident,)+) => {
        /// Counters of one engine since its start.
        #[derive(Clone, Debug, Default, PartialEq, Eq)]
        pub struct Counters {
            $($(#[doc = $doc])+ pub $name: u64,)+
            /// Rejected inputs, by [`Reject`] number.
            pub rejected: [u64; Reject::COUNT],
        }

        impl Counters {
            /// Calls `visit` for every counter with its name; rejections are named `rejected_REASON`.
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
    /// Datagrams received.
    datagrams_received,
    /// Bytes received.
    bytes_received,
    /// Frames written.
    frames_sent,
    /// Bytes sent, counted once for all rails.
    bytes_sent,
    /// Beats sent.
    beats_sent,
    /// Beats left out because the application had just sent a message to the peer.
    beats_left_out,
    /// Messages of the application that replaced a beat of the peer.
    beats_stood_in,
    /// Beats written ahead for messages of the application.
    beats_offered,
    /// Beats received in messages of the application.
    beats_carried,
    /// News frames sent.
    news_sent,
    /// News frames that were not acknowledged in time; their facts were sent again.
    news_resent,
    /// Facts received in news frames.
    news_facts,
    /// Facts among them that were known.
    news_duplicates,
    /// Frames with hints sent.
    hints_sent,
    /// Hints at unknown facts, which were requested.
    hints_followed,
    /// Base views sent over a link.
    base_views,
    /// Base views among them that repaired a lasting difference of digests.
    repairs,
    /// Probes sent to silent members.
    probes_sent,
    /// Requests to other members to probe a silent member.
    indirect_probes_sent,
    /// Reports made by this member.
    reports,
    /// Times that this member overslept.
    own_late,
    /// Times that this member heard no other member, and doubted itself.
    self_doubts,
    /// Reports that this member refuted.
    refutations,
    /// Times that this member learned that it was declared failed.
    outcasts,
    /// Failure claims of failed members that answered no recent frame, and were answered with a failure
    /// claim.
    failure_claims_requeried,
    /// Restarts of a failed member that a new member told of, and that were checked with a join request.
    restarts_queried,
    /// Join requests sent.
    join_requests_sent,
    /// Times that this member was on the smaller side of a split.
    minorities,
    /// Frames dropped because the outbox was full, or all address slots were in use.
    outbox_dropped,
    /// Acknowledgements dropped because there were too many for one peer, which retransmits its news.
    acks_dropped,
    /// Link requests declined because there are too many links.
    links_refused,
    /// Suspects not probed, or not for this requester, because there are too many.
    indirect_probes_refused,
    /// Members with different parameters that were dropped from the list; they are reported again.
    refused_forgotten,
    /// Events dropped because the host did not drain them (the oldest first).
    events_dropped,
    /// Facts not taken because a table was full.
    facts_refused,
    /// Frames with an implausible incarnation.
    incarnations_refused,
    /// Removed members dropped because the history was full.
    history_pruned,
    /// Requests for attributes sent.
    attribute_requests_sent,
    /// Replies with attributes sent.
    attribute_replies_sent,
    /// Requests for attributes repeated for lack of a reply.
    attribute_requests_repeated,
    /// Requests for attributes sent to all neighbours: the member asked is gone, or has none.
    attribute_requests_pushed,
    /// Sections of replies without new entries.
    attribute_duplicates,
    /// Requests of other members dropped because there were too many.
    attribute_requests_dropped,
    /// Maps not taken, or only in part, for lack of room.
    attributes_refused,
    /// Pings of age gossip sent as datagrams.
    pings_sent,
    /// Pings of age gossip carried by messages of the application, instead of a datagram.
    gossips_piggybacked,
    /// Pings written ahead for messages of the application.
    gossips_offered,
    /// Pings received in messages of the application.
    gossips_carried,
    /// Replies of age gossip sent, including empty ones.
    replies_sent,
    /// Ages in these replies.
    reply_entries,
    /// Gossip rejected because its clock was too far behind.
    gossips_obsolete,
    /// Gossip dropped because some of its parts were lost or late.
    gossips_torn,
    /// Cycles of age gossip that this member overslept.
    cycles_missed,
}

impl Counters {
    /// The number of inputs rejected for this reason.
    #[must_use]
    pub fn rejected(&self, reason: Reject) -> u64 {
        self.rejected[reason as usize]
    }
}
