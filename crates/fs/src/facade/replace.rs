//! **Purpose.** [`replace_blocks`]: replaces blocks of an unmounted file system, all or none.

use std::collections::BTreeMap;

use fourscore_block::BlockDevice;
use fourscore_ondisk::PhysBlock;
use fourscore_sync::Arc;

use crate::mount::one_transaction::{self, Plan};
use crate::{Error, MountOptions, Result};

/// Replaces blocks of the file system on `device`, which nothing else has open, such that a crash
/// at any moment leaves all of the new contents or none. Each content is a whole block, and one of
/// the blocks is that of the superblock, in its state of a file system that is not mounted.
///
/// This is for programs that change the structure of a file system. The contents are written as
/// they are; what they mean is not checked. When this returns they are durable in their places and
/// the journal is empty. Earlier writes to the device are durable before the first of them.
///
/// # Errors
/// `NotOneTransaction` if the blocks are more than the journal holds at once, before anything was
/// written; `Unsupported` for a file system without a journal of its own, with the feature `mmp`,
/// or with a journal that has to be replayed; `InvalidArgument` for contents that are not whole
/// blocks with a superblock; `Io`.
pub fn replace_blocks(
    device: &Arc<dyn BlockDevice>,
    blocks: &BTreeMap<PhysBlock, Vec<u8>>,
    options: &MountOptions,
) -> Result<()> {
    let plan = Plan::new(device, options)?;
    if plan.needs_recovery() {
        return Err(Error::Unsupported("its journal needs recovery".into()));
    }
    one_transaction::replace(device, blocks, &plan)
}
