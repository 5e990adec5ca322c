//! **Purpose.** Times as text.

use jiff::tz::TimeZone;
use jiff::{Timestamp, civil};

use crate::facts::Time;

/// The time zone in which a time is printed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Zone {
    /// The time zone of this machine.
    Local,
    /// UTC.
    #[cfg(test)]
    Utc,
}

impl Zone {
    fn zone(self) -> TimeZone {
        match self {
            Self::Local => TimeZone::system(),
            #[cfg(test)]
            Self::Utc => TimeZone::UTC,
        }
    }
}

fn timestamp(time: Time) -> Option<Timestamp> {
    Timestamp::new(time.seconds, i32::try_from(time.nanoseconds).ok()?).ok()
}

/// The time of the clock.
pub(crate) fn now() -> fourscore::Timestamp {
    on_disk(Timestamp::now()).unwrap_or_default()
}

/// Parses `now`, `@SECONDS` with up to nine decimals, RFC 3339, or a date with or without a time,
/// in the time zone of this machine.
pub(crate) fn parse(text: &str) -> Option<fourscore::Timestamp> {
    if text == "now" {
        return Some(now());
    }
    if let Some(seconds) = text.strip_prefix('@') {
        return parse_seconds(seconds);
    }
    if let Ok(at) = text.parse::<Timestamp>() {
        return on_disk(at);
    }
    let at: civil::DateTime = text.parse().ok()?;
    on_disk(at.to_zoned(TimeZone::system()).ok()?.timestamp())
}

fn parse_seconds(text: &str) -> Option<fourscore::Timestamp> {
    let (seconds, decimals) = text.split_once('.').unwrap_or((text, "0"));
    let is_valid = (1..=9).contains(&decimals.len());
    let digits = format!("{decimals:0<9}");
    let all_digits = is_valid && digits.bytes().all(|byte| byte.is_ascii_digit());
    let nanoseconds: u32 = digits.parse().ok().filter(|_| all_digits)?;
    let whole: i64 = seconds.parse().ok()?;
    match seconds.starts_with('-') && nanoseconds > 0 {
        true => fourscore::Timestamp::new(whole.checked_sub(1)?, 1_000_000_000 - nanoseconds),
        false => fourscore::Timestamp::new(whole, nanoseconds),
    }
}

fn on_disk(at: Timestamp) -> Option<fourscore::Timestamp> {
    let nanoseconds = at.as_nanosecond();
    let seconds = i64::try_from(nanoseconds.div_euclid(1_000_000_000)).ok()?;
    let rest = u32::try_from(nanoseconds.rem_euclid(1_000_000_000)).ok()?;
    fourscore::Timestamp::new(seconds, rest)
}

/// The format of ctime(3), without the newline.
pub(crate) fn ctime(time: Time, zone: Zone) -> String {
    formatted(time, zone, "%a %b %e %H:%M:%S %Y")
}

/// Date, hours and minutes.
pub(crate) fn minutes(time: Time, zone: Zone) -> String {
    formatted(time, zone, "%Y-%m-%d %H:%M")
}

/// Day, month, year, hours and minutes, as debugfs prints them.
pub(crate) fn day_and_minutes(time: Time, zone: Zone) -> String {
    formatted(time, zone, "%e-%b-%Y %H:%M")
}

/// Date, time with nanoseconds, and time zone, in the format of stat(1).
pub(crate) fn full(time: Time, zone: Zone) -> String {
    formatted(time, zone, "%Y-%m-%d %H:%M:%S.%9f %z")
}

/// RFC 3339 in UTC.
pub(crate) fn rfc3339(time: Time) -> String {
    timestamp(time).map_or_else(|| plain(time), |at| at.to_string())
}

fn formatted(time: Time, zone: Zone, format: &str) -> String {
    timestamp(time).map_or_else(
        || plain(time),
        |at| at.to_zoned(zone.zone()).strftime(format).to_string(),
    )
}

/// Seconds and nanoseconds of a time that is out of range of the calendar.
fn plain(time: Time) -> String {
    format!("{}.{:09}", time.seconds, time.nanoseconds)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn all_forms() {
        let time = Time {
            seconds: 1_700_000_000,
            nanoseconds: 5,
        };
        assert_eq!(ctime(time, Zone::Utc), "Tue Nov 14 22:13:20 2023");
        assert_eq!(minutes(time, Zone::Utc), "2023-11-14 22:13");
        assert_eq!(full(time, Zone::Utc), "2023-11-14 22:13:20.000000005 +0000");
        assert_eq!(rfc3339(time), "2023-11-14T22:13:20.000000005Z");
    }

    #[test]
    fn times_are_parsed() {
        let parts = |text: &str| {
            let at = parse(text)?;
            Some((at.seconds(), at.nanoseconds()))
        };
        assert_eq!(parts("@17"), Some((17, 0)));
        assert_eq!(parts("@17.5"), Some((17, 500_000_000)));
        assert_eq!(parts("@-1.25"), Some((-2, 750_000_000)));
        assert_eq!(parts("1970-01-02T00:00:01.5Z"), Some((86_401, 500_000_000)));
        assert!(parts("2026-01-31").is_some() && parts("2026-01-31 12:00").is_some());
        assert!(parts("now").is_some_and(|(seconds, _)| seconds > 1_700_000_000));
        for text in [
            "",
            "@",
            "@x",
            "@1.",
            "@1.-5",
            "@1.1234567890",
            "yesterday",
            "12",
        ] {
            assert_eq!(parts(text), None, "{text}");
        }
    }

    #[test]
    fn before_1970_and_after_2038() {
        let at = |seconds, nanoseconds| Time {
            seconds,
            nanoseconds,
        };
        assert_eq!(
            full(at(-1, 500_000_000), Zone::Utc),
            "1969-12-31 23:59:59.500000000 +0000"
        );
        assert_eq!(ctime(at(1 << 33, 0), Zone::Utc), "Wed Mar 16 12:56:32 2242");
        assert_eq!(
            minutes(at(i64::MAX, 1), Zone::Utc),
            "9223372036854775807.000000001"
        );
    }
}
