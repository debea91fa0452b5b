//! Time-outs of messages, each longer than the one before.
//!
//! News that the provider does not send in time, or a fragment of a bulk message without an acknowledgement, is sent
//! again. The other time-outs are those of bulk messages. After a while the sender gives up. The receiver keeps the
//! beginning of a message for longer than its sender tries. The host waits longer than that before it acts. In
//! another order one layer would act on a loss that the layer below is still repairing, so another order is refused.

/// The time-outs of messages, in microseconds, each shorter than the next.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Timeouts {
    /// Transport: after this time, news that the provider has not sent and fragments of bulk messages without an
    /// acknowledgement are sent by another path. The time doubles with each retry.
    pub transport_us: u64,
    /// Retry: after this time without any progress, the sender gives up the message.
    pub retry_us: u64,
    /// Reply: after this time without another fragment, the receiver drops an incomplete message.
    pub reply_us: u64,
    /// The time that the host waits for an answer; none if it waits for ever. The fabric itself does not use it: it
    /// is given so that the other time-outs are refused if they are not shorter.
    pub upper_us: Option<u64>,
    /// The maximum number of retries without progress after all paths were tried, at least 1. The message ends with
    /// this or the retry time-out, whichever comes first.
    pub retries_max: u32,
}

impl Default for Timeouts {
    fn default() -> Timeouts {
        Timeouts {
            transport_us: 100_000,
            retry_us: 7_000_000,
            reply_us: 10_000_000,
            upper_us: None,
            retries_max: 5,
        }
    }
}

impl Timeouts {
    /// When a message is sent by another path that is sent now, after so many others.
    pub(crate) fn again_us(&self, now_us: u64, tries: u32) -> u64 {
        let us = self.transport_us.saturating_mul(1 << tries.min(32));
        // `u64::MAX` means that it was sent again.
        now_us.saturating_add(us).min(u64::MAX - 1)
    }

    /// The fault in these numbers with the remedy; none if they are valid.
    #[must_use]
    pub fn fault(&self) -> Option<String> {
        if self.retries_max == 0 {
            return Some(
                "0 retries would give up a message after one loss; give 1 or more".to_owned(),
            );
        }
        let order = [
            ("transport", Some(self.transport_us)),
            ("retry", Some(self.retry_us)),
            ("reply", Some(self.reply_us)),
            ("upper", self.upper_us),
        ];
        if self.transport_us == 0 {
            return Some("the transport time-out is 0 us; give 1 or more".to_owned());
        }
        order.windows(2).find_map(|pair| {
            let [(shorter, less), (longer, more)] = pair else {
                return None;
            };
            let (less, more) = ((*less)?, (*more)?);
            (less >= more).then(|| {
                format!(
                    "the {shorter} time-out, {less} us, is not shorter than the {longer} time-out, \
                     {more} us; the order is transport < retry < reply < upper: lower the one or \
                     raise the other"
                )
            })
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    /// RS-05.
    #[test]
    fn the_first_pair_out_of_order_is_named_with_both_values_and_the_remedy() {
        let timeouts = Timeouts {
            retry_us: 20_000_000,
            ..Timeouts::default()
        };
        assert_eq!(
            timeouts.fault().unwrap(),
            "the retry time-out, 20000000 us, is not shorter than the reply time-out, 10000000 us; \
             the order is transport < retry < reply < upper: lower the one or raise the other"
        );
        let upper = Timeouts {
            upper_us: Some(10_000_000),
            ..Timeouts::default()
        };
        assert!(
            upper
                .fault()
                .unwrap()
                .contains("the upper time-out, 10000000 us")
        );
    }

    proptest! {
        #[test]
        fn exactly_the_ordered_timeouts_are_valid(
            transport_us in 0..5u64, retry_us in 0..5u64, reply_us in 0..5u64,
            upper_us in proptest::option::of(0..5u64), retries_max in 0..3u32,
        ) {
            let ordered = transport_us < retry_us && retry_us < reply_us;
            let below_upper = upper_us.is_none_or(|upper_us| reply_us < upper_us);
            let good = ordered && below_upper && transport_us > 0 && retries_max > 0;
            let timeouts = Timeouts { transport_us, retry_us, reply_us, upper_us, retries_max };
            prop_assert_eq!(timeouts.fault().is_none(), good);
        }
    }
}
