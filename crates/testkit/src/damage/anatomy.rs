//! **Purpose.** Finds the structures of a sound image and their places.

use std::collections::BTreeMap;
use std::fs::File;
use std::ops::Range;
use std::os::unix::fs::FileExt;

use anyhow::{Context, Result};
use fourscore_ondisk::blockmap;
use fourscore_ondisk::extent::{LOGICAL_END, Node};
use fourscore_ondisk::htree;
use fourscore_ondisk::inode::{FileType, InodeFlags};
use fourscore_ondisk::superblock::{JournalPlace, SUPERBLOCK_OFFSET_BYTES, SUPERBLOCK_SIZE_BYTES};
use fourscore_ondisk::{
    GroupDesc, GroupNr, GroupOffset, Inode, InodeNr, PhysBlock, RawSuperblock, Superblock,
};

/// A kind of structure.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Kind {
    /// The primary superblock.
    Superblock,
    /// A group descriptor of the primary table.
    Descriptor,
    /// A block bitmap.
    BlockBitmap,
    /// An inode bitmap.
    InodeBitmap,
    /// An inode in use.
    Inode,
    /// A node of an extent tree outside its inode.
    ExtentNode,
    /// An indirect block.
    Indirect,
    /// A block of directory entries.
    Leaf,
    /// The root of a hashed directory.
    IndexRoot,
    /// Another index block of a hashed directory.
    IndexNode,
    /// A block of attributes.
    Xattrs,
    /// A block of the orphan file.
    Orphans,
    /// The superblock of the journal.
    Journal,
    /// A block of a quota file.
    Quota,
}

/// A structure in an image.
#[derive(Clone, Copy, Debug)]
pub struct Site {
    /// Its kind.
    pub kind: Kind,
    /// Its offset, in bytes.
    pub at: u64,
    /// Its length in bytes.
    pub length: usize,
    /// The inode that it belongs to, if any.
    pub inode: Option<InodeNr>,
    /// The group that it belongs to, if any.
    pub group: Option<GroupNr>,
}

/// The structures of an image.
#[derive(Debug)]
pub struct Anatomy {
    sb: Superblock,
    sites: BTreeMap<Kind, Vec<Site>>,
    /// The offset of each group descriptor.
    descriptors: Vec<u64>,
    /// Generations of inodes, for the seeds of checksums.
    inodes: BTreeMap<InodeNr, u64>,
    blocks: Vec<u64>,
}

impl Anatomy {
    /// Finds all structures.
    pub(super) fn of(file: &File) -> Result<Self> {
        let mut bytes = [0; SUPERBLOCK_SIZE_BYTES];
        file.read_exact_at(&mut bytes, SUPERBLOCK_OFFSET_BYTES)?;
        let sb = Superblock::try_from(RawSuperblock::from_bytes(&bytes)?)?;
        let mut anatomy = Self {
            sb,
            sites: BTreeMap::new(),
            descriptors: Vec::new(),
            inodes: BTreeMap::new(),
            blocks: Vec::new(),
        };
        anatomy.add(Site {
            kind: Kind::Superblock,
            at: SUPERBLOCK_OFFSET_BYTES,
            length: SUPERBLOCK_SIZE_BYTES,
            inode: None,
            group: None,
        });
        for nr in 0..anatomy.sb.geometry().groups() {
            anatomy.group(GroupNr(nr), file)?;
        }
        Ok(anatomy)
    }

    /// The superblock of the sound image.
    #[must_use]
    pub fn superblock(&self) -> &Superblock {
        &self.sb
    }

    /// The kinds that the image has.
    #[must_use]
    pub fn kinds(&self) -> Vec<Kind> {
        self.sites.keys().copied().collect()
    }

    /// The structures of a kind.
    #[must_use]
    pub fn sites(&self, kind: Kind) -> &[Site] {
        self.sites.get(&kind).map_or(&[], Vec::as_slice)
    }

    /// An inode, in use or not; `None` if the number is invalid.
    #[must_use]
    pub fn inode_site(&self, nr: InodeNr) -> Option<Site> {
        Some(Site {
            kind: Kind::Inode,
            at: self.inode(nr)?,
            length: self.sb.geometry().inode_size_bytes(),
            inode: Some(nr),
            group: None,
        })
    }

    /// A block as a structure of a kind.
    #[must_use]
    pub fn block_site(&self, kind: Kind, block: PhysBlock, inode: Option<InodeNr>) -> Site {
        Site {
            kind,
            at: self.offset(block),
            length: self.block_bytes(),
            inode,
            group: None,
        }
    }

    /// A block of some structure or file.
    pub(super) fn some_block(&self, bits: u64) -> u64 {
        let count = self.blocks.len().max(1) as u64;
        let nth = usize::try_from(bits % count).unwrap_or(0);
        self.blocks.get(nth).copied().unwrap_or(1)
    }

    /// The offset of a group descriptor.
    pub(super) fn descriptor(&self, group: GroupNr) -> Option<u64> {
        self.descriptors.get(group.0 as usize).copied()
    }

    /// The offset of an inode.
    pub(super) fn inode(&self, nr: InodeNr) -> Option<u64> {
        self.inodes.get(&nr).copied()
    }

    fn add(&mut self, site: Site) {
        self.sites.entry(site.kind).or_default().push(site);
    }

    fn block_bytes(&self) -> usize {
        self.sb.geometry().block_size().bytes()
    }

    fn offset(&self, block: PhysBlock) -> u64 {
        self.sb.geometry().block_size().offset(block)
    }

    fn read(&self, file: &File, block: PhysBlock) -> Result<Vec<u8>> {
        let mut bytes = vec![0; self.block_bytes()];
        file.read_exact_at(&mut bytes, self.offset(block))
            .with_context(|| format!("block {block}"))?;
        Ok(bytes)
    }

    fn group(&mut self, nr: GroupNr, file: &File) -> Result<()> {
        let geometry = *self.sb.geometry();
        let place = geometry
            .desc_place(nr)
            .context("a group without a descriptor")?;
        let block = self.read(file, place.block)?;
        let bytes = block.get(place.offset_bytes..).unwrap_or(&[]);
        let desc = GroupDesc::parse(bytes, nr, &self.sb)?;
        let at = self.offset(place.block) + place.offset_bytes as u64;
        self.descriptors.push(at);
        let site = |kind, at, length| Site {
            kind,
            at,
            length,
            inode: None,
            group: Some(nr),
        };
        self.add(site(Kind::Descriptor, at, geometry.desc_size_bytes()));
        let bitmaps = [
            (Kind::BlockBitmap, desc.block_bitmap()),
            (Kind::InodeBitmap, desc.inode_bitmap()),
        ];
        for (kind, block) in bitmaps {
            self.blocks.push(block.0);
            self.add(site(kind, self.offset(block), self.block_bytes()));
        }
        self.blocks.push(desc.inode_table().0);
        for index in 0..geometry.inodes_per_group() {
            let number = geometry.inode_at(nr, GroupOffset(index));
            let place = geometry.inode_place(desc.inode_table(), GroupOffset(index));
            let at = self.offset(place.block) + place.offset_bytes as u64;
            if let Some(number) = number {
                self.find_in_inode(number, at, file)?;
            }
        }
        Ok(())
    }

    fn find_in_inode(&mut self, nr: InodeNr, at: u64, file: &File) -> Result<()> {
        let length = self.sb.geometry().inode_size_bytes();
        let mut bytes = vec![0; length];
        file.read_exact_at(&mut bytes, at)?;
        self.inodes.insert(nr, at);
        let Ok(inode) = Inode::parse(&bytes, nr, &self.sb) else {
            return Ok(());
        };
        if inode.links_count() == 0 || inode.file_type().is_none() {
            return Ok(());
        }
        self.add(Site {
            kind: Kind::Inode,
            at,
            length,
            inode: Some(nr),
            group: None,
        });
        if let Some(block) = inode.file_acl() {
            self.add_block(Kind::Xattrs, block, nr);
        }
        let mut runs = Vec::new();
        if inode.flags().contains(InodeFlags::INLINE_DATA_FL) {
            return Ok(());
        }
        if inode.flags().contains(InodeFlags::EXTENTS_FL) {
            self.nodes(nr, inode.i_block(), file, &mut runs)?;
        } else if matches!(
            inode.file_type(),
            Some(FileType::Regular | FileType::Directory)
        ) && nr >= self.sb.first_inode()
        {
            self.pointers(nr, inode.i_block(), file, &mut runs)?;
        }
        self.content(&inode, &runs, file)
    }

    fn add_block(&mut self, kind: Kind, block: PhysBlock, inode: InodeNr) {
        self.blocks.push(block.0);
        self.add(self.block_site(kind, block, Some(inode)));
    }

    /// Finds the nodes of a tree, and the blocks that its leaves map.
    fn nodes(
        &mut self,
        nr: InodeNr,
        node: &[u8],
        file: &File,
        runs: &mut Vec<Range<u64>>,
    ) -> Result<()> {
        match Node::parse(node)? {
            Node::Leaf(leaf) => {
                for extent in leaf.iter() {
                    let start = extent.physical.0;
                    runs.push(start..start + u64::from(extent.blocks));
                }
            }
            Node::Inner(inner) => {
                for position in 0..inner.len() {
                    let child = inner.get(position, LOGICAL_END).context("an entry")?;
                    self.add_block(Kind::ExtentNode, child.block, nr);
                    let below = self.read(file, child.block)?;
                    self.nodes(nr, &below, file, runs)?;
                }
            }
        }
        Ok(())
    }

    /// Finds the indirect blocks of an inode, and the blocks that it maps.
    fn pointers(
        &mut self,
        nr: InodeNr,
        i_block: &[u8],
        file: &File,
        runs: &mut Vec<Range<u64>>,
    ) -> Result<()> {
        for slot in 0..12 {
            if let Some(block) = blockmap::pointer(i_block, slot) {
                runs.push(block.0..block.0 + 1);
            }
        }
        for depth in 1..=3_u16 {
            if let Some(block) = blockmap::pointer(i_block, 11 + depth) {
                self.indirect(nr, block, depth, file, runs)?;
            }
        }
        Ok(())
    }

    fn indirect(
        &mut self,
        nr: InodeNr,
        block: PhysBlock,
        depth: u16,
        file: &File,
        runs: &mut Vec<Range<u64>>,
    ) -> Result<()> {
        self.add_block(Kind::Indirect, block, nr);
        let bytes = self.read(file, block)?;
        let slots = u16::try_from(bytes.len() / 4).unwrap_or(u16::MAX);
        for slot in 0..slots {
            let Some(target) = blockmap::pointer(&bytes, slot) else {
                continue;
            };
            if depth == 1 {
                runs.push(target.0..target.0 + 1);
            } else {
                self.indirect(nr, target, depth - 1, file, runs)?;
            }
        }
        Ok(())
    }

    /// Classifies the blocks of directories and of hidden files.
    fn content(&mut self, inode: &Inode, runs: &[Range<u64>], file: &File) -> Result<()> {
        let nr = inode.number();
        self.blocks.extend(runs.iter().map(|run| run.start));
        let quota = self.sb.quota_inodes();
        let blocks = || runs.iter().cloned().flatten().map(PhysBlock);
        let own = if self.sb.orphan_file_inode() == Some(nr) {
            Some((Kind::Orphans, usize::MAX))
        } else if self.sb.journal() == Some(JournalPlace::Inode(nr)) {
            Some((Kind::Journal, 1))
        } else if [quota.user, quota.group, quota.project].contains(&Some(nr)) {
            Some((Kind::Quota, usize::MAX))
        } else {
            None
        };
        if let Some((kind, most)) = own {
            for block in blocks().take(most) {
                self.add_block(kind, block, nr);
            }
            return Ok(());
        }
        if inode.file_type() != Some(FileType::Directory) {
            return Ok(());
        }
        let is_indexed = inode.flags().contains(InodeFlags::INDEX_FL);
        for (nth, block) in blocks().enumerate() {
            let kind = if is_indexed && nth == 0 {
                Kind::IndexRoot
            } else if is_indexed && htree::looks_like_node(&self.read(file, block)?) {
                Kind::IndexNode
            } else {
                Kind::Leaf
            };
            self.add_block(kind, block, nr);
        }
        Ok(())
    }
}
