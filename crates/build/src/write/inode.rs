//! **Purpose.** The bytes of an inode.

use fourscore_ondisk::inode::{self, FileMode, FileType, InodeFlags, RawInode, RawInodeExtra};
use fourscore_ondisk::superblock::Superblock;
use fourscore_ondisk::{InodeNr, Timestamp};
use zerocopy::{FromZeros, IntoBytes};

use crate::bytes::{high32, low16, low32, put};
use crate::error::BuildError;
use crate::layout::{EXTRA_ISIZE, Forms, IBlock, Placed};
use crate::options::Options;
use crate::tree::{NodeId, Stored};

/// More links than a directory's inode counts.
const MOST_LINKS: u32 = 65_000;

/// Makes inodes.
pub(crate) struct InodeMaker<'a> {
    pub(crate) forms: &'a Forms,
    pub(crate) placed: &'a Placed,
    pub(crate) sb: &'a Superblock,
    pub(crate) options: &'a Options,
    /// When the file system is made.
    pub(crate) made: Timestamp,
}

impl InodeMaker<'_> {
    /// Fills in the inode of an object, which is zeroes before.
    pub(crate) fn fill(
        &self,
        node: NodeId,
        number: InodeNr,
        bytes: &mut [u8],
    ) -> Result<(), BuildError> {
        let forms = self.forms;
        let meta = self.options.clamped(forms.tree.meta(node));
        let size_bytes = forms.size_bytes(node);
        let mut raw = RawInode::new_zeroed();
        let kind = forms.tree.file_type(node);
        raw.i_mode = FileMode::new(kind, meta.permissions).0.into();
        (raw.i_uid, raw.i_uid_high) = halves(meta.uid);
        (raw.i_gid, raw.i_gid_high) = halves(meta.gid);
        raw.i_size_lo = low32(size_bytes);
        raw.i_size_high = high32(size_bytes);
        raw.i_links_count = self.links(node)?;
        self.put_blocks(node, &mut raw)?;
        raw.i_flags = self.flags(node).bits().into();
        raw.i_block = self.i_block(node, number);
        if let Some(block) = self.placed.xattr_block(node) {
            raw.i_file_acl_lo = low32(block);
            raw.i_file_acl_high = low16(block >> 32);
        }
        let times = [meta.atime, meta.ctime, meta.mtime];
        let mut extra = RawInodeExtra::default();
        let has_extra = forms.facts.has_extra();
        if has_extra {
            extra.i_extra_isize = EXTRA_ISIZE.into();
            let [atime, ctime, mtime] = times.map(Timestamp::to_inode_words);
            (raw.i_atime, extra.i_atime_extra) = (atime.0.into(), atime.1.into());
            (raw.i_ctime, extra.i_ctime_extra) = (ctime.0.into(), ctime.1.into());
            (raw.i_mtime, extra.i_mtime_extra) = (mtime.0.into(), mtime.1.into());
            let made = self.made.to_inode_words();
            (extra.i_crtime, extra.i_crtime_extra) = (made.0.into(), made.1.into());
            if forms.facts.project {
                extra.i_projid = meta.project.into();
            }
        } else {
            [raw.i_atime, raw.i_ctime, raw.i_mtime] = times.map(|time| time.to_inode_word().into());
        }
        put(bytes, 0, raw.as_bytes());
        if has_extra {
            let fixed = size_of::<RawInode>();
            put(bytes, fixed, extra.as_bytes());
            if let Some(set) = forms.set_of(node) {
                put(bytes, fixed + usize::from(EXTRA_ISIZE), &set.area);
            }
        }
        inode::seal(bytes, number, self.sb)
            .map_err(|_| BuildError::Invalid("an inode that cannot be sealed"))
    }

    fn links(&self, node: NodeId) -> Result<zerocopy::little_endian::U16, BuildError> {
        let forms = self.forms;
        let Some(list) = forms.tree.list_of(node) else {
            return Ok(low16(forms.tree.links(node).into()));
        };
        let links = forms.numbers.family(list).subdirectories.saturating_add(2);
        if links <= MOST_LINKS {
            return Ok(low16(links.into()));
        }
        if forms.facts.dir_nlink {
            return Ok(1.into());
        }
        Err(BuildError::TooManyLinks {
            path: forms.tree.path_of(node),
            links: links.into(),
            most: MOST_LINKS.into(),
        })
    }

    /// Space taken, in sectors, or where these are too many in blocks.
    fn put_blocks(&self, node: NodeId, raw: &mut RawInode) -> Result<(), BuildError> {
        let facts = &self.forms.facts;
        let blocks = self.placed.clusters(self.forms, node) << facts.cluster_log;
        let sectors = blocks << (facts.block_bits - 9);
        if sectors >> 32 != 0 && !facts.huge_file {
            return Err(BuildError::FileTooLarge {
                path: self.forms.tree.path_of(node),
                len_bytes: self.forms.size_bytes(node),
            });
        }
        raw.i_blocks_lo = low32(sectors);
        raw.i_blocks_high = low16(sectors >> 32);
        Ok(())
    }

    fn flags(&self, node: NodeId) -> InodeFlags {
        let forms = self.forms;
        let mut flags = InodeFlags::empty();
        let kind = forms.tree.file_type(node);
        let mapped = matches!(kind, FileType::Regular | FileType::Directory)
            || (kind == FileType::Symlink && !self.placed.is_empty(node));
        flags.set(InodeFlags::EXTENTS_FL, mapped && forms.facts.extents);
        let indexed = forms.shape(node).is_some_and(|shape| shape.indexed);
        flags.set(InodeFlags::INDEX_FL, indexed);
        flags
    }

    fn i_block(&self, node: NodeId, number: InodeNr) -> IBlock {
        let forms = self.forms;
        match &forms.tree.node(node).stored {
            Stored::CharDevice(number) | Stored::BlockDevice(number) => {
                // Numbers that do not fit were refused.
                number.to_i_block().unwrap_or([0; 60])
            }
            Stored::Fifo | Stored::Socket => [0; 60],
            Stored::Symlink(target) if self.placed.is_empty(node) => {
                let mut i_block = [0; 60];
                put(&mut i_block, 0, forms.tree.text(*target));
                i_block
            }
            _ => {
                let runs = self.placed.runs(forms, node);
                forms
                    .facts
                    .map(&runs, self.placed.nodes(node), number, &mut |_, _| {})
            }
        }
    }
}

fn halves(id: u32) -> (zerocopy::little_endian::U16, zerocopy::little_endian::U16) {
    (low16(id.into()), low16(u64::from(id) >> 16))
}
