//! **Purpose.** Facts about a round that the rules need besides its calls.

use std::collections::BTreeSet;

/// Linux's numbers of the errors that the rules name.
pub(in crate::concurrent) mod errno {
    pub(crate) const NOENT: i32 = 2;
    pub(crate) const BUSY: i32 = 16;
    pub(crate) const EXIST: i32 = 17;
    pub(crate) const NOTDIR: i32 = 20;
    pub(crate) const ISDIR: i32 = 21;
    pub(crate) const INVAL: i32 = 22;
    pub(crate) const NOSPC: i32 = 28;
    pub(crate) const NOTEMPTY: i32 = 39;
    pub(crate) const NODATA: i32 = 61;
    pub(crate) const OPNOTSUPP: i32 = 95;
    pub(crate) const UCLEAN: i32 = 117;
}

/// The size of a file system.
#[derive(Clone, Copy, Debug, Default)]
pub(in crate::concurrent) struct Size {
    pub(in crate::concurrent) blocks: u64,
    /// The blocks of a group.
    pub(in crate::concurrent) group_blocks: u64,
}

/// Facts about a round other than its calls.
#[derive(Clone, Debug, Default)]
pub(in crate::concurrent) struct Context {
    /// Directories that are never removed or moved.
    pub(in crate::concurrent) permanent: BTreeSet<u64>,
    /// Whether inodes get several names.
    pub(in crate::concurrent) has_links: bool,
    /// The number of inodes that are certainly free at the begin.
    pub(in crate::concurrent) free_inodes: usize,
    /// Whether the kernel caches data and sizes: a size that is read while a call changes it proves
    /// nothing, and a cell that is read then may be torn.
    pub(in crate::concurrent) has_page_cache: bool,
    /// Whether files have indirect blocks: ranges are then not preallocated or moved.
    pub(in crate::concurrent) pointers: bool,
    /// The size of the file system at the begin.
    pub(in crate::concurrent) first_size: Size,
    /// The blocks that the device has.
    pub(in crate::concurrent) device_blocks: u64,
    /// The size in blocks from which there is space for everything; below it calls may find none.
    pub(in crate::concurrent) spacious_blocks: u64,
}

impl Context {
    /// Whether a directory exists during the whole round.
    pub(super) fn is_permanent(&self, dir: u64) -> bool {
        self.permanent.contains(&dir)
    }
}
