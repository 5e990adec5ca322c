//! **Purpose.** Encodes inodes.

use fourscore_ondisk::inline::InlineMut;
use fourscore_ondisk::inode::{self, FileMode, FileType, InodeFlags, RawInode, RawInodeExtra};
use fourscore_ondisk::superblock::Superblock;
use fourscore_ondisk::words::{high32, low16, low32, put};
use fourscore_ondisk::xattr::EaInode;
use fourscore_ondisk::{InodeNr, Timestamp};
use zerocopy::{FromZeros, IntoBytes};

use crate::error::BuildError;
use crate::layout::{EXTRA_ISIZE, Forms, IBlock, Placed, Shape};
use crate::options::Options;
use crate::tree::{NodeId, Stored};

/// The largest link count of a directory.
const MAX_LINKS: u32 = 65_000;

/// Encodes inodes.
pub(crate) struct InodeMaker<'a> {
    pub(crate) forms: &'a Forms,
    pub(crate) placed: &'a Placed,
    pub(crate) sb: &'a Superblock,
    pub(crate) options: &'a Options,
    /// The creation time of the file system.
    pub(crate) made: Timestamp,
}

impl InodeMaker<'_> {
    /// Encodes the inode of an object into `bytes`, which are zeroes. `content` is the data of a
    /// file or symbolic link that is stored in its inode.
    pub(crate) fn fill(
        &self,
        node: NodeId,
        number: InodeNr,
        bytes: &mut [u8],
        content: &[u8],
    ) -> Result<(), BuildError> {
        let forms = self.forms;
        let meta = self.options.clamped(forms.tree.meta(node));
        let has_extra = forms.facts.has_extra();
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
        raw.i_block = self.i_block(node, number)?;
        if let Some(block) = self.placed.xattr_block(node) {
            raw.i_file_acl_lo = low32(block);
            raw.i_file_acl_high = low16(block >> 32);
        }
        let times = [meta.atime, meta.ctime, meta.mtime];
        let mut extra = RawInodeExtra::default();
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
        if has_extra {
            let fixed = size_of::<RawInode>();
            put(bytes, fixed, extra.as_bytes());
            let after = fixed + usize::from(EXTRA_ISIZE);
            let area = bytes.get_mut(after..).unwrap_or_default();
            if let Some(set) = forms.set_of(node) {
                put(area, 0, &set.area);
            }
            if forms.is_inline(node) {
                self.fill_inline(node, &mut raw.i_block, area, content)?;
            }
        }
        put(bytes, 0, raw.as_bytes());
        self.seal(bytes, number)
    }

    fn links(&self, node: NodeId) -> Result<zerocopy::little_endian::U16, BuildError> {
        let forms = self.forms;
        let Some(list) = forms.tree.list_of(node) else {
            return Ok(low16(forms.tree.links(node).into()));
        };
        let links = forms
            .numbers
            .directory_info(list)
            .subdirectories
            .saturating_add(2);
        if links <= MAX_LINKS {
            return Ok(low16(links.into()));
        }
        if forms.facts.dir_nlink {
            return Ok(1.into());
        }
        Err(BuildError::TooManyLinks {
            path: forms.tree.path_of(node),
            links: links.into(),
            most: MAX_LINKS.into(),
        })
    }

    /// Stores the data of an object in its inode, after its attributes. The layout has ensured that
    /// it fits.
    fn fill_inline(
        &self,
        node: NodeId,
        i_block: &mut IBlock,
        area: &mut [u8],
        content: &[u8],
    ) -> Result<(), BuildError> {
        let invalid = || BuildError::Invalid("content that does not fit its inode");
        let directory = self.forms.directory(node);
        let len_bytes = match &directory {
            Some(directory) => directory.shape.size_bytes(&self.forms.facts),
            None => content.len() as u64,
        };
        let len_bytes = usize::try_from(len_bytes).map_err(|_| invalid())?;
        let mut inline = InlineMut::init(i_block, area).map_err(|_| invalid())?;
        inline.resize(len_bytes).map_err(|_| invalid())?;
        let filled = match directory {
            Some(directory) => inline
                .parts_mut()
                .and_then(|(first, second)| directory.fill_inline(first, second))
                .is_ok(),
            None => inline.write_at(0, content) == Ok(true),
        };
        filled.then_some(()).ok_or_else(invalid)
    }

    /// Encodes the inode of a large attribute value into `bytes`, which are zeroes. Hash and
    /// reference count of the value are stored in the fields of times and version.
    pub(crate) fn fill_value(
        &self,
        value: usize,
        number: InodeNr,
        bytes: &mut [u8],
    ) -> Result<(), BuildError> {
        let forms = self.forms;
        let Some(stored) = forms.values.get(value) else {
            return Err(BuildError::Invalid("an inode without a value"));
        };
        let user = forms.tree.meta(stored.user);
        let mut raw = RawInode::new_zeroed();
        raw.i_mode = FileMode::new(FileType::Regular, 0o600).0.into();
        (raw.i_uid, raw.i_uid_high) = halves(user.uid);
        (raw.i_gid, raw.i_gid_high) = halves(user.gid);
        raw.i_size_lo = low32(stored.len_bytes());
        raw.i_links_count = 1.into();
        raw.i_blocks_lo = low32(self.sectors(self.placed.value_clusters(forms, value)));
        let mut flags = InodeFlags::EA_INODE_FL;
        flags.set(InodeFlags::EXTENTS_FL, forms.facts.extents);
        raw.i_flags = flags.bits().into();
        let runs = self.placed.value_runs(forms, value);
        let nodes = self.placed.value_nodes(value);
        raw.i_block = forms.facts.map(&runs, nodes, number, &mut |_, _| {})?;
        EaInode {
            refs: stored.refs,
            value_hash: stored.hash,
            lustre_parent: InodeNr(0),
        }
        .put(&mut raw);
        put(bytes, 0, raw.as_bytes());
        if forms.facts.has_extra() {
            let made = self.made.to_inode_words();
            let extra = RawInodeExtra {
                i_extra_isize: EXTRA_ISIZE.into(),
                i_crtime: made.0.into(),
                i_crtime_extra: made.1.into(),
                ..RawInodeExtra::default()
            };
            put(bytes, size_of::<RawInode>(), extra.as_bytes());
        }
        self.seal(bytes, number)
    }

    fn seal(&self, bytes: &mut [u8], number: InodeNr) -> Result<(), BuildError> {
        inode::seal(bytes, number, self.sb)
            .map_err(|_| BuildError::Invalid("an inode that cannot be sealed"))
    }

    /// Converts clusters to sectors.
    fn sectors(&self, clusters: u64) -> u64 {
        let facts = &self.forms.facts;
        clusters << facts.cluster_log << (facts.block_bits - 9)
    }

    /// Sets the number of sectors. An error if it needs the feature `huge_file`.
    fn put_blocks(&self, node: NodeId, raw: &mut RawInode) -> Result<(), BuildError> {
        let sectors = self.sectors(self.placed.clusters(self.forms, node));
        if sectors >> 32 != 0 && !self.forms.facts.huge_file {
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
        if forms.is_inline(node) {
            return InodeFlags::INLINE_DATA_FL;
        }
        let mut flags = InodeFlags::empty();
        let kind = forms.tree.file_type(node);
        let mapped = matches!(kind, FileType::Regular | FileType::Directory)
            || (kind == FileType::Symlink && !self.placed.is_empty(node));
        flags.set(InodeFlags::EXTENTS_FL, mapped && forms.facts.extents);
        let indexed = matches!(forms.shape(node), Some(Shape::Indexed { .. }));
        flags.set(InodeFlags::INDEX_FL, indexed);
        flags
    }

    fn i_block(&self, node: NodeId, number: InodeNr) -> Result<IBlock, BuildError> {
        let forms = self.forms;
        if forms.is_inline(node) {
            return Ok([0; 60]);
        }
        Ok(match &forms.tree.node(node).stored {
            Stored::CharDevice(number) | Stored::BlockDevice(number) => {
                // Device numbers that do not fit were refused before.
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
                    .map(&runs, self.placed.nodes(node), number, &mut |_, _| {})?
            }
        })
    }
}

fn halves(id: u32) -> (zerocopy::little_endian::U16, zerocopy::little_endian::U16) {
    (low16(id.into()), low16(u64::from(id) >> 16))
}
