//! **Purpose.** The entry of an identifier in a quota file: usage, limits, and when grace times
//! end.
//!
//! **Model.** The kernel stores limits of space in units of 1 KiB and the usage in bytes. Here all
//! are bytes; limits are rounded up to whole units.
//!
//! **Invariants.** An entry in use is never all zeroes, since a reader takes that for a free one.
//! The entry of identifier 0 without usage and limits therefore gets an end of the grace time of
//! inodes, as in the kernel; without a soft limit that end has no meaning.

use zerocopy::{FromBytes, IntoBytes};

use super::{QuotaCounts, RawEntry};

/// The size of an entry.
pub const ENTRY_BYTES: usize = size_of::<RawEntry>();

/// The unit of limits of space.
const UNIT_BYTES: u64 = 1024;

/// The limits of an identifier. 0 stands for no limit.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct QuotaLimits {
    /// Space in bytes that may be exceeded for a grace time.
    pub soft_bytes: u64,
    /// Space in bytes that is never exceeded.
    pub hard_bytes: u64,
    /// Inodes that may be exceeded for a grace time.
    pub soft_inodes: u64,
    /// Inodes that are never exceeded.
    pub hard_inodes: u64,
}

impl QuotaLimits {
    /// Whether there is no limit at all.
    #[must_use]
    pub fn are_none(&self) -> bool {
        *self == Self::default()
    }
}

/// What a quota file says about an identifier.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct QuotaEntry {
    /// What it uses.
    pub counts: QuotaCounts,
    /// What it may use.
    pub limits: QuotaLimits,
    /// When its soft limit of space will have been exceeded too long, in seconds since 1970; 0 if
    /// it is not exceeded.
    pub bytes_grace_end: u64,
    /// The same of inodes.
    pub inodes_grace_end: u64,
}

impl QuotaEntry {
    /// Reads the entry at the start of `bytes`, with its identifier. `None` if the bytes are too
    /// few.
    #[must_use]
    pub fn of(bytes: &[u8]) -> Option<(u32, Self)> {
        let (raw, _) = RawEntry::ref_from_prefix(bytes).ok()?;
        let entry = Self {
            counts: QuotaCounts {
                inodes: raw.dqb_curinodes.get(),
                bytes: raw.dqb_curspace.get(),
            },
            limits: QuotaLimits {
                soft_bytes: raw.dqb_bsoftlimit.get().saturating_mul(UNIT_BYTES),
                hard_bytes: raw.dqb_bhardlimit.get().saturating_mul(UNIT_BYTES),
                soft_inodes: raw.dqb_isoftlimit.get(),
                hard_inodes: raw.dqb_ihardlimit.get(),
            },
            bytes_grace_end: raw.dqb_btime.get(),
            inodes_grace_end: raw.dqb_itime.get(),
        };
        Some((raw.dqb_id.get(), entry))
    }

    /// Whether it has neither usage nor limits, so that a file without it says the same.
    #[must_use]
    pub fn is_idle(&self) -> bool {
        self.counts == QuotaCounts::default() && self.limits.are_none()
    }

    /// Returns the bytes of the entry of `id`.
    #[must_use]
    pub fn to_bytes(&self, id: u32) -> [u8; ENTRY_BYTES] {
        let is_void = id == 0 && *self == Self::default();
        let raw = RawEntry {
            dqb_id: id.into(),
            dqb_pad: 0.into(),
            dqb_ihardlimit: self.limits.hard_inodes.into(),
            dqb_isoftlimit: self.limits.soft_inodes.into(),
            dqb_curinodes: self.counts.inodes.into(),
            dqb_bhardlimit: self.limits.hard_bytes.div_ceil(UNIT_BYTES).into(),
            dqb_bsoftlimit: self.limits.soft_bytes.div_ceil(UNIT_BYTES).into(),
            dqb_curspace: self.counts.bytes.into(),
            dqb_btime: self.bytes_grace_end.into(),
            dqb_itime: if is_void { 1 } else { self.inodes_grace_end }.into(),
        };
        let mut bytes = [0; ENTRY_BYTES];
        bytes.copy_from_slice(raw.as_bytes());
        bytes
    }
}
