//! **Purpose.** Checks the hashes of entries and of blocks of attributes.

use fourscore_ondisk::dirhash::CharSign;
use fourscore_ondisk::xattr::{self, Entry, HashedValue};

/// Whether the hash of an entry is that of its name and value. The bytes of the name may count as
/// signed, as in Linux before 6.2.
pub(super) fn is_hash_of(entry: &Entry<'_>, value: HashedValue<'_>) -> bool {
    let of = |chars| xattr::entry_hash(entry.name, value, chars);
    entry.hash == of(CharSign::Unsigned) || entry.hash == of(CharSign::Signed)
}
