//! **Purpose.** An identifier with an entry in a quota file, and the bytes of its entry.

use fourscore_block::{Structure, VerifiedAs};
use fourscore_ondisk::InodeNr;
use fourscore_ondisk::geometry::BytePlace;
use fourscore_ondisk::quota::QuotaEntry;
use fourscore_sync::{Mutex, OnceLock};

use crate::quota::limits::Exact;
use crate::quota::usage::{Key, Usage};

/// An identifier with an entry in a quota file.
#[derive(Debug)]
pub(super) struct Dquot {
    pub(super) key: Key,
    /// Where its entry is. An entry never moves.
    pub(super) place: BytePlace,
    /// Set if it has limits that are kept, or has had some.
    pub(super) exact: OnceLock<Exact>,
    /// The sum of the counts of all cores, while a transaction is being sealed.
    pub(super) sealed: Mutex<Usage>,
}

impl Dquot {
    /// Adds `usage` to the entry in the block `bytes`. Returns whether the entry is idle then.
    pub(super) fn write(&self, bytes: &mut [u8], usage: Usage) -> bool {
        let bytes = bytes.get_mut(self.place.offset_bytes..).unwrap_or_default();
        let Some((id, mut entry)) = QuotaEntry::of(bytes) else {
            return false;
        };
        if id != self.key.id {
            return false;
        }
        let QuotaEntry { counts, limits, .. } = &mut entry;
        counts.bytes = counts.bytes.saturating_add_signed(usage.bytes);
        counts.inodes = counts.inodes.saturating_add_signed(usage.inodes);
        let is_within = (
            counts.bytes <= limits.soft_bytes,
            counts.inodes <= limits.soft_inodes,
        );
        if let Some(exact) = self.exact.get() {
            (entry.bytes_grace_end, entry.inodes_grace_end) = exact.grace_ends();
        }
        if is_within.0 {
            entry.bytes_grace_end = 0;
        }
        if is_within.1 {
            entry.inodes_grace_end = 0;
        }
        let written = entry.to_bytes(id);
        bytes[..written.len()].copy_from_slice(&written);
        entry.is_idle()
    }
}

/// The tag of blocks with entries: they have no checksum.
pub(super) fn entry_tag() -> VerifiedAs {
    VerifiedAs::new(Structure::Content, InodeNr(0))
}
