//! **Purpose.** The tunables of a file system by name: those of the allocator, and those of the
//! library, which are here.
//!
//! **Locking.** One word, read when a block of an inode table is not in memory.

use fourscore_mballoc::tunables::TunableError;
use fourscore_mballoc::{Tunable, Tunables};
use fourscore_sync::atomic::{AtomicU32, Ordering};

use crate::{Error, Result};

/// Blocks of an inode table that are read together.
#[derive(Debug)]
pub(crate) struct InodeReadahead(AtomicU32);

impl Default for InodeReadahead {
    /// Linux's default.
    fn default() -> Self {
        Self(AtomicU32::new(32))
    }
}

impl InodeReadahead {
    /// The name of the tunable and of the mount option, as in Linux.
    pub(crate) const NAME: &str = "inode_readahead_blks";

    /// The number of blocks, a power of two; 0 if nothing is read ahead.
    pub(crate) fn blocks(&self) -> u32 {
        self.0.load(Ordering::Relaxed)
    }

    fn set(&self, blocks: u32) -> Result<()> {
        if blocks != 0 && !blocks.is_power_of_two() || blocks > 1 << 30 {
            return Err(Error::InvalidArgument(
                "inode_readahead_blks is 0 or a power of two up to 2^30",
            ));
        }
        self.0.store(blocks, Ordering::Relaxed);
        Ok(())
    }
}

/// Sets the tunable `name`. `tunables` are those of the allocator; `None` if the file system is
/// open for reading only.
///
/// # Errors
/// `Tunable` for an unknown name and for a value out of bounds; `InvalidArgument` for a value that
/// the tunable cannot have; `ReadOnly` if `name` is the allocator's and there is none.
pub(crate) fn set(
    tunables: Option<&Tunables>,
    readahead: &InodeReadahead,
    name: &str,
    value: u32,
) -> Result<()> {
    if name == InodeReadahead::NAME {
        return readahead.set(value);
    }
    let tunables = tunables.ok_or_else(|| Error::ReadOnly("it is open for reading".into()))?;
    tunables.set_by_name(name, value).map_err(|error| {
        match error {
            TunableError::Unknown { name, known } => TunableError::Unknown {
                name,
                known: format!("{known}, {}", InodeReadahead::NAME),
            },
            other => other,
        }
        .into()
    })
}

/// Returns the values of all tunables, by name; `tunables` as for [`set`].
pub(crate) fn values(
    tunables: Option<&Tunables>,
    readahead: &InodeReadahead,
) -> Vec<(&'static str, u32)> {
    let allocators = tunables.into_iter().flat_map(|tunables| {
        let value = |&tunable: &Tunable| (tunable.name(), tunables.get(tunable));
        Tunable::ALL.iter().map(value)
    });
    let own = (InodeReadahead::NAME, readahead.blocks());
    allocators.chain([own]).collect()
}
