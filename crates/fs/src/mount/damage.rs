//! **Purpose.** Results of a replay of the journal in memory, apart from the replayed transactions:
//! how the journal was found, and a last transaction that was left out.
//!
//! **Not here.** The replay itself (`crate::mount::replay`).

use std::fmt;

use fourscore_ondisk::Tid;
use fourscore_ondisk::jbd2::Damage;

/// How the blocks of a journal were found.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum FoundBy {
    /// By its inode, or on a device of its own.
    #[default]
    Inode,
    /// By the copy of its inode in the superblock (`s_jnl_blocks`), since the inode cannot be used.
    Copy,
}

/// A transaction at the end of a dirty journal that was left out, because it does not match its
/// checksums: reads give the state before it. With asynchronous commits a crash ordinarily ends the
/// log in this way. Otherwise the log is damaged, and the kernel refuses to mount.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct JournalDamage {
    /// The transaction.
    pub tid: Tid,
    /// The first part of it that does not match.
    pub damage: Damage,
}

impl fmt::Display for JournalDamage {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { tid, damage } = self;
        write!(f, "transaction {tid}, the last one, was left out: {damage}")
    }
}
