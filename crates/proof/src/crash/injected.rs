//! **Purpose.** Faults that can be injected, by name, to test that the harness finds them.
//!
//! **Model.** Only a build with the feature `sabotage` has them. Each leaves out one step of the
//! journal or of the file system that crash safety depends on. Faults are injected while a history
//! is recorded, never into the mounts that recover its states.

use fourscore::MountOptions;
use fourscore_journal::JournalOptions;

/// A fault to inject; none by default.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct InjectedFault {
    #[cfg(feature = "sabotage")]
    journal: Option<fourscore_journal::Sabotage>,
    #[cfg(feature = "sabotage")]
    fs: Option<fourscore::Sabotage>,
    /// The first seed whose history shows the fault, where that took long to find.
    first_seed: u64,
}

impl InjectedFault {
    /// The seed with which a search for the fault begins.
    #[must_use]
    pub fn first_seed(self) -> u64 {
        self.first_seed
    }
}

#[cfg(feature = "sabotage")]
impl InjectedFault {
    /// All faults, by name.
    pub const ALL: [(&str, Self); 9] = {
        use fourscore::Sabotage::{
            EarlyReuse, HalfRename, LateData, MarkAtClaim, NoOrphanRecord, NoSeal,
        };
        use fourscore_journal::Sabotage::{KnownBlocksInPlace, NoFlushBeforeCommit, NoRevoke};
        [
            ("no-flush-before-commit", Self::journal(NoFlushBeforeCommit)),
            ("no-revoke", Self::journal(NoRevoke).from(53)),
            ("known-blocks-in-place", Self::journal(KnownBlocksInPlace)),
            ("early-reuse", Self::fs(EarlyReuse).from(59)),
            ("no-orphan-record", Self::fs(NoOrphanRecord)),
            ("no-seal", Self::fs(NoSeal)),
            ("late-data", Self::fs(LateData)),
            ("half-rename", Self::fs(HalfRename)),
            ("mark-at-claim", Self::fs(MarkAtClaim)),
        ]
    };

    /// Faults of fast commits, by name.
    pub const OF_FAST_COMMITS: [(&str, Self); 7] = {
        use fourscore::Sabotage::{
            FreedNumberReused, NameWithoutInode, RecordedBlockReused, UnclosedCut, UnorderedRecords,
        };
        use fourscore_journal::Sabotage::{EarlyFastCommit, NoFlushBeforeFastCommit};
        [
            (
                "no-flush-before-fast-commit",
                Self::journal(NoFlushBeforeFastCommit).from(2),
            ),
            ("name-without-inode", Self::fs(NameWithoutInode).from(2)),
            ("unordered-records", Self::fs(UnorderedRecords).from(4)),
            ("unclosed-cut", Self::fs(UnclosedCut).from(2)),
            ("early-fast-commit", Self::journal(EarlyFastCommit).from(2)),
            ("freed-number-reused", Self::fs(FreedNumberReused).from(2)),
            (
                "recorded-block-reused",
                Self::fs(RecordedBlockReused).from(6),
            ),
        ]
    };

    /// A fault of file systems with quota, by name.
    pub const OF_QUOTA: (&str, Self) = (
        "unsealed-usage",
        Self::fs(fourscore::Sabotage::UnsealedUsage),
    );

    const fn journal(step: fourscore_journal::Sabotage) -> Self {
        Self {
            journal: Some(step),
            fs: None,
            first_seed: 0,
        }
    }

    const fn fs(step: fourscore::Sabotage) -> Self {
        Self {
            journal: None,
            fs: Some(step),
            first_seed: 0,
        }
    }

    const fn from(self, first_seed: u64) -> Self {
        Self { first_seed, ..self }
    }

    pub(super) fn of_journal(self, options: JournalOptions) -> JournalOptions {
        JournalOptions {
            sabotage: self.journal,
            ..options
        }
    }

    pub(super) fn of_mount(self, options: MountOptions) -> MountOptions {
        options.sabotage(self.fs)
    }
}

#[cfg(not(feature = "sabotage"))]
#[expect(clippy::unused_self, reason = "the other build needs it")]
impl InjectedFault {
    pub(super) fn of_journal(self, options: JournalOptions) -> JournalOptions {
        options
    }

    pub(super) fn of_mount(self, options: MountOptions) -> MountOptions {
        options
    }
}
