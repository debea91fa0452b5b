//! Dates in UTC, as the journal and its readers write them.

use std::time::{SystemTime, UNIX_EPOCH};

/// Microseconds since 1970.
#[must_use]
pub fn unix_us_now() -> u64 {
    let since = SystemTime::now().duration_since(UNIX_EPOCH);
    since.map_or(0, |since| since.as_micros() as u64)
}

/// A time as RFC 3339 has it, in UTC.
#[must_use]
pub fn rfc3339(unix_us: u64) -> String {
    let (seconds, us) = (unix_us / 1_000_000, unix_us % 1_000_000);
    let (days, second) = (seconds / 86_400, seconds % 86_400);
    let (year, month, day) = civil(days);
    let (hour, minute, second) = (second / 3600, second / 60 % 60, second % 60);
    format!("{year:04}-{month:02}-{day:02}T{hour:02}:{minute:02}:{second:02}.{us:06}Z")
}

/// Year, month and day of a number of days since 1970: years begin in March, so that a leap day is the
/// last of its year.
fn civil(days: u64) -> (u64, u64, u64) {
    let days = days + 719_468;
    let (era, day_of_era) = (days / 146_097, days % 146_097);
    let year_of_era =
        (day_of_era - day_of_era / 1460 + day_of_era / 36_524 - day_of_era / 146_096) / 365;
    let day_of_year = day_of_era - (365 * year_of_era + year_of_era / 4 - year_of_era / 100);
    let from_march = (5 * day_of_year + 2) / 153;
    let day = day_of_year - (153 * from_march + 2) / 5 + 1;
    let month = if from_march < 10 {
        from_march + 3
    } else {
        from_march - 9
    };
    (era * 400 + year_of_era + u64::from(month <= 2), month, day)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn dates_are_dates() {
        assert_eq!(rfc3339(0), "1970-01-01T00:00:00.000000Z");
        assert_eq!(rfc3339(951_782_400_000_001), "2000-02-29T00:00:00.000001Z");
        assert_eq!(
            rfc3339(4_107_542_399_999_999),
            "2100-02-28T23:59:59.999999Z"
        );
        assert_eq!(
            rfc3339(4_107_542_400_000_000),
            "2100-03-01T00:00:00.000000Z"
        );
    }
}
