//! **Purpose.** Lists identifiers whose entries may have neither usage nor limits.
//!
//! **Not here.** Removing the entries ([`crate::quota::entries`]).
//!
//! **Model.** An identifier is listed when its entry is added, since the plan that needs it may
//! fail, and when a seal or a change of limits leaves nothing in it. A thread that takes it off the
//! list looks at the entry, which may be in use again.
//!
//! **Invariants.** An identifier is listed once, and the list is bounded. One that finds no space
//! there keeps its entry until it is listed again.
//!
//! **Locking.** One lock, a leaf.

use std::collections::{HashSet, VecDeque};

use fourscore_sync::Mutex;

use crate::quota::usage::Key;

/// The most identifiers that are listed.
const MOST_LISTED: usize = 8192;

/// Identifiers to look at, the oldest first.
#[derive(Debug, Default)]
pub(super) struct Idle {
    list: Mutex<List>,
}

#[derive(Debug, Default)]
struct List {
    queue: VecDeque<Key>,
    /// What is in `queue`.
    listed: HashSet<Key>,
}

impl Idle {
    /// Lists an identifier, unless it is listed.
    pub(super) fn note(&self, key: Key) {
        let list = &mut *self.list.lock();
        if list.queue.len() < MOST_LISTED && list.listed.insert(key) {
            list.queue.push_back(key);
        }
    }

    /// Takes the oldest identifier off the list.
    pub(super) fn take(&self) -> Option<Key> {
        let list = &mut *self.list.lock();
        let key = list.queue.pop_front()?;
        list.listed.remove(&key);
        Some(key)
    }

    /// Returns the number of identifiers on the list.
    pub(super) fn len(&self) -> usize {
        self.list.lock().queue.len()
    }
}

#[cfg(all(test, not(feature = "shuttle")))]
mod tests {
    use fourscore_ondisk::quota::QuotaKind;

    use super::*;

    #[test]
    fn an_identifier_is_listed_once_and_the_list_is_bounded() {
        let idle = Idle::default();
        let key = |id| Key {
            kind: QuotaKind::User,
            id,
        };
        for id in [1, 2, 1] {
            idle.note(key(id));
        }
        assert_eq!(idle.take(), Some(key(1)));
        idle.note(key(1));
        assert_eq!([idle.take(), idle.take()], [2, 1].map(|id| Some(key(id))));
        assert_eq!(idle.take(), None);
        for id in 0..20_000 {
            idle.note(key(id));
        }
        assert_eq!(idle.len(), MOST_LISTED);
    }
}
