//! **Purpose.** The fields of one inode: whether it is in use, its type, and whether it fits the
//! role of a reserved number.

use fourscore_ondisk::features::{Compat, Incompat, RoCompat};
use fourscore_ondisk::inode::{self, FileType, InodeError, InodeFlags};
use fourscore_ondisk::superblock::{CreatorOs, JournalPlace};
use fourscore_ondisk::{InodeNr, PhysBlock, extent};

use super::Scanner;
use crate::finding::Finding;
use crate::inode::InodeView;
use crate::memory::Slot;
use crate::state::Charge;
use crate::walk::RESIZE_INODE;

const BAD_BLOCKS: InodeNr = InodeNr(1);
const USER_QUOTA: InodeNr = InodeNr(3);
const GROUP_QUOTA: InodeNr = InodeNr(4);
const BOOT_LOADER: InodeNr = InodeNr(5);

/// Reserved descriptor blocks that are read at once.
const RESERVED_AT_ONCE: u32 = 32;

/// The role of an inode number.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Role {
    BadBlocks,
    Root,
    /// A regular file without a name, which the file system keeps for itself.
    Hidden,
    /// Reserved for such a file, but the superblock names none.
    HiddenUnused,
    /// Any other number below the first of ordinary inodes.
    Reserved,
    Ordinary,
}

impl Scanner<'_> {
    /// Checks one inode, or the copy of the journal's inode that replaces it.
    pub(super) fn inode(&mut self, inode: &InodeView<'_>) {
        let inode = &self.volume.or_journal_copy(*inode);
        let role = self.role(inode.number);
        if role == Role::Ordinary && inode.mode() == 0 && inode.links() == 0 && inode.is_blank() {
            return;
        }
        self.checksum(inode);
        if !self.is_in_use(inode, role) {
            return;
        }
        let nr = u64::from(inode.number.0);
        self.slot = Slot::AGAIN;
        self.state.links.add(inode.number, inode.links());
        self.flags(inode, role);
        match role {
            Role::BadBlocks => self.bad_blocks(inode),
            Role::Root => {
                if !inode.is_directory() {
                    let found = inode.mode();
                    let inode = inode.number;
                    self.findings.push(Finding::RootMode { inode, found });
                }
                if inode.links() > 0 {
                    self.ordinary(inode);
                }
            }
            Role::Hidden => {
                self.state.used.insert(nr);
                self.hidden(inode);
            }
            Role::HiddenUnused => {
                self.state.used.insert(nr);
                let has_blocks = inode.base.i_blocks_lo.get() != 0 || inode.block_word(0) != 0;
                if inode.links() != 0 || has_blocks {
                    let inode = inode.number;
                    self.findings.push(Finding::ReservedInUse { inode });
                }
            }
            Role::Reserved => {
                self.state.used.insert(nr);
                self.reserved(inode);
            }
            Role::Ordinary => self.ordinary(inode),
        }
    }

    fn role(&self, nr: InodeNr) -> Role {
        let (volume, sb) = (self.volume, &self.volume.sb);
        if nr == BAD_BLOCKS {
            return Role::BadBlocks;
        }
        if nr == InodeNr::ROOT {
            return Role::Root;
        }
        let quota = sb.quota_inodes();
        let journal = sb.journal() == Some(JournalPlace::Inode(nr));
        let is_quota = [quota.user, quota.group, quota.project].contains(&Some(nr));
        if journal || is_quota || sb.orphan_file_inode() == Some(nr) {
            return Role::Hidden;
        }
        if nr >= sb.first_inode() {
            return Role::Ordinary;
        }
        let uses_journal = volume.compat(Compat::HAS_JOURNAL);
        match nr {
            USER_QUOTA | GROUP_QUOTA => Role::HiddenUnused,
            InodeNr::JOURNAL if !uses_journal || sb.journal().is_some() => Role::HiddenUnused,
            _ => Role::Reserved,
        }
    }

    fn checksum(&mut self, inode: &InodeView<'_>) {
        let checked = inode::verify(inode.bytes, inode.number, &self.volume.sb);
        if let Err(InodeError::Checksum(why)) = checked
            && !inode.is_blank()
        {
            let inode = inode.number;
            self.findings.push(Finding::InodeChecksum { inode, why });
        }
    }

    /// Whether an inode counts as used, and whether its time of deletion agrees.
    fn is_in_use(&mut self, inode: &InodeView<'_>, role: Role) -> bool {
        let (nr, found) = (inode.number, inode.base.i_dtime.get());
        if self.state.orphans.contains(&nr) {
            // The orphan list is chained through the field.
            self.findings.push(Finding::Orphan { inode: nr });
            return true;
        }
        if found != 0 && self.checks_dtime && found < self.volume.geometry().inodes() {
            self.findings.push(Finding::LowDtime { inode: nr, found });
        }
        if inode.links() > 0 {
            let may_have = matches!(role, Role::Root | Role::Ordinary);
            if found != 0 && may_have {
                self.findings.push(Finding::DtimeInUse { inode: nr, found });
            }
            return true;
        }
        if role == Role::Ordinary {
            if found == 0 && inode.mode() != 0 {
                let mode = inode.mode();
                self.findings.push(Finding::ZeroDtime { inode: nr, mode });
            }
            return false;
        }
        true
    }

    /// Flags that contradict the features or each other.
    fn flags(&mut self, inode: &InodeView<'_>, role: Role) {
        let (volume, nr) = (self.volume, inode.number);
        let mut fault = |flag, why| {
            let inode = nr;
            self.findings.push(Finding::InodeFlags { inode, flag, why });
        };
        let file_type = inode.file_type();
        let maps = matches!(file_type, Some(FileType::Regular | FileType::Directory));
        let extents = inode.has(InodeFlags::EXTENTS_FL);
        let inline = inode.has(InodeFlags::INLINE_DATA_FL);
        if inode.has(InodeFlags::CASEFOLD_FL) {
            if !inode.is_directory() {
                fault("CASEFOLD_FL", "not a directory");
            } else if !volume.incompat(Incompat::CASEFOLD) {
                fault("CASEFOLD_FL", "without the feature casefold");
            }
        }
        if inline && extents {
            fault("INLINE_DATA_FL", "together with EXTENTS_FL");
        }
        if inline && !volume.incompat(Incompat::INLINE_DATA) && role == Role::Ordinary {
            fault("INLINE_DATA_FL", "without the feature inline_data");
        }
        if extents && !volume.incompat(Incompat::EXTENTS) && inode.links() > 0 {
            fault("EXTENTS_FL", "without the feature extent");
        }
        let has_map = volume.incompat(Incompat::EXTENTS) && maps && !extents && !inline;
        if has_map && looks_like_root(&inode.base.i_block) {
            fault("EXTENTS_FL", "not set, but i_block holds an extent tree");
        }
        if inode.has(InodeFlags::IMAGIC_FL) && !volume.compat(Compat::IMAGIC_INODES) {
            fault("IMAGIC_FL", "without the feature imagic_inodes");
        }
        if inode.has(InodeFlags::INDEX_FL) {
            if !inode.is_directory() {
                fault("INDEX_FL", "not a directory");
            } else if !volume.compat(Compat::DIR_INDEX) {
                fault("INDEX_FL", "without the feature dir_index");
            }
        }
        if inode.has(InodeFlags::EA_INODE_FL) && file_type != Some(FileType::Regular) {
            fault(
                "EA_INODE_FL",
                "not a regular file, so it holds no value of an attribute",
            );
        }
        if file_type == Some(FileType::Symlink) && extents && inode.is_fast_symlink() {
            fault("EXTENTS_FL", "on a symbolic link inside its inode");
        }
    }

    fn bad_blocks(&mut self, inode: &InodeView<'_>) {
        self.state.used.insert(inode.number.0.into());
        let base = inode.base;
        let more = base.i_mode.get() != 0
            || base.i_uid.get() != 0
            || base.i_gid.get() != 0
            || base.i_links_count.get() != 0
            || inode.has(InodeFlags::INLINE_DATA_FL)
            || inode.file_acl(&self.volume.sb) != PhysBlock(0);
        if more {
            let inode = inode.number;
            self.findings.push(Finding::BadBlocksInode { inode });
        }
        self.follow(inode);
    }

    /// Files that the file system keeps for itself: the journal, quota, the orphan file.
    fn hidden(&mut self, inode: &InodeView<'_>) {
        if inode.file_type() == Some(FileType::Regular) {
            self.state.regular.insert(inode.number.0.into());
        } else {
            let found = inode.mode();
            let inode = inode.number;
            self.findings.push(Finding::ReservedMode { inode, found });
        }
        match self.volume.is_copy_of_journal(inode.number) {
            // The copy does not count blocks.
            true => drop(self.follow(inode)),
            false => self.blocks(inode, Charge::default()),
        }
    }

    fn reserved(&mut self, inode: &InodeView<'_>) {
        let found = inode.mode();
        let file_type = inode.file_type();
        let sound = match inode.number {
            BOOT_LOADER => file_type != Some(FileType::Directory),
            RESIZE_INODE => found == 0 || file_type == Some(FileType::Regular),
            _ => found == 0,
        };
        if !sound {
            let inode = inode.number;
            self.findings.push(Finding::ReservedMode { inode, found });
        }
        if inode.number == RESIZE_INODE {
            self.resize_inode(inode);
        }
        let before = self.walker.nodes_left();
        self.blocks(inode, Charge::default());
        if inode.number == RESIZE_INODE {
            let nodes = before - self.walker.nodes_left();
            self.slot = Slot::of_reserved_blocks(inode, nodes, self.volume);
        }
    }

    /// Checks the inode of reserved descriptor blocks: it has them below its double indirect block,
    /// and nothing else.
    fn resize_inode(&mut self, inode: &InodeView<'_>) {
        let has = self.volume.compat(Compat::RESIZE_INODE);
        let direct = (0..13).any(|word| inode.block_word(word) != 0);
        let double = inode.block_word(13);
        let physical = self.volume.physical();
        let why = if !has {
            let empty = inode.links() == 0 && !direct && double == 0;
            (!empty).then_some("in use without the feature resize_inode")
        } else if inode.links() == 0 || inode.file_type() != Some(FileType::Regular) {
            Some("not a regular file in use")
        } else if direct || inode.block_word(14) != 0 {
            Some("has blocks beside its double indirect block")
        } else if !physical.contains(&PhysBlock(double.into())) {
            Some("its double indirect block is outside the file system")
        } else {
            self.reserved_descriptors(PhysBlock(double.into()))
        };
        if let Some(why) = why {
            let inode = inode.number;
            self.findings.push(Finding::ResizeInode { inode, why });
        }
    }

    /// Compares the double indirect block and those below it with the places where descriptors may
    /// grow.
    fn reserved_descriptors(&mut self, double: PhysBlock) -> Option<&'static str> {
        let geometry = self.volume.geometry();
        let reserved = u32::from(self.volume.sb.reserved_gdt_blocks());
        let descriptors = geometry.primary_table();
        let first = descriptors.end.0;
        let per_block = u32::try_from(self.volume.block_bytes() / 4).unwrap_or(1);
        let word = |bytes: &[u8], nth: u32| {
            let at = nth as usize * 4;
            let word = bytes.get(at..at + 4).and_then(|word| word.try_into().ok());
            word.map_or(0, u32::from_le_bytes)
        };
        let mut table = vec![0; self.volume.block_bytes()];
        self.volume.read(double, &mut table).ok()?;
        let blocks = reserved.min(per_block);
        let starts: Vec<u64> = geometry
            .groups_with_super()
            .filter(|group| group.0 > 0)
            .map(|group| geometry.group_first_block(group).0)
            .collect();
        let mut piece = Vec::new();
        for nth in 0..blocks {
            let expected = first + u64::from(nth);
            let slot = geometry.desc_blocks().wrapping_add(nth) % per_block;
            if u64::from(word(&table, slot)) != expected {
                return Some("its double indirect block does not map the reserved blocks");
            }
            let within = nth % RESERVED_AT_ONCE;
            if within == 0 {
                let count = RESERVED_AT_ONCE.min(blocks - nth) as usize;
                piece.resize(count * self.volume.block_bytes(), 0);
                self.volume.read(PhysBlock(expected), &mut piece).ok()?;
            }
            let below = piece.get(within as usize * self.volume.block_bytes()..)?;
            for (slot, start) in (0..per_block).zip(&starts) {
                let copy = expected - geometry.first_data_block().0 + start;
                if u64::from(word(below, slot)) != copy {
                    return Some("a reserved block does not map its copies");
                }
            }
        }
        None
    }

    /// Checks an inode in use that may have names.
    fn ordinary(&mut self, inode: &InodeView<'_>) {
        let nr = u64::from(inode.number.0);
        self.state.used.insert(nr);
        self.tally.inodes += 1;
        self.reserved_fields(inode);
        let charge = self.extra(inode);
        if inode.has(InodeFlags::ENCRYPT_FL) {
            self.state.encrypted.insert(nr);
            self.encryption(inode);
        }
        match inode.file_type() {
            Some(FileType::Directory) => {
                self.state.directories.insert(nr);
                self.tally.directories += 1;
            }
            Some(FileType::Regular) => {
                self.state.regular.insert(nr);
                if inode.has(InodeFlags::EA_INODE_FL) {
                    self.state.value_inodes.insert(nr);
                }
            }
            Some(FileType::Symlink) => {
                self.state.symlinks.insert(nr);
                self.symlink(inode);
            }
            Some(_) => self.special(inode),
            None => {
                self.state.bad.insert(nr);
                let found = inode.mode();
                let inode = inode.number;
                self.findings.push(Finding::InodeMode { inode, found });
            }
        }
        self.blocks(inode, charge);
        self.slot = Slot::of(inode, charge, &self.claimed, self.volume);
    }

    /// Checks fields that are reserved, or reserved without a feature.
    fn reserved_fields(&mut self, inode: &InodeView<'_>) {
        let volume = self.volume;
        if volume.sb.creator_os() == CreatorOs::Hurd {
            return;
        }
        let base = inode.base;
        let size_high = base.i_size_high.get();
        let no_large_dir = inode.is_directory() && !volume.incompat(Incompat::LARGEDIR);
        let no_64bit = !volume.incompat(Incompat::BIT64);
        let no_huge_file = !volume.ro_compat(RoCompat::HUGE_FILE);
        let fields = [
            ("i_obso_faddr", base.i_obso_faddr.get(), true),
            ("i_size_high", size_high, no_large_dir),
            (
                "i_file_acl_high",
                base.i_file_acl_high.get().into(),
                no_64bit,
            ),
            (
                "i_blocks_high",
                base.i_blocks_high.get().into(),
                no_huge_file,
            ),
        ];
        for (field, found, must_be_zero) in fields {
            if must_be_zero && found != 0 {
                self.state.bad.insert(inode.number.0.into());
                let inode = inode.number;
                self.findings.push(Finding::ReservedField {
                    inode,
                    field,
                    found,
                });
            }
        }
    }

    /// Checks the fields past the first 128 bytes and the attributes there. Returns the charge for
    /// attribute values in other inodes.
    fn extra(&mut self, inode: &InodeView<'_>) -> Charge {
        let Some(found) = inode.extra_isize() else {
            return Charge::default();
        };
        let (nr, most) = (inode.number, inode.most_extra());
        if found != 0 && (found < 4 || found > most || !found.is_multiple_of(4)) {
            let inode = nr;
            self.findings
                .push(Finding::ExtraIsize { inode, found, most });
            return Charge::default();
        }
        let charge = match inode.xattr_area() {
            Some(area) => self.xattrs_in_inode(inode, area),
            None => return Charge::default(),
        };
        if let Some(extra) = inode.extra() {
            let times = [
                ("i_atime", inode.base.i_atime, extra.i_atime_extra),
                ("i_ctime", inode.base.i_ctime, extra.i_ctime_extra),
                ("i_crtime", extra.i_crtime, extra.i_crtime_extra),
                ("i_mtime", inode.base.i_mtime, extra.i_mtime_extra),
            ];
            for (field, low, high) in times {
                let misplaced = low.get() >> 31 == 1 && high.get() & 3 == 3;
                if misplaced && !inode.has(InodeFlags::EA_INODE_FL) {
                    let inode = nr;
                    self.findings.push(Finding::TimeRange { inode, field });
                }
            }
        }
        charge
    }
}

/// Whether these bytes begin with the header of an extent root.
fn looks_like_root(i_block: &[u8; 60]) -> bool {
    let whole = PhysBlock(0)..PhysBlock(u64::MAX);
    extent::check_root(i_block, &whole).is_ok()
}
