//! Time-outs: how long things may take, each longer than the one before.
//!
//! What is not acknowledged is sent again; who resends gives up after a while; who receives keeps the
//! beginning of a message for longer than its sender tries; and whoever uses the fabric waits longer
//! than that before it does anything about it. In another order one layer would act on what the one
//! below is still mending: so another order is refused.

/// The time-outs of bulk messages, in microseconds; each shorter than the next.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Timeouts {
    /// Transport: without an acknowledgement for so long, what is missing goes by another path. Twice
    /// as long each time.
    pub transport_us: u64,
    /// Retry: without any progress for so long, a message is given up.
    pub retry_us: u64,
    /// Reply: a message that came in part and does not grow is dropped after this.
    pub reply_us: u64,
    /// What whoever uses the fabric waits for an answer, if it does not wait for ever. The fabric itself
    /// waits for nothing that long: it is here so that the others are refused if they are not shorter.
    pub upper_us: Option<u64>,
    /// Times that a message is sent again without progress when all ways were taken, at most; at least 1.
    /// What comes first, this or the retry time-out, ends it.
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
    /// What is wrong with these numbers, if anything, in words that say what to write instead.
    #[must_use]
    pub fn fault(&self) -> Option<String> {
        if self.retries_max == 0 {
            return Some("0 retries would give up what is lost once; give 1 or more".to_owned());
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
    fn the_first_pair_that_is_out_of_order_is_named_with_both_values_and_the_remedy() {
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
        fn just_what_is_in_order_is_taken(
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
