//! The two loops over whole vectors of ages: increase all ages, and take younger ones.
//!
//! An age is one byte and saturates at 255. Both loops are plain walks over bytes without a branch or a
//! bounds check, which the compiler vectorizes on every machine. Hand-written instructions would need
//! `unsafe` and are no faster (`muster bench merge`).

/// Increases all ages by this number of cycles.
pub fn grow_older(ages: &mut [u8], cycles: u8) {
    for age in ages {
        *age = age.saturating_add(cycles);
    }
}

/// Takes every younger age, with `hop` added: `min(own, theirs + hop)`. The longer rest of either side is
/// ignored.
pub fn merge(own: &mut [u8], theirs: &[u8], hop: u8) {
    for (own, theirs) in own.iter_mut().zip(theirs) {
        *own = (*own).min(theirs.saturating_add(hop));
    }
}

/// The same one age after the other, as the rule says it: the reference for tests and measurements of
/// [`merge`].
pub fn merge_plainly(own: &mut [u8], theirs: &[u8], hop: u8) {
    for at in 0..own.len().min(theirs.len()) {
        // Keeps the compiler from vectorizing this loop.
        let older = core::hint::black_box(u16::from(theirs[at]) + u16::from(hop));
        let older = if older > 255 { 255 } else { older as u8 };
        if older < own[at] {
            own[at] = older;
        }
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    proptest! {
        /// AG-07: the fast merge equals the plain one, at every length and alignment.
        #[test]
        fn the_fast_merge_is_the_plain_one(
            own in proptest::collection::vec(any::<u8>(), 0..700),
            theirs in proptest::collection::vec(any::<u8>(), 0..700),
            hop in 0_u8..3, skip in 0_usize..40,
        ) {
            let (mut fast, mut plain) = (own.clone(), own.clone());
            let skip = skip.min(own.len()).min(theirs.len());
            merge(&mut fast[skip..], &theirs[skip..], hop);
            merge_plainly(&mut plain[skip..], &theirs[skip..], hop);
            prop_assert_eq!(&fast, &plain);
            prop_assert_eq!(&fast[..skip], &own[..skip]);
        }

        /// AG-07, AG-15: an age of one byte saturates at 255.
        #[test]
        fn ages_stop_at_the_top(ages in proptest::collection::vec(any::<u8>(), 0..300), cycles: u8) {
            let mut grown = ages.clone();
            grow_older(&mut grown, cycles);
            for (grown, age) in grown.iter().zip(&ages) {
                prop_assert_eq!(u16::from(*grown), (u16::from(*age) + u16::from(cycles)).min(255));
            }
        }
    }
}
