//! **Purpose.** Times as text.

use jiff::Timestamp;
use jiff::tz::TimeZone;

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

/// The format of ctime(3), without the newline.
pub(crate) fn ctime(time: Time, zone: Zone) -> String {
    formatted(time, zone, "%a %b %e %H:%M:%S %Y")
}

/// Date, hours and minutes.
pub(crate) fn minutes(time: Time, zone: Zone) -> String {
    formatted(time, zone, "%Y-%m-%d %H:%M")
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
