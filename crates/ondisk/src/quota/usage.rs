//! **Purpose.** What objects use, added up by user, group and project.

use std::collections::BTreeMap;

use super::QuotaKind;

/// The identifiers that an object counts for.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct QuotaIds {
    /// The user.
    pub user: u32,
    /// The group.
    pub group: u32,
    /// The project; 0 where inodes have none.
    pub project: u32,
}

/// What one or more objects use.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct QuotaCounts {
    /// Inodes.
    pub inodes: u64,
    /// Space in bytes.
    pub bytes: u64,
}

/// What each user, group and project uses. Counts saturate.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct QuotaUsage {
    users: BTreeMap<u32, QuotaCounts>,
    groups: BTreeMap<u32, QuotaCounts>,
    projects: BTreeMap<u32, QuotaCounts>,
}

impl QuotaUsage {
    /// Adds an object to what its owners use.
    pub fn add(&mut self, ids: QuotaIds, counts: QuotaCounts) {
        add(&mut self.users, ids.user, counts);
        add(&mut self.groups, ids.group, counts);
        add(&mut self.projects, ids.project, counts);
    }

    /// Adds all that was counted elsewhere.
    pub fn merge(&mut self, other: &Self) {
        for (own, other) in [
            (&mut self.users, &other.users),
            (&mut self.groups, &other.groups),
            (&mut self.projects, &other.projects),
        ] {
            for (&id, &counts) in other {
                add(own, id, counts);
            }
        }
    }

    /// What the identifiers of a kind use.
    #[must_use]
    pub fn of(&self, kind: QuotaKind) -> &BTreeMap<u32, QuotaCounts> {
        match kind {
            QuotaKind::User => &self.users,
            QuotaKind::Group => &self.groups,
            QuotaKind::Project => &self.projects,
        }
    }
}

fn add(usage: &mut BTreeMap<u32, QuotaCounts>, id: u32, more: QuotaCounts) {
    let counts = usage.entry(id).or_default();
    counts.inodes = counts.inodes.saturating_add(more.inodes);
    counts.bytes = counts.bytes.saturating_add(more.bytes);
}
