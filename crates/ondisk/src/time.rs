//! **Purpose.** Timestamps as ext4 stores them: 32 bits of seconds, and in larger inodes an extra
//! field with two more bits of seconds and the nanoseconds.
//!
//! **Model.** The 32-bit field is signed. The epoch bits add multiples of 2^32 to it, so that
//! inodes written without them keep their meaning:
//!
//! ```text
//! seconds = i32(word) + (extra & 3) * 2^32        nanoseconds = extra >> 2
//! ```
//!
//! The range is -2^31 (13 December 1901) to 2^34 - 2^31 - 1 (10 May 2446). The superblock is
//! different: it has an unsigned 32-bit field and eight more bits above it.
//!
//! **References.** Documentation/filesystems/ext4/inodes.rst of the kernel, "Inode Timestamps".

/// Seconds since the start of 1970, UTC (negative before it) and nanoseconds.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Timestamp {
    seconds: i64,
    nanoseconds: u32,
}

const NANOSECONDS_MAX: u32 = 999_999_999;
const EPOCH_BITS: u32 = 2;
const EPOCH_MASK: u32 = (1 << EPOCH_BITS) - 1;

impl Timestamp {
    /// The earliest time an inode can hold: 13 December 1901, 20:45:52 UTC.
    pub const MIN: Self = Self {
        seconds: -(1 << 31),
        nanoseconds: 0,
    };
    /// The latest time that an inode with the extra fields can hold: 10 May 2446,
    /// 22:38:55.999999999 UTC.
    pub const MAX: Self = Self {
        seconds: (1 << 34) - (1 << 31) - 1,
        nanoseconds: NANOSECONDS_MAX,
    };
    /// The latest time that an inode without the extra fields can hold: 19 January 2038, 03:14:07
    /// UTC.
    pub const MAX_WITHOUT_EXTRA: Self = Self {
        seconds: (1 << 31) - 1,
        nanoseconds: 0,
    };

    /// A time; `None` if `nanoseconds` is a second or more.
    #[must_use]
    pub const fn new(seconds: i64, nanoseconds: u32) -> Option<Self> {
        if nanoseconds > NANOSECONDS_MAX {
            None
        } else {
            Some(Self {
                seconds,
                nanoseconds,
            })
        }
    }

    /// Seconds since 1970, negative before.
    #[must_use]
    pub const fn seconds(self) -> i64 {
        self.seconds
    }

    /// Nanoseconds past [`seconds`](Self::seconds), less than a second.
    #[must_use]
    pub const fn nanoseconds(self) -> u32 {
        self.nanoseconds
    }

    /// Decodes the two fields of an inode; `extra` is `None` if the inode does not have it.
    /// Nanoseconds of a second or more, which no kernel writes, are clamped to the end of the
    /// second.
    #[must_use]
    pub fn from_inode(word: u32, extra: Option<u32>) -> Self {
        let seconds = i64::from(word.cast_signed());
        let Some(extra) = extra else {
            return Self {
                seconds,
                nanoseconds: 0,
            };
        };
        Self {
            seconds: seconds + (i64::from(extra & EPOCH_MASK) << 32),
            nanoseconds: (extra >> EPOCH_BITS).min(NANOSECONDS_MAX),
        }
    }

    /// The two fields of an inode with extra fields. Times out of range become the first moment of
    /// the last second that fits, as in the kernel.
    #[must_use]
    pub fn to_inode_words(self) -> (u32, u32) {
        let seconds = self.seconds.clamp(Self::MIN.seconds, Self::MAX.seconds);
        let nanoseconds = if seconds == self.seconds {
            self.nanoseconds
        } else {
            0
        };
        let word = low_word(seconds);
        let above = (seconds - i64::from(word.cast_signed())) >> 32;
        (
            word,
            (nanoseconds << EPOCH_BITS) | (low_word(above) & EPOCH_MASK),
        )
    }

    /// The field of an inode without extra fields: whole seconds, clamped.
    #[must_use]
    pub fn to_inode_word(self) -> u32 {
        low_word(self.clamp(Self::MIN, Self::MAX_WITHOUT_EXTRA).seconds)
    }

    /// Decodes a time of the superblock: a 32-bit field and its `_hi` byte. `None` for zero, which
    /// means "never".
    #[must_use]
    pub fn from_superblock(word: u32, high: u8) -> Option<Self> {
        let seconds = i64::from(word) | (i64::from(high) << 32);
        (seconds != 0).then_some(Self {
            seconds,
            nanoseconds: 0,
        })
    }
}

/// The low 32 bits of the two's complement.
#[expect(
    clippy::cast_possible_truncation,
    reason = "only the low half is wanted"
)]
fn low_word(seconds: i64) -> u32 {
    seconds as u32
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn at(seconds: i64, nanoseconds: u32) -> Timestamp {
        Timestamp::new(seconds, nanoseconds).unwrap()
    }

    /// The table of the kernel documentation: epoch bits, 32-bit field, seconds.
    const EPOCH_TABLE: [(u32, u32, i64); 16] = [
        (0, 0x8000_0000, -0x8000_0000),
        (0, 0xffff_ffff, -1),
        (0, 0x0000_0000, 0),
        (0, 0x7fff_ffff, 0x7fff_ffff),
        (1, 0x8000_0000, 0x8000_0000),
        (1, 0xffff_ffff, 0xffff_ffff),
        (1, 0x0000_0000, 0x1_0000_0000),
        (1, 0x7fff_ffff, 0x1_7fff_ffff),
        (2, 0x8000_0000, 0x1_8000_0000),
        (2, 0xffff_ffff, 0x1_ffff_ffff),
        (2, 0x0000_0000, 0x2_0000_0000),
        (2, 0x7fff_ffff, 0x2_7fff_ffff),
        (3, 0x8000_0000, 0x2_8000_0000),
        (3, 0xffff_ffff, 0x2_ffff_ffff),
        (3, 0x0000_0000, 0x3_0000_0000),
        (3, 0x7fff_ffff, 0x3_7fff_ffff),
    ];

    #[test]
    fn kernel_table_both_ways() {
        for (epoch, word, seconds) in EPOCH_TABLE {
            let extra = (123_456_789 << 2) | epoch;
            let time = at(seconds, 123_456_789);
            assert_eq!(Timestamp::from_inode(word, Some(extra)), time);
            assert_eq!(time.to_inode_words(), (word, extra));
        }
    }

    #[test]
    fn without_extra_word_the_range_ends_in_2038() {
        assert_eq!(
            Timestamp::from_inode(0x8000_0000, None),
            at(-0x8000_0000, 0)
        );
        assert_eq!(at(0x8000_0000, 5).to_inode_word(), 0x7fff_ffff);
        assert_eq!(at(-1, 999).to_inode_word(), 0xffff_ffff);
        assert_eq!(at(i64::MIN, 0).to_inode_word(), 0x8000_0000);
    }

    #[test]
    fn out_of_range_clamps() {
        assert_eq!(at(i64::MAX, 0).to_inode_words(), (0x7fff_ffff, 3));
        assert_eq!(
            at(Timestamp::MAX.seconds() + 1, 5).to_inode_words(),
            (0x7fff_ffff, 3)
        );
        assert_eq!(at(i64::MIN, 7).to_inode_words(), (0x8000_0000, 0));
        assert_eq!(
            Timestamp::from_inode(0, Some(!0)).nanoseconds(),
            999_999_999
        );
        assert_eq!(Timestamp::new(0, 1_000_000_000), None);
    }

    #[test]
    fn superblock_times_are_unsigned() {
        assert_eq!(Timestamp::from_superblock(0, 0), None);
        assert_eq!(
            Timestamp::from_superblock(0xffff_ffff, 1),
            Some(at(0x1_ffff_ffff, 0))
        );
    }

    proptest! {
        #[test]
        fn words_survive(word: u32, epoch in 0u32..4, nanoseconds in 0u32..1_000_000_000) {
            let extra = (nanoseconds << 2) | epoch;
            prop_assert_eq!(
                Timestamp::from_inode(word, Some(extra)).to_inode_words(),
                (word, extra)
            );
        }
    }
}
