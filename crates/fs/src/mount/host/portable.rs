//! **Purpose.** The clock of time stamps by std.

use std::time::{Duration, SystemTime};

use fourscore_ondisk::time::Timestamp;

/// Returns the current time, as [`stamp`] does.
pub(crate) fn now() -> Timestamp {
    stamp(SystemTime::now())
}

/// A time of the system as a time stamp. A time before 1970 is 1970: the clock is not set then.
fn stamp(time: SystemTime) -> Timestamp {
    let since = time.duration_since(SystemTime::UNIX_EPOCH);
    let since: Duration = since.unwrap_or_default();
    let seconds = i64::try_from(since.as_secs()).unwrap_or(i64::MAX);
    Timestamp::new(seconds, since.subsec_nanos()).unwrap_or_default()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::mount::host;

    #[test]
    fn the_clock_is_that_of_the_system() {
        // The coarse clock is at most a tick behind.
        let before = host::now().seconds();
        let now = now();
        let after = host::now().seconds();
        assert!((before..=after + 1).contains(&now.seconds()), "{now:?}");
        let time = SystemTime::UNIX_EPOCH + Duration::new(5_000_000_000, 7);
        assert_eq!(Some(stamp(time)), Timestamp::new(5_000_000_000, 7));
        let early = SystemTime::UNIX_EPOCH - Duration::from_secs(1);
        assert_eq!(stamp(early), Timestamp::default());
    }
}
