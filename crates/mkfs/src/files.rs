//! **Purpose.** The files of an empty file system: root and lost+found, bad blocks, resize inode,
//! journal, orphan file, and the MMP block.
//!
//! **Not here.** Which blocks a file gets and how its inode finds them (`mapping`), the content of
//! quota files (`quota`).

use fourscore_ondisk::dirent::{
    DirFormat, RawDirentHeader, RawTail, TAIL_BYTES, TAIL_FILE_TYPE, encode_rec_len,
};
use fourscore_ondisk::features::{Compat, Incompat, RoCompat};
use fourscore_ondisk::group::GroupFlags;
use fourscore_ondisk::inode::{self, InodeFlags, RawInode, RawInodeExtra};
use fourscore_ondisk::jbd2::RawJournalSuperblock;
use fourscore_ondisk::mmp::RawMmp;
use fourscore_ondisk::{
    GroupNr, InodeGeneration, InodeNr, InodeSeed, PhysBlock, Timestamp, orphan,
};
use zerocopy::byteorder::big_endian::U32 as BigU32;
use zerocopy::byteorder::little_endian::U32;
use zerocopy::{FromBytes, FromZeros, IntoBytes};

use crate::error::{FormatError, FormatResult};
use crate::mapping::Mapped;
use crate::plan::{JournalSize, Planner};
use crate::sizes::FIRST_INO;
use crate::superblock::{EXTRA_ISIZE, high, low, low16, put_text};

/// The size lost+found has from the start, so that e2fsck need not find blocks for it.
const LOST_AND_FOUND_BYTES: usize = 16 << 10;
/// Blocks that an inode points to directly.
pub(crate) const DIRECT_BLOCKS: usize = 12;
/// Blocks of the journal for file systems of fewer blocks than the first number.
const JOURNAL_BLOCKS: [(u64, u64); 9] = [
    (2 << 10, 0),
    (32 << 10, 1 << 10),
    (256 << 10, 4 << 10),
    (512 << 10, 8 << 10),
    (4 << 20, 16 << 10),
    (8 << 20, 32 << 10),
    (16 << 20, 64 << 10),
    (32 << 20, 128 << 10),
    (u64::MAX, MOST_USUAL_JOURNAL_BLOCKS),
];
const MOST_USUAL_JOURNAL_BLOCKS: u64 = 256 << 10;
const BAD_INO: u32 = 1;
const RESIZE_INO: u32 = 7;
const MMP_MAGIC: u32 = 0x004d_4d50;
const MMP_SEQ_CLEAN: u32 = 0xff4d_4d50;
const XATTR_MAGIC: u32 = 0xea02_0000;
const DIR_TYPE: u8 = 2;

/// What the inode of a file says.
pub(crate) struct File {
    pub(crate) mode: u16,
    pub(crate) links: u16,
    pub(crate) flags: InodeFlags,
    pub(crate) size_bytes: u64,
    pub(crate) mapped: Mapped,
}

impl Planner {
    pub(crate) fn block_bytes(&self) -> usize {
        self.geometry().block_size().bytes()
    }

    pub(crate) fn seed(&self, number: u32) -> InodeSeed {
        let seed = self.sb.checksum_seed();
        seed.for_inode(InodeNr(number), InodeGeneration(0))
    }

    /// Counts an inode as used.
    pub(crate) fn use_inode(&mut self, number: u32) -> FormatResult<()> {
        let place = self.geometry().inode_group(InodeNr(number));
        let (GroupNr(group), offset) = place.ok_or(FormatError::NoRoom { what: "inodes" })?;
        let per_group = self.geometry().inodes_per_group();
        let checksums = self.has_desc_checksums();
        let plan = &mut self.groups[group as usize];
        plan.used_inodes += 1;
        plan.flags.remove(GroupFlags::INODE_UNINIT);
        if checksums {
            plan.itable_unused = plan.itable_unused.min(per_group - offset.0 - 1);
        }
        Ok(())
    }

    /// The first inode after the reserved ones and those in use.
    pub(crate) fn next_inode(&self) -> u32 {
        let last = self.inodes.keys().next_back().copied();
        last.map_or(FIRST_INO, |last| (last + 1).max(FIRST_INO))
    }

    /// Takes the next inode.
    pub(crate) fn new_inode(&mut self) -> FormatResult<u32> {
        let number = self.next_inode();
        self.use_new_inode(number)?;
        Ok(number)
    }

    /// Counts an inode as used whose group was looked at to find it: to whoever looks, the block
    /// bitmap there must be a real one.
    fn use_new_inode(&mut self, number: u32) -> FormatResult<()> {
        self.use_inode(number)?;
        if let Some((GroupNr(group), _)) = self.geometry().inode_group(InodeNr(number)) {
            self.groups[group as usize]
                .flags
                .remove(GroupFlags::BLOCK_UNINIT);
        }
        Ok(())
    }

    /// Stores the inode of a file.
    pub(crate) fn put_file(&mut self, number: u32, file: &File) -> FormatResult<()> {
        let (time, _) = self.inode_time();
        let mut raw = RawInode::new_zeroed();
        raw.i_mode = file.mode.into();
        raw.i_links_count = file.links.into();
        raw.i_flags = file.flags.bits().into();
        raw.i_size_lo = low(file.size_bytes);
        raw.i_size_high = high(file.size_bytes);
        if raw.i_size_high.get() != 0 {
            let features = self.raw.features().ro_compat | RoCompat::LARGE_FILE;
            self.raw.s_feature_ro_compat = features.bits().into();
        }
        let cluster_sectors = self.geometry().cluster_size_bytes() as u64 / 512;
        let sectors = file.mapped.clusters * cluster_sectors;
        raw.i_blocks_lo = low(sectors);
        raw.i_blocks_high = low16(sectors >> 32);
        raw.i_block = file.mapped.i_block;
        (raw.i_atime, raw.i_ctime, raw.i_mtime) = (time, time, time);
        self.put_inode(number, raw, true)
    }

    /// Stores an inode. `whole` ones have the fields behind the first 128 bytes.
    fn put_inode(&mut self, number: u32, raw: RawInode, whole: bool) -> FormatResult<()> {
        let mut bytes = vec![0; self.geometry().inode_size_bytes()];
        let (base, tail) = bytes.split_at_mut(size_of::<RawInode>());
        base.copy_from_slice(raw.as_bytes());
        if whole && let Ok((extra, _)) = RawInodeExtra::mut_from_prefix(tail) {
            let (word, more) = self.inode_time();
            extra.i_extra_isize = EXTRA_ISIZE.into();
            (extra.i_crtime, extra.i_crtime_extra) = (word, more);
            extra.i_atime_extra = more;
            (extra.i_ctime_extra, extra.i_mtime_extra) = (more, more);
        }
        inode::seal(&mut bytes, InodeNr(number), &self.sb)
            .map_err(|error| FormatError::Invalid(error.to_string()))?;
        self.inodes.insert(number, bytes);
        Ok(())
    }

    /// The two words of the time of all inodes.
    fn inode_time(&self) -> (U32, U32) {
        let seconds = i64::try_from(self.id.time_seconds).unwrap_or(i64::MAX);
        let time = Timestamp::new(seconds, 0).map_or((0, 0), Timestamp::to_inode_words);
        (time.0.into(), time.1.into())
    }

    /// Inodes 1 to 10, used or not. With checksums also the unused ones must have one.
    pub(crate) fn reserve_inodes(&mut self) -> FormatResult<()> {
        for number in 1..FIRST_INO {
            self.use_inode(number)?;
            if self.sb.has_metadata_csum() {
                self.put_inode(number, RawInode::new_zeroed(), false)?;
            }
        }
        let mut bad = RawInode::new_zeroed();
        let (time, _) = self.inode_time();
        (bad.i_atime, bad.i_ctime, bad.i_mtime) = (time, time, time);
        self.put_inode(BAD_INO, bad, false)
    }

    fn extents_flag(&self) -> InodeFlags {
        let extents = self.raw.features().incompat.contains(Incompat::EXTENTS);
        if extents {
            InodeFlags::EXTENTS_FL
        } else {
            InodeFlags::empty()
        }
    }

    /// A regular file that users do not see.
    pub(crate) fn hidden_file(&self, size_bytes: u64, mapped: Mapped) -> File {
        File {
            mode: 0o100_600,
            links: 1,
            flags: self.extents_flag(),
            size_bytes,
            mapped,
        }
    }

    /// The root directory with lost+found in it.
    pub(crate) fn make_root(&mut self) -> FormatResult<()> {
        let root = InodeNr::ROOT.0;
        let lost_and_found = FIRST_INO;
        let block_bytes = self.block_bytes();
        let mapped = self.map_directory(root, 1)?;
        let entries: [(&[u8], u32); 3] =
            [(b".", root), (b"..", root), (b"lost+found", lost_and_found)];
        let block = self.directory_block(&entries, root)?;
        self.blocks.insert(mapped.blocks[0], block);
        let directory = |mode, links, mapped: Mapped, flags| File {
            mode,
            links,
            flags,
            size_bytes: (mapped.blocks.len() * block_bytes) as u64,
            mapped,
        };
        let flags = self.extents_flag();
        self.put_file(root, &directory(0o40_755, 3, mapped, flags))?;
        let owner = self.p.options.root_owner.unwrap_or_default();
        self.change_owner(root, owner.uid, owner.gid)?;

        self.use_new_inode(lost_and_found)?;
        let inline = self.raw.features().incompat.contains(Incompat::INLINE_DATA);
        let usual = LOST_AND_FOUND_BYTES
            .div_ceil(block_bytes)
            .clamp(2, DIRECT_BLOCKS);
        // It begins inside its inode there, and its first growth only moves it out.
        let count = usual - usize::from(inline);
        let mapped = self.map_directory(lost_and_found, count)?;
        let dots: [(&[u8], u32); 3] = [(b".", lost_and_found), (b"..", root), (b"", 0)];
        let dots = if inline { &dots[..] } else { &dots[..2] };
        let first = self.directory_block(dots, lost_and_found)?;
        let empty = self.directory_block(&[], lost_and_found)?;
        for (index, &block) in mapped.blocks.iter().enumerate() {
            let content = if index == 0 { &first } else { &empty };
            self.blocks.insert(block, content.clone());
        }
        self.put_file(lost_and_found, &directory(0o40_700, 2, mapped, flags))?;
        if inline {
            self.leave_empty_xattrs(lost_and_found)?;
        }
        for number in [root, lost_and_found] {
            let place = self.geometry().inode_group(InodeNr(number));
            if let Some((GroupNr(group), _)) = place {
                self.groups[group as usize].dirs += 1;
            }
        }
        Ok(())
    }

    fn change_owner(&mut self, number: u32, uid: u32, gid: u32) -> FormatResult<()> {
        self.change_inode(number, |raw, _| {
            (raw.i_uid, raw.i_uid_high) = (low16(uid.into()), low16(u64::from(uid) >> 16));
            (raw.i_gid, raw.i_gid_high) = (low16(gid.into()), low16(u64::from(gid) >> 16));
        })
    }

    /// An inode whose data left it keeps the head of its attributes.
    fn leave_empty_xattrs(&mut self, number: u32) -> FormatResult<()> {
        self.change_inode(number, |_, tail| {
            let at = usize::from(EXTRA_ISIZE);
            if let Some(head) = tail.get_mut(at..at + 4) {
                head.copy_from_slice(&XATTR_MAGIC.to_le_bytes());
            }
        })
    }

    fn change_inode(
        &mut self,
        number: u32,
        change: impl FnOnce(&mut RawInode, &mut [u8]),
    ) -> FormatResult<()> {
        let Some(bytes) = self.inodes.get_mut(&number) else {
            return Ok(());
        };
        if let Ok((raw, tail)) = RawInode::mut_from_prefix(bytes) {
            change(raw, tail);
        }
        inode::seal(bytes, InodeNr(number), &self.sb)
            .map_err(|error| FormatError::Invalid(error.to_string()))
    }

    /// A block with these subdirectories, or one free entry.
    fn directory_block(&self, entries: &[(&[u8], u32)], owner: u32) -> FormatResult<Vec<u8>> {
        let block_bytes = self.block_bytes();
        let mut block = vec![0; block_bytes];
        let tail = if self.sb.has_metadata_csum() {
            TAIL_BYTES
        } else {
            0
        };
        let file_type = match self.raw.features().incompat.contains(Incompat::FILETYPE) {
            true => DIR_TYPE,
            false => 0,
        };
        let free: [(&[u8], u32); 1] = [(b"", 0)];
        let entries = if entries.is_empty() { &free } else { entries };
        let mut at = 0;
        for (index, &(name, inode)) in entries.iter().enumerate() {
            let needed = (size_of::<RawDirentHeader>() + name.len()).next_multiple_of(4);
            let last = index + 1 == entries.len();
            let length = if last {
                block_bytes - tail - at
            } else {
                needed
            };
            let header = RawDirentHeader {
                inode: inode.into(),
                rec_len: encode_rec_len(length, block_bytes)
                    .unwrap_or(u16::MAX)
                    .into(),
                // A name of at most 255 bytes.
                name_len: low16(name.len() as u64).to_bytes()[0],
                file_type: if inode == 0 { 0 } else { file_type },
            };
            put(&mut block, at, header.as_bytes());
            put(&mut block, at + size_of::<RawDirentHeader>(), name);
            at += length;
        }
        if tail > 0 {
            let raw = RawTail {
                det_reserved_zero1: 0.into(),
                det_rec_len: 12.into(),
                det_reserved_zero2: 0,
                det_reserved_ft: TAIL_FILE_TYPE,
                det_checksum: 0.into(),
            };
            put(&mut block, at, raw.as_bytes());
            DirFormat::seal(&mut block, self.seed(owner))
                .map_err(|error| FormatError::Invalid(error.to_string()))?;
        }
        Ok(block)
    }

    /// The inode that holds the blocks reserved for more descriptors: its double indirect block
    /// points to those of group 0, each of which points to its counterparts in the backups.
    pub(crate) fn make_resize_inode(&mut self) -> FormatResult<()> {
        let reserved = u64::from(self.raw.s_reserved_gdt_blocks.get());
        let geometry = *self.geometry();
        let desc_blocks = u64::from(geometry.desc_blocks());
        let table_blocks = u64::from(geometry.inode_table_blocks());
        let first = geometry.first_data_block().0;
        let dind = self.new_block(first + 2 + reserved + desc_blocks + table_blocks)?;
        let pointers = self.block_bytes() / 4;
        let backups: Vec<u64> = (geometry.groups_with_super().skip(1))
            .map(|group| u64::from(group.0) * u64::from(geometry.blocks_per_group()))
            .collect();
        let mut top = vec![0; self.block_bytes()];
        for index in 0..reserved {
            let block = geometry.super_block().0 + 1 + desc_blocks + index;
            let slot = usize::try_from(desc_blocks + index).unwrap_or(0) % pointers;
            put(&mut top, slot * 4, low(block).as_bytes());
            let mut content = vec![0; self.block_bytes()];
            for (slot, backup) in backups.iter().enumerate() {
                put(&mut content, slot * 4, low(block + backup).as_bytes());
            }
            self.blocks.insert(block, content);
        }
        self.blocks.insert(dind, top);
        let mut i_block = [0; 60];
        put(&mut i_block, 13 * 4, low(dind).as_bytes());
        let pointers = pointers as u64;
        let largest = pointers * pointers + pointers + DIRECT_BLOCKS as u64;
        let mapped = Mapped {
            i_block,
            blocks: Vec::new(),
            clusters: 1 + reserved * (1 + backups.len() as u64),
        };
        let size_bytes = largest << geometry.block_size().bits();
        let file = File {
            flags: InodeFlags::empty(),
            ..self.hidden_file(size_bytes, mapped)
        };
        self.put_file(RESIZE_INO, &file)
    }

    /// The size of the journal, if there is to be one in the file system; of 0 blocks if that is
    /// too small for one.
    pub(crate) fn journal_size(&self) -> FormatResult<Option<JournalSize>> {
        let features = self.raw.features().compat;
        if !features.contains(Compat::HAS_JOURNAL) || self.p.options.external_journal.is_some() {
            return Ok(None);
        }
        let fast_commit = features.contains(Compat::FAST_COMMIT);
        let wish = self.p.journal;
        let blocks = self.geometry().blocks().0;
        let usual = JOURNAL_BLOCKS.iter().find(|(below, _)| blocks < *below);
        let log_blocks = usual.map_or(MOST_USUAL_JOURNAL_BLOCKS, |&(_, usual)| usual);
        let mut size = JournalSize {
            log_blocks,
            fast_commit_blocks: if fast_commit { log_blocks / 64 } else { 0 },
        };
        if log_blocks == 0 {
            return Ok(Some(size));
        }
        let blocks = |kib: u64| (kib << 10) >> self.geometry().block_size().bits();
        let fast_commit_wish = wish
            .fast_commit_size_kib
            .filter(|&kib| fast_commit && kib > 0);
        let log_wish = wish.size_mib.filter(|&mib| mib > 0);
        if let Some(mib) = log_wish {
            size.log_blocks = blocks(u64::from(mib) << 10);
        }
        if let Some(kib) = fast_commit_wish {
            size.fast_commit_blocks = blocks(kib.into());
        }
        if log_wish.is_some() || fast_commit_wish.is_some() {
            let found = size.blocks();
            if !(1024..=10_240_000).contains(&found) {
                let why = format!("{found} blocks are not from 1024 to 10240000");
                return Err(FormatError::option("-J size", why));
            }
            let free = self.blocks_for_files();
            if found > free / 2 {
                let why = format!("{found} blocks are over half of the {free} free ones");
                return Err(FormatError::option("-J size", why));
            }
        }
        Ok(Some(size))
    }

    /// The blocks that a journal may take half of: those without superblocks and descriptors, and
    /// only where each group has its own tables without these too.
    fn blocks_for_files(&self) -> u64 {
        let geometry = self.geometry();
        let groups = (0..geometry.groups()).map(GroupNr);
        let base: u64 = groups
            .map(|group| u64::from(geometry.base_meta_blocks(group)))
            .sum();
        let tables = match self.raw.s_log_groups_per_flex {
            0 => u64::from(geometry.groups()) * (2 + u64::from(geometry.inode_table_blocks())),
            _ => 0,
        };
        let all = geometry.blocks().0 - geometry.first_data_block().0;
        all.saturating_sub(base + tables)
    }

    /// The journal: its superblock, and a copy of its inode's map in the file system's.
    pub(crate) fn make_journal(&mut self, size: JournalSize) -> FormatResult<()> {
        if size.blocks() == 0 {
            let features = self.raw.features().compat - Compat::HAS_JOURNAL;
            self.raw.s_feature_compat = features.bits().into();
            return Ok(());
        }
        let wish = self.p.journal.location;
        let wish = wish.map(|place| place.blocks(self.geometry().block_size()));
        // Behind contents that were there first it is in one piece.
        let goal = wish.or_else(|| self.end_of_contents());
        let goal = goal.unwrap_or_else(|| self.middle());
        let number = InodeNr::JOURNAL.0;
        let mapped = self.map_journal(number, goal, size.blocks())?;
        let block_size = self.geometry().block_size();
        let Ok(blocks) = u32::try_from(size.blocks()) else {
            return Err(FormatError::option("-J size", "over 2^32 blocks"));
        };
        let mut raw = RawJournalSuperblock::new(block_size, blocks, self.id.uuid);
        raw.s_num_fc_blks = BigU32::new(low(size.fast_commit_blocks).get());
        let mut content = vec![0; block_size.bytes()];
        put(&mut content, 0, raw.as_bytes());
        self.blocks.insert(mapped.blocks[0], content);

        let size_bytes = size.blocks() << block_size.bits();
        for (word, bytes) in self
            .raw
            .s_jnl_blocks
            .iter_mut()
            .zip(mapped.i_block.chunks(4))
        {
            if let &[a, b, c, d] = bytes {
                *word = u32::from_le_bytes([a, b, c, d]).into();
            }
        }
        self.raw.s_jnl_blocks[15] = high(size_bytes);
        self.raw.s_jnl_blocks[16] = low(size_bytes);
        self.raw.s_jnl_backup_type = 1;
        self.raw.s_journal_inum = number.into();
        let file = self.hidden_file(size_bytes, mapped);
        self.put_file(number, &file)
    }

    /// Where a group or two near the middle have most space: where the journal goes, so that
    /// the way to it is short from everywhere.
    fn middle(&self) -> u64 {
        let geometry = self.geometry();
        let groups = geometry.groups();
        let first = geometry.first_data_block().0;
        let half = (geometry.blocks().0 - first) / 2;
        let per_group = u64::from(geometry.blocks_per_group());
        // Groups have 32-bit numbers.
        let group_of_half = u32::try_from(half.saturating_sub(first) / per_group).unwrap_or(0);
        let free = |group: u32| {
            let blocks = geometry.group_blocks(GroupNr(group));
            self.space.free_in(blocks.start.0..blocks.end.0)
        };
        let flex = 1u32
            .checked_shl(self.raw.s_log_groups_per_flex.into())
            .unwrap_or(0);
        let mut group = group_of_half;
        let start = if flex > 1 && group > flex {
            group &= !(flex - 1);
            group = (group..groups).find(|&group| free(group) > 0).unwrap_or(0);
            group
        } else {
            group.saturating_sub(1)
        };
        let end = (group + 1).min(groups - 1);
        let mut best = start;
        for candidate in start + 1..=end {
            if free(candidate) > free(best) {
                best = candidate;
            }
        }
        geometry.group_first_block(GroupNr(best)).0
    }

    /// The block that tells hosts from each other, saying that nobody is there.
    pub(crate) fn make_mmp_block(&mut self) -> FormatResult<()> {
        let block = self.new_block(0)?;
        let mut raw = RawMmp::new_zeroed();
        raw.mmp_magic = MMP_MAGIC.into();
        raw.mmp_seq = MMP_SEQ_CLEAN.into();
        raw.mmp_time = self.id.time_seconds.into();
        let (host, device) = &self.p.options.mmp_names;
        put_text(&mut raw.mmp_nodename, host);
        put_text(&mut raw.mmp_bdevname, device);
        raw.mmp_check_interval = self.raw.s_mmp_update_interval.get().max(5).into();
        raw.seal(&self.sb);
        let mut content = vec![0; self.block_bytes()];
        put(&mut content, 0, raw.as_bytes());
        self.blocks.insert(block, content);
        self.raw.s_mmp_block = block.into();
        Ok(())
    }

    /// The orphan file: blocks without entries.
    pub(crate) fn make_orphan_file(&mut self) -> FormatResult<()> {
        if !self.raw.features().compat.contains(Compat::HAS_JOURNAL) {
            // The journal was left out for want of space.
            let features = self.raw.features().compat - Compat::ORPHAN_FILE;
            self.raw.s_feature_compat = features.bits().into();
            return Ok(());
        }
        let blocks = self.geometry().blocks().0;
        let bits = self.geometry().block_size().bits();
        let count = match self.p.options.orphan_file_size {
            Some(size) => size.blocks(self.geometry().block_size()),
            None if blocks < 128 << 10 => 32,
            None => (blocks / 4096).min(512),
        };
        // The kernel refuses more; less than two can hold next to nothing.
        if !(2..=512).contains(&count) {
            let why = format!("{count} blocks are not from 2 to 512");
            return Err(FormatError::option("-E orphan_file_size", why));
        }
        let cluster_log = self.geometry().blocks_per_cluster_log();
        let count = count.next_multiple_of(1 << cluster_log);
        let number = self.new_inode()?;
        let mapped = self.map_sequence(number, count)?;
        let seed = self.seed(number);
        for &block in &mapped.blocks {
            let mut content = vec![0; 1 << bits];
            orphan::seal(&mut content, PhysBlock(block), seed, &self.sb)
                .map_err(|error| FormatError::Invalid(error.to_string()))?;
            self.blocks.insert(block, content);
        }
        self.raw.s_orphan_file_inum = number.into();
        let file = self.hidden_file(count << bits, mapped);
        self.put_file(number, &file)
    }
}

/// Copies `bytes` to `at`.
pub(crate) fn put(block: &mut [u8], at: usize, bytes: &[u8]) {
    if let Some(place) = block.get_mut(at..at + bytes.len()) {
        place.copy_from_slice(bytes);
    }
}
