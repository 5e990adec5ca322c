//! **Purpose.** The criteria of the search: what a group must have, from the strictest to the
//! loosest.

/// A criterion, by ext4's names.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Criterion {
    /// A power of two, from a free buddy of that order.
    Power2Aligned,
    /// The whole goal length, where it is found quickly.
    GoalLenFast,
    /// The longest length below the goal that is found quickly.
    BestAvailLen,
    /// The whole goal length, wherever it is.
    GoalLenSlow,
    /// Any free clusters.
    AnyFree,
}

impl Criterion {
    /// All, in ext4's order.
    pub const ALL: &[Self] = &[
        Self::Power2Aligned,
        Self::GoalLenFast,
        Self::BestAvailLen,
        Self::GoalLenSlow,
        Self::AnyFree,
    ];

    /// The name of its block in `mb_stats`.
    #[must_use]
    pub fn stats_name(self) -> &'static str {
        match self {
            Self::Power2Aligned => "cr_p2_aligned_stats",
            Self::GoalLenFast => "cr_goal_fast_stats",
            Self::BestAvailLen => "cr_best_avail_stats",
            Self::GoalLenSlow => "cr_goal_slow_stats",
            Self::AnyFree => "cr_any_free_stats",
        }
    }
}
