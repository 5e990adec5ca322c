//! **Purpose.** Our sharing cache, as a mount with the default options has it, automatic bypass
//! included.
//!
//! **Locking.** That of [`fourscore::lab::SharingAlone`].

use fourscore::MountOptions;
use fourscore::lab::SharingAlone;

use super::{AttributeCache, Taken};

/// The sharing cache of the file system.
#[derive(Debug)]
pub struct Ours(SharingAlone);

impl Ours {
    /// Returns the cache of a mount with these options; `None` if it shares nothing.
    #[must_use]
    pub fn new(options: &MountOptions) -> Option<Self> {
        SharingAlone::new(options).map(Self)
    }
}

impl AttributeCache for Ours {
    fn name(&self) -> &'static str {
        "fourscore"
    }

    fn take(&self, content: &[u8]) -> Taken {
        let taken = self.0.take(content).expect("there are fewer blocks");
        Taken {
            block: taken.block,
            was_shared: taken.was_shared,
        }
    }

    fn give_back(&self, block: u64) {
        self.0.give_back(block);
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeMap;

    use fourscore::XattrSharing;
    use fourscore_sync::CoreNr;

    use super::*;
    use crate::attribute_cache::MOST_USERS;

    fn ours() -> Ours {
        let options = MountOptions::new().xattr_sharing(XattrSharing::On);
        Ours::new(&options).expect("it shares")
    }

    /// The thread may wander between cores, which have blocks of their own then.
    #[test]
    fn equal_contents_share_blocks_up_to_the_limit() {
        let cache = ours();
        let mut users: BTreeMap<u64, u32> = BTreeMap::new();
        for _ in 0..2 * MOST_USERS {
            *users.entry(cache.take(b"same").block).or_default() += 1;
        }
        assert!(
            users.values().all(|&users| users <= MOST_USERS),
            "{users:?}"
        );
        assert!(users.len() <= 2 + CoreNr::count(), "{users:?}");
        let (&other, _) = users.first_key_value().expect("a block");
        assert!(!cache.take(b"other").was_shared);
        // A block that was full takes another user when it loses one.
        cache.give_back(other);
        assert!(cache.take(b"same").was_shared);
    }

    #[test]
    fn a_block_is_gone_with_its_last_user_and_its_number_is_used_again() {
        let cache = ours();
        let first = cache.take(b"one");
        assert!(cache.take(b"one").was_shared);
        cache.give_back(first.block);
        assert!(cache.take(b"one").was_shared, "it has a user");
        cache.give_back(first.block);
        cache.give_back(first.block);
        assert!(!cache.take(b"one").was_shared);
    }
}
