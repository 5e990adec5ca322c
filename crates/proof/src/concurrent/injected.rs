//! **Purpose.** Faults that can be injected, by name, to test that the oracle finds each.
//!
//! **Model.** Only a build with the feature `sabotage` has them.

use fourscore::MountOptions;

use super::theme::Theme;

/// A fault to inject; none by default.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct InjectedFault {
    #[cfg(feature = "sabotage")]
    fs: Option<fourscore::Sabotage>,
    /// The theme of rounds that finds it soon.
    theme: Option<Theme>,
}

impl InjectedFault {
    pub(super) fn theme(self) -> Option<Theme> {
        self.theme
    }
}

#[cfg(feature = "sabotage")]
impl InjectedFault {
    /// All faults, by name.
    pub const ALL: [(&str, Self); 15] = {
        use Theme::{
            Attributes, Content, Copies, Eviction, Growth, Listings, Names, NewNames, OneAttribute,
            Reuse, Tree,
        };
        use fourscore::Sabotage::{
            CopyWithoutLock, ForgetBeforePublish, FreedStaysKnown, ListingToOldEnd,
            NameBeforeInode, PathWithoutRevalidation, RenameByNumber, SizeBeforeSpace, TakenUnseen,
            UncountedFree, UnnoticedEviction, UnnoticedMove, UnnoticedReuse, UnsequencedKeyChange,
            UnsettledGrowth,
        };
        [
            ("rename-by-number", Self::fs(RenameByNumber, Tree)),
            ("copy-without-lock", Self::fs(CopyWithoutLock, Copies)),
            (
                "unsequenced-key-change",
                Self::fs(UnsequencedKeyChange, Content),
            ),
            (
                "forget-before-publish",
                Self::fs(ForgetBeforePublish, Content),
            ),
            ("uncounted-free", Self::fs(UncountedFree, Reuse)),
            ("unnoticed-reuse", Self::fs(UnnoticedReuse, Reuse)),
            ("unnoticed-move", Self::fs(UnnoticedMove, Content)),
            ("name-before-inode", Self::fs(NameBeforeInode, NewNames)),
            ("listing-to-old-end", Self::fs(ListingToOldEnd, Listings)),
            (
                "path-without-revalidation",
                Self::fs(PathWithoutRevalidation, Names),
            ),
            ("unnoticed-eviction", Self::fs(UnnoticedEviction, Eviction)),
            ("freed-stays-known", Self::fs(FreedStaysKnown, Attributes)),
            ("taken-unseen", Self::fs(TakenUnseen, OneAttribute)),
            ("unsettled-growth", Self::fs(UnsettledGrowth, Growth)),
            ("size-before-space", Self::fs(SizeBeforeSpace, Growth)),
        ]
    };

    const fn fs(step: fourscore::Sabotage, theme: Theme) -> Self {
        Self {
            fs: Some(step),
            theme: Some(theme),
        }
    }

    pub(super) fn of_mount(self, options: MountOptions) -> MountOptions {
        options.sabotage(self.fs)
    }
}

#[cfg(not(feature = "sabotage"))]
#[expect(clippy::unused_self, reason = "the other build needs it")]
impl InjectedFault {
    pub(super) fn of_mount(self, options: MountOptions) -> MountOptions {
        options
    }
}
