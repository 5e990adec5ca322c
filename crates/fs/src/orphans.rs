//! **Purpose.** The inodes that a crash left half deleted or half truncated.
//!
//! **Model.** An inode that loses blocks or its last name is first put on record: in a chain
//! through `i_dtime` that begins in the superblock, or in a block of the orphan file. Whoever
//! writes the file system next finishes what was begun. A reader needs nothing of this: what is
//! to be deleted has no name, and what is to be cut off lies behind the file's size.
//!
//! **Invariants.** An inode that is on record twice is `Corrupt`, so no chain that comes back to
//! itself makes the list grow without end. A file longer than the kernel takes is `Corrupt` too, so
//! none that maps the same block again and again is read for ever.

use std::collections::HashSet;

use fourscore_block::Structure;
use fourscore_ondisk::relation::RelationError;
use fourscore_ondisk::{Corrupt, InodeNr, LogicalBlock, orphan};
use fourscore_sync::epoch;

use crate::map::Target;
use crate::{Fs, Result};

/// The longest orphan file that the kernel and e2fsprogs take, in bytes.
const ORPHAN_FILE_BYTES_MAX: u64 = 8 << 20;

impl Fs {
    /// The inodes on record as orphans, in the order in which they are found.
    ///
    /// # Errors
    /// `Corrupt` for a chain that forms a loop, and for an orphan file that breaks the format or is
    /// longer than 8 MiB.
    pub fn orphans(&self) -> Result<Vec<InodeNr>> {
        let mut orphans = Orphans::default();
        self.read_orphan_chain(&mut orphans)?;
        if let Some(file) = self.superblock().orphan_file_inode() {
            self.read_orphan_file(file, &mut orphans)?;
        }
        Ok(orphans.list)
    }

    fn read_orphan_chain(&self, orphans: &mut Orphans) -> Result<()> {
        let mut next = self.superblock().last_orphan();
        while let Some(inode) = next {
            orphans.add(inode)?;
            next = Some(InodeNr(self.load_inode(inode)?.dtime())).filter(|next| next.0 != 0);
        }
        Ok(())
    }

    fn read_orphan_file(&self, file: InodeNr, orphans: &mut Orphans) -> Result<()> {
        let guard = epoch::pin();
        let inode = self.inode(file, &guard)?;
        if inode.size_bytes() > ORPHAN_FILE_BYTES_MAX {
            let error = RelationError::OrphanFileSize {
                found_bytes: inode.size_bytes(),
                limit_bytes: ORPHAN_FILE_BYTES_MAX,
            };
            return Err(Corrupt::from(error).in_inode(file).into());
        }
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
            entries
                .into_iter()
                .try_for_each(|inode| orphans.add(inode))?;
        }
        Ok(())
    }
}

/// The orphans found so far.
#[derive(Default)]
struct Orphans {
    list: Vec<InodeNr>,
    seen: HashSet<InodeNr>,
}

impl Orphans {
    fn add(&mut self, inode: InodeNr) -> Result<()> {
        if !self.seen.insert(inode) {
            return Err(Corrupt::from(RelationError::OrphanTwice)
                .in_inode(inode)
                .into());
        }
        self.list.push(inode);
        Ok(())
    }
}
