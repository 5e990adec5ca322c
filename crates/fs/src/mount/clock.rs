//! **Purpose.** The clock by which inodes and superblocks are stamped.

use fourscore_ondisk::time::Timestamp;

/// The time now, as Linux stamps inodes: that of the clock's last tick, some milliseconds ago at
/// most. All stamps are from it, so what was changed later never says that it was changed before.
pub(crate) fn now() -> Timestamp {
    let now = rustix::time::clock_gettime(rustix::time::ClockId::RealtimeCoarse);
    let nanoseconds = u32::try_from(now.tv_nsec).unwrap_or_default();
    Timestamp::new(now.tv_sec, nanoseconds).unwrap_or_default()
}
