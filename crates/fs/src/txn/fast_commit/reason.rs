//! **Purpose.** Reasons why a change is in no fast commit, counted by kind.

/// Why no record expresses a change. The names are those of Linux (`fc_info`), where Linux has the
/// same reason.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Reason {
    /// Extended attributes, or an inode that has some in a block of their own.
    Xattr,
    /// Two names were exchanged, or a name was made to refer to another inode.
    CrossRename,
    /// The flags of an inode changed.
    Flags,
    /// A directory was made, removed, renamed, or its attributes were set.
    Directory,
    /// Blocks were unmapped, moved or made unwritten.
    RangeOperation,
    /// Blocks are mapped by a tree that has nodes outside of the inode.
    DeepTree,
    /// Data goes through the journal.
    JournaledData,
    /// An inode lost its last name, or has none.
    LastName,
    /// A symbolic link, a device, or a file whose data is in no extent tree.
    Kind,
    /// The fields of an inode and what lies behind them do not fit a record.
    Fields,
    /// The directory may have no space for a name when its record is replayed.
    NoSpace,
    /// The directory's names are in its inode, encrypted or case-folded.
    Names,
}

/// All reasons, in the order in which they are counted.
const ALL: [(Reason, &str); 12] = [
    (Reason::Xattr, "Extended attributes changed"),
    (Reason::CrossRename, "Cross rename"),
    (Reason::Flags, "Journal flag changed"),
    (Reason::Directory, "Directory changed"),
    (Reason::RangeOperation, "Falloc range op"),
    (Reason::DeepTree, "Deep extent tree"),
    (Reason::JournaledData, "Data journalling"),
    (Reason::LastName, "Last name removed"),
    (Reason::Kind, "Inode kind"),
    (Reason::Fields, "Inode fields"),
    (Reason::NoSpace, "No space for the name"),
    (Reason::Names, "Directory names"),
];

/// How many units were left out of fast commits, by reason.
#[derive(Clone, Debug, Default)]
pub(crate) struct Reasons {
    counts: [u64; ALL.len()],
}

impl Reasons {
    pub(crate) fn count(&mut self, why: Reason) {
        for ((reason, _), count) in ALL.iter().zip(&mut self.counts) {
            *count += u64::from(*reason == why);
        }
    }

    /// Returns the counts with their names.
    pub(crate) fn all(&self) -> Vec<(&'static str, u64)> {
        let names = ALL.iter().map(|(_, name)| *name);
        names.zip(self.counts).collect()
    }
}
