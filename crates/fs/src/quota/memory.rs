//! **Purpose.** The changes of usage of a plan.

use fourscore_block::Buffer;
use fourscore_sync::Arc;

use crate::quota::counts::Local;
use crate::quota::usage::{Key, Usage};

/// The part of a plan's memory that is about quota.
#[derive(Debug, Default)]
pub(crate) struct QuotaMemory {
    /// Scratch space for the changes while they are added up.
    pub(super) changes: Vec<(Key, Usage)>,
    pub(super) charges: Vec<Charge>,
}

/// A change of the usage of one identifier, in a plan.
#[derive(Debug)]
pub(super) struct Charge {
    pub(super) local: Arc<Local>,
    /// The block of the entry; `None` if it had joined the running transaction on this core.
    pub(super) held: Option<Arc<Buffer>>,
    pub(super) usage: Usage,
    /// Whether what grows is counted against the limits.
    pub(super) is_taken: bool,
}

impl QuotaMemory {
    /// Adds the changes to the counts of their cores, in the handle that has joined.
    pub(super) fn count(&mut self) {
        for charge in self.charges.drain(..) {
            charge.local.count(charge.usage);
            if let Some(exact) = charge.local.dquot.exact.get() {
                exact.give_back(charge.usage.given_back());
            }
        }
    }

    /// Drops the contents, and gives back what was taken from limits.
    pub(crate) fn clear(&mut self) {
        self.changes.clear();
        for charge in self.charges.drain(..) {
            if let Some(exact) = charge.local.dquot.exact.get()
                && charge.is_taken
            {
                exact.give_back(charge.usage.taken().negated());
            }
        }
    }
}
