//! **Purpose.** The clock of time stamps, by a call of Linux.

use fourscore_ondisk::time::Timestamp;

/// Returns the current time as Linux stamps inodes: that of the clock's last tick, at most some
/// milliseconds ago. All stamps are from this clock, so a later change never has an earlier stamp.
pub(crate) fn now() -> Timestamp {
    let now = rustix::time::clock_gettime(rustix::time::ClockId::RealtimeCoarse);
    let nanoseconds = u32::try_from(now.tv_nsec).unwrap_or_default();
    Timestamp::new(now.tv_sec, nanoseconds).unwrap_or_default()
}
