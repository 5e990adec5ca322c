//! **Purpose.** The file system under check: its device, its superblock, and its group descriptors
//! with the places in them that are valid.

use std::io;
use std::ops::Range;

use fourscore_block::BlockDevice;
use fourscore_ondisk::dirent::{DirFormat, NameForm, TypeByte};
use fourscore_ondisk::features::{Compat, Incompat, RoCompat};
use fourscore_ondisk::xattr::EaInodes;
use fourscore_ondisk::{
    BlockCount, ChecksumSeed, Geometry, GroupDesc, GroupNr, GroupOffset, InodeNr, InodeSeed,
    PhysBlock, Superblock,
};
use fourscore_sync::Arc;

use crate::inode::InodeView;
use crate::replay::Changes;

/// The file system.
#[derive(Debug)]
pub(crate) struct Volume {
    pub(crate) device: Arc<dyn BlockDevice>,
    pub(crate) sb: Superblock,
    pub(crate) groups: Vec<Group>,
    /// The copy of the journal's inode in the superblock, if it replaces an unusable inode.
    pub(crate) journal_copy: Option<(InodeNr, Vec<u8>)>,
    /// What fast commits change beside the device.
    pub(crate) changes: Changes,
}

/// A group as its descriptor gives it. An invalid place is `None`: nothing is read there.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Group {
    pub(crate) desc: GroupDesc,
    pub(crate) block_bitmap: Option<PhysBlock>,
    pub(crate) inode_bitmap: Option<PhysBlock>,
    pub(crate) inode_table: Option<PhysBlock>,
}

impl Group {
    /// The group of a descriptor, with the places that lie inside the file system.
    pub(crate) fn new(desc: GroupDesc, geometry: &Geometry) -> Self {
        let inside = |start: PhysBlock, count: u32| {
            let sound = start.0 > 0 && geometry.contains(start, BlockCount(count.into()));
            sound.then_some(start)
        };
        Self {
            desc,
            block_bitmap: inside(desc.block_bitmap(), 1),
            inode_bitmap: inside(desc.inode_bitmap(), 1),
            inode_table: inside(desc.inode_table(), geometry.inode_table_blocks()),
        }
    }
}

/// A file that only the superblock names.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum HiddenFile {
    Orphans,
    UserQuota,
    GroupQuota,
    ProjectQuota,
}

impl HiddenFile {
    /// The field that names it, and the feature that it belongs to.
    pub(crate) const fn field(self) -> (&'static str, &'static str) {
        match self {
            Self::Orphans => ("s_orphan_file_inum", "orphan_file"),
            Self::UserQuota => ("s_usr_quota_inum", "quota"),
            Self::GroupQuota => ("s_grp_quota_inum", "quota"),
            Self::ProjectQuota => ("s_prj_quota_inum", "quota"),
        }
    }
}

/// A hidden file that the superblock must not name.
#[derive(Clone, Copy, Debug)]
pub(crate) struct FalseFile {
    pub(crate) file: HiddenFile,
    pub(crate) inode: InodeNr,
}

/// A copy of a block of descriptors.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct DescCopy {
    /// The group that holds it.
    pub(crate) holder: GroupNr,
    pub(crate) place: PhysBlock,
}

impl Volume {
    /// With `meta_bg`, the copies of block `index` of the descriptors, which is none of the first
    /// ones: in the second and in the last of the groups that it describes, behind the backup of
    /// the superblock if there is one.
    pub(crate) fn meta_group_copies(&self, index: u32) -> Vec<DescCopy> {
        let geometry = self.geometry();
        let per_block = geometry.descs_per_block();
        let first = index.saturating_mul(per_block);
        let mut holders = vec![
            first.saturating_add(1),
            first.saturating_add(per_block.saturating_sub(1)),
        ];
        holders.dedup();
        let holders = holders.into_iter().map(GroupNr);
        let holders = holders.filter(|group| group.0 > first && geometry.has_group(*group));
        let copy = |holder| {
            let start = geometry.group_first_block(holder).0;
            let place = PhysBlock(start + u64::from(geometry.has_super(holder)));
            DescCopy { holder, place }
        };
        holders.map(copy).collect()
    }

    pub(crate) fn geometry(&self) -> &Geometry {
        self.sb.geometry()
    }

    pub(crate) fn block_bytes(&self) -> usize {
        self.geometry().block_size().bytes()
    }

    pub(crate) fn group(&self, group: GroupNr) -> Option<&Group> {
        self.groups.get(group.0 as usize)
    }

    pub(crate) fn compat(&self, feature: Compat) -> bool {
        self.sb.features().compat.contains(feature)
    }

    pub(crate) fn incompat(&self, feature: Incompat) -> bool {
        self.sb.features().incompat.contains(feature)
    }

    pub(crate) fn ro_compat(&self, feature: RoCompat) -> bool {
        self.sb.features().ro_compat.contains(feature)
    }

    /// Whether descriptors have checksums, so that groups may be marked uninitialised.
    pub(crate) fn has_group_checksums(&self) -> bool {
        self.ro_compat(RoCompat::GDT_CSUM) || self.sb.has_metadata_csum()
    }

    /// Whether a block belongs to descriptors, a bitmap or an inode table.
    pub(crate) fn has_table_at(&self, block: PhysBlock) -> bool {
        let geometry = self.geometry();
        let inodes = u64::from(geometry.inode_table_blocks());
        let is_in = |group: &Group| {
            let bitmaps = [group.block_bitmap, group.inode_bitmap];
            let table = group.inode_table;
            bitmaps.contains(&Some(block))
                || table.is_some_and(|first| (first.0..first.0 + inodes).contains(&block.0))
        };
        let descriptors = geometry.primary_table();
        descriptors.contains(&block) || self.groups.iter().any(is_in)
    }

    /// The blocks that inodes may map.
    pub(crate) fn physical(&self) -> Range<PhysBlock> {
        let geometry = self.geometry();
        PhysBlock(geometry.first_data_block().0.max(1))..PhysBlock(geometry.blocks().0)
    }

    /// The inodes that may hold attribute values.
    pub(crate) fn ea_inodes(&self) -> EaInodes {
        if !self.incompat(Incompat::EA_INODE) {
            return EaInodes::Absent;
        }
        EaInodes::Between {
            first: self.sb.first_inode(),
            last: InodeNr(self.geometry().inodes()),
        }
    }

    /// The format of the blocks of a directory whose inode has this seed.
    pub(crate) fn dir_format(&self, names: NameForm, seed: InodeSeed) -> DirFormat {
        let has_types = self.incompat(Incompat::FILETYPE);
        DirFormat {
            names,
            type_byte: if has_types {
                TypeByte::Present
            } else {
                TypeByte::Absent
            },
            inodes_count: InodeNr(self.geometry().inodes()),
            seed: self.sb.has_metadata_csum().then_some(seed),
        }
    }

    /// The checksum seed of blocks of the file system as a whole, if blocks have checksums.
    pub(crate) fn seed(&self) -> Option<ChecksumSeed> {
        let has = self.sb.has_metadata_csum();
        has.then(|| self.sb.checksum_seed())
    }

    /// The cluster of a block, counted from the first data block.
    pub(crate) fn cluster(&self, block: PhysBlock) -> u64 {
        let geometry = self.geometry();
        block.0.saturating_sub(geometry.first_data_block().0) >> geometry.blocks_per_cluster_log()
    }

    /// All clusters.
    pub(crate) fn clusters(&self) -> u64 {
        let last = self.geometry().blocks().0.saturating_sub(1);
        self.cluster(PhysBlock(last)) + 1
    }

    /// The first block of a cluster.
    pub(crate) fn cluster_start(&self, cluster: u64) -> PhysBlock {
        let geometry = self.geometry();
        let offset = cluster << geometry.blocks_per_cluster_log();
        PhysBlock(geometry.first_data_block().0 + offset)
    }

    /// Reads a run of blocks that fill `buf`.
    pub(crate) fn read(&self, start: PhysBlock, buf: &mut [u8]) -> io::Result<()> {
        let offset = self.geometry().block_size().offset(start);
        self.device.read_at(buf, offset)
    }

    /// Reads a run of blocks that fill `buf`. If that fails, reads them one by one, fills those
    /// that cannot be read with zeroes and passes them to `failed`.
    pub(crate) fn read_run(
        &self,
        start: PhysBlock,
        buf: &mut [u8],
        mut failed: impl FnMut(PhysBlock, io::Error),
    ) {
        if self.read(start, buf).is_ok() {
            return;
        }
        let blocks = buf.chunks_mut(self.block_bytes());
        for (block, bytes) in (start.0..).map(PhysBlock).zip(blocks) {
            if let Err(error) = self.read(block, bytes) {
                bytes.fill(0);
                failed(block, error);
            }
        }
    }

    /// The number of inodes of a group before the part of its table that was never used.
    pub(crate) fn inodes_to_read(&self, group: &Group) -> u32 {
        use fourscore_ondisk::group::GroupFlags;
        let all = self.geometry().inodes_per_group();
        if !self.has_group_checksums() {
            return all;
        }
        if group.desc.flags().contains(GroupFlags::INODE_UNINIT) {
            return 0;
        }
        all.saturating_sub(group.desc.itable_unused())
    }

    /// Whether the copy of the journal's inode replaces `inode`.
    pub(crate) fn is_copy_of_journal(&self, inode: InodeNr) -> bool {
        let copy = self.journal_copy.as_ref();
        copy.is_some_and(|(number, _)| *number == inode)
    }

    /// The inode itself, or the copy of the journal's inode that replaces it.
    pub(crate) fn or_journal_copy<'a>(&'a self, inode: InodeView<'a>) -> InodeView<'a> {
        let copy = self.journal_copy.as_ref();
        copy.filter(|(number, _)| *number == inode.number)
            .and_then(|(number, bytes)| InodeView::new(bytes, *number))
            .unwrap_or(inode)
    }

    /// Reads the bytes of one inode into `buf`, which is cut to its size.
    pub(crate) fn read_inode(&self, inode: InodeNr, buf: &mut Vec<u8>) -> Option<()> {
        let (group, index) = self.geometry().inode_group(inode)?;
        let table = self.group(group)?.inode_table?;
        let place = self.geometry().inode_place(table, GroupOffset(index.0));
        let offset = self.geometry().block_size().offset(place.block) + place.offset_bytes as u64;
        buf.resize(self.geometry().inode_size_bytes(), 0);
        self.device.read_at(buf, offset).ok()
    }

    /// The hidden files that the superblock names without having the features for them, and that it
    /// must not name: inodes in use, which e2fsck would take away, and for quota inodes that do not
    /// exist or are reserved for something else.
    pub(crate) fn false_hidden_files(&self) -> Vec<FalseFile> {
        let raw = self.sb.raw();
        let has_quota = self.ro_compat(RoCompat::QUOTA);
        let orphans = (
            HiddenFile::Orphans,
            raw.s_orphan_file_inum,
            self.compat(Compat::ORPHAN_FILE),
        );
        let quota = [
            (HiddenFile::UserQuota, raw.s_usr_quota_inum, has_quota),
            (HiddenFile::GroupQuota, raw.s_grp_quota_inum, has_quota),
            (HiddenFile::ProjectQuota, raw.s_prj_quota_inum, has_quota),
        ];
        let named = [orphans].into_iter().chain(quota);
        let without = named.filter(|(_, nr, has_feature)| nr.get() != 0 && !has_feature);
        let files = without.map(|(file, nr, _)| FalseFile {
            file,
            inode: InodeNr(nr.get()),
        });
        files.filter(|found| self.is_false(found)).collect()
    }

    fn is_false(&self, found: &FalseFile) -> bool {
        let (nr, first) = (found.inode, self.sb.first_inode());
        let may_be_quota =
            matches!(nr.0, 3 | 4) || (nr >= first && nr.0 <= self.geometry().inodes());
        match found.file {
            HiddenFile::Orphans => self.is_in_use(nr),
            _ => !may_be_quota || self.is_in_use(nr),
        }
    }

    fn is_in_use(&self, nr: InodeNr) -> bool {
        let mut bytes = Vec::new();
        let read = self.read_inode(nr, &mut bytes);
        let inode = read.and_then(|()| InodeView::new(&bytes, nr));
        inode.is_some_and(|inode| {
            inode.links() > 0 || inode.base.i_blocks_lo.get() != 0 || inode.block_word(0) != 0
        })
    }
}
