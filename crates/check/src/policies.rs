//! **Purpose.** The encryption policy of each inode, so that a directory can be compared with the
//! inodes in it.
//!
//! **Model.** A policy is an encryption context without its nonce, which is each file's own. Each
//! policy gets a number. Pass 1 scans inodes in order, and neighbours mostly share a policy, so
//! runs of inodes with the same number are kept.
//!
//! **Locking.** One lock guards the numbers. A thread takes it only for a policy that differs from
//! that of the previous inode.

use std::collections::HashMap;

use fourscore_ondisk::InodeNr;
use fourscore_sync::Mutex;

/// The nonce at the end of a context.
const NONCE_BYTES: usize = 16;
/// The longest policy: version 2.
const MOST_BYTES: usize = 24;
/// The latest version that is defined.
const LAST_VERSION: u8 = 2;

/// The bytes of a policy, padded with zeroes; the first is its version.
type Policy = [u8; MOST_BYTES];

/// The number of a policy. Two files have the same policy if their numbers are equal.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct PolicyId(u32);

/// The numbers of all policies.
#[derive(Debug, Default)]
pub(crate) struct PolicyIds {
    ids: Mutex<HashMap<Policy, PolicyId>>,
}

/// The policies of the inodes that one thread scanned.
#[derive(Debug, Default)]
pub(crate) struct PolicyRuns {
    runs: Vec<Run>,
    last: Option<(Policy, PolicyId)>,
}

/// Inodes of one policy, without one of another policy between them.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Run {
    first: InodeNr,
    last: InodeNr,
    id: PolicyId,
}

impl PolicyRuns {
    /// Adds the context of an inode. Undefined versions count as one policy.
    pub(crate) fn add(&mut self, inode: InodeNr, context: &[u8], ids: &PolicyIds) {
        let mut policy = Policy::default();
        let version = context.first().copied().unwrap_or(0);
        if version > LAST_VERSION {
            policy[0] = u8::MAX;
        } else {
            let bytes = context.len().saturating_sub(NONCE_BYTES);
            for (to, from) in policy.iter_mut().zip(context.iter().take(bytes)) {
                *to = *from;
            }
        }
        let id = match self.last {
            Some((last, id)) if last == policy => id,
            _ => ids.of(policy),
        };
        self.last = Some((policy, id));
        match self.runs.last_mut() {
            Some(run) if run.id == id && run.last.0 + 1 == inode.0 => run.last = inode,
            _ => self.runs.push(Run {
                first: inode,
                last: inode,
                id,
            }),
        }
    }

    /// The policies of all threads.
    pub(crate) fn gather(parts: impl IntoIterator<Item = Self>) -> Self {
        let mut runs: Vec<Run> = parts.into_iter().flat_map(|part| part.runs).collect();
        runs.sort_unstable_by_key(|run| run.first);
        Self { runs, last: None }
    }

    /// The policy of an inode; valid after [`gather`](Self::gather).
    pub(crate) fn of(&self, inode: InodeNr) -> Option<PolicyId> {
        let end = self.runs.partition_point(|run| run.first <= inode);
        let run = self.runs.get(end.checked_sub(1)?)?;
        (inode <= run.last).then_some(run.id)
    }
}

impl PolicyIds {
    fn of(&self, policy: Policy) -> PolicyId {
        let mut ids = self.ids.lock();
        let next = PolicyId(u32::try_from(ids.len()).unwrap_or(u32::MAX));
        *ids.entry(policy).or_insert(next)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn policies_are_compared_without_the_nonce() {
        let ids = PolicyIds::default();
        let (mut one, mut two) = (PolicyRuns::default(), PolicyRuns::default());
        let context = |key: u8, nonce: u8| [[1, 1, 4, 0].to_vec(), vec![key; 8], vec![nonce; 16]];
        let add = |runs: &mut PolicyRuns, inode, key, nonce| {
            runs.add(InodeNr(inode), &context(key, nonce).concat(), &ids);
        };
        add(&mut two, 40, 7, 1);
        add(&mut two, 41, 7, 2);
        add(&mut two, 43, 7, 3);
        add(&mut one, 12, 8, 4);
        add(&mut one, 13, 7, 5);
        assert_eq!(two.runs.len(), 2);
        let all = PolicyRuns::gather([two, one]);
        let of = |inode| all.of(InodeNr(inode));
        assert!(of(13).is_some() && of(13) == of(40) && of(40) == of(41) && of(41) == of(43));
        assert!(of(12).is_some() && of(12) != of(13));
        for absent in [1, 11, 14, 39, 42, 44] {
            assert_eq!(of(absent), None, "{absent}");
        }
    }

    #[test]
    fn undefined_versions_are_one_policy() {
        let ids = PolicyIds::default();
        let mut runs = PolicyRuns::default();
        runs.add(InodeNr(12), &[3; 50], &ids);
        runs.add(InodeNr(13), &[4], &ids);
        runs.add(InodeNr(14), &[2; 40], &ids);
        assert_eq!(runs.of(InodeNr(12)), runs.of(InodeNr(13)));
        assert_ne!(runs.of(InodeNr(13)), runs.of(InodeNr(14)));
    }
}
