//! **Purpose.** The inodes that a crash left half deleted or half truncated.
//!
//! **Model.** An inode that loses blocks or its last name is first put on record: in a chain
//! through `i_dtime` that begins in the superblock, or in a block of the orphan file. Whoever
//! writes the file system next finishes what was begun. A reader needs nothing of this: what is
//! to be deleted has no name, and what is to be cut off lies behind the file's size.
//!
//! **Invariants.** A chain that comes back to an inode is `Corrupt`, so its length is bounded by
//! the number of inodes; the orphan file by the number of its blocks.

use std::collections::HashSet;

use fourscore_block::Structure;
use fourscore_ondisk::relation::RelationError;
use fourscore_ondisk::{Corrupt, InodeNr, LogicalBlock, orphan};
use fourscore_sync::epoch;

use crate::map::Target;
use crate::{Fs, Result};

impl Fs {
    /// The inodes on record as orphans, in the order in which they are found.
    ///
    /// # Errors
    /// `Corrupt` for a chain that forms a loop or an orphan file that breaks the format.
    pub fn orphans(&self) -> Result<Vec<InodeNr>> {
        let mut orphans = self.orphan_chain()?;
        if let Some(file) = self.superblock().orphan_file_inode() {
            self.read_orphan_file(file, &mut orphans)?;
        }
        Ok(orphans)
    }

    fn orphan_chain(&self) -> Result<Vec<InodeNr>> {
        let (mut chain, mut seen) = (Vec::new(), HashSet::new());
        let mut next = self.superblock().last_orphan();
        while let Some(inode) = next {
            if !seen.insert(inode) {
                return Err(Corrupt::from(RelationError::OrphanLoop)
                    .in_inode(inode)
                    .into());
            }
            chain.push(inode);
            next = Some(InodeNr(self.load_inode(inode)?.dtime())).filter(|next| next.0 != 0);
        }
        Ok(chain)
    }

    fn read_orphan_file(&self, file: InodeNr, orphans: &mut Vec<InodeNr>) -> Result<()> {
        let guard = epoch::pin();
        let inode = self.inode(file, &guard)?;
        let end = self.size_in_blocks(inode)?;
        let seed = inode.on_disk().checksum_seed();
        for block in 0..end.0 {
            let at = LogicalBlock(block);
            let Target::Written(place) = self.map(inode, at, &guard)?.target else {
                let hole = RelationError::OrphanFileHole { found: at };
                return Err(Corrupt::from(hole).in_inode(file).into());
            };
            let sb = self.superblock();
            let check = |bytes: &[u8]| {
                orphan::parse(bytes, place, seed, sb)
                    .map(drop)
                    .map_err(|error| Corrupt::from(error).in_inode(file))
            };
            let bytes = self.metadata(place, Structure::OrphanFile, file, &guard, check)?;
            let entries = orphan::parse(bytes, place, seed, sb)
                .map_err(|error| Corrupt::from(error).in_inode(file).in_block(place))?;
            orphans.extend(entries);
        }
        Ok(())
    }
}
