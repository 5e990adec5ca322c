//! **Purpose.** Reads metadata blocks through the buffer cache, each checked as the structure that
//! the caller expects.
//!
//! **Model.** A caller names a block, the structure it expects and the inode that the block belongs
//! to, and passes the check. The check runs unless these bytes have passed it before for that
//! structure and that inode. The bytes live as long as the caller's guard.
//!
//! **Locking.** None. A block that is not in memory is noted in the guard ([`crate::guard`]).

use fourscore_block::{Structure, VerifiedAs};
use fourscore_ondisk::{Corrupt, InodeNr, PhysBlock};

use crate::Result;
use crate::core::Core;
use crate::guard::Guard;

/// Returns the bytes of `block`, which `check` has accepted as `structure` of `owner`.
pub(crate) fn metadata<'g>(
    core: &Core,
    block: PhysBlock,
    structure: Structure,
    owner: InodeNr,
    guard: &'g Guard,
    check: impl FnOnce(&[u8]) -> std::result::Result<(), Corrupt>,
) -> Result<&'g [u8]> {
    tagged_metadata(core, block, VerifiedAs::new(structure, owner), guard, check)
}

/// Returns the bytes of `block`, which `check` has accepted as the structure in `tag`.
pub(crate) fn tagged_metadata<'g>(
    core: &Core,
    block: PhysBlock,
    tag: VerifiedAs,
    guard: &'g Guard,
    check: impl FnOnce(&[u8]) -> std::result::Result<(), Corrupt>,
) -> Result<&'g [u8]> {
    let buffer = guard.buffer(core, block)?;
    Ok(buffer.verified(tag, guard, |bytes| {
        check(bytes).map_err(|e| e.in_block(block))
    })?)
}

/// Returns the bytes of a block whose parts are checked one by one: descriptors, inodes.
pub(crate) fn unchecked_metadata<'g>(
    core: &Core,
    block: PhysBlock,
    guard: &'g Guard,
) -> Result<&'g [u8]> {
    Ok(guard.buffer(core, block)?.bytes(guard))
}

/// Returns the result of `look` on the bytes of `block`, after `check` has accepted them as the
/// structure in `tag`. For callers that examine a block before it is changed, as
/// [`fourscore_block::Buffer::look_verified`] says.
pub(crate) fn look_at_metadata<R>(
    core: &Core,
    block: PhysBlock,
    tag: VerifiedAs,
    guard: &Guard,
    check: impl FnOnce(&[u8]) -> std::result::Result<(), Corrupt>,
    look: impl FnOnce(&[u8]) -> R,
) -> Result<R> {
    let check = |bytes: &[u8]| check(bytes).map_err(|error| error.in_block(block));
    Ok(guard.buffer(core, block)?.look_verified(tag, check, look)?)
}
