//! **Purpose.** Accessors for the fields of the superblock: all that dumpe2fs prints.

use uuid::Uuid;

use super::{
    CreatorOs, DefaultMountOpts, ErrorPolicy, ErrorRecord, JournalPlace, MetadataChecksum,
    NameEncoding, QuotaInodes, State, SuperFlags, Superblock,
    parse::{has_other_role, may_be_mmp_block},
};
use crate::dirhash::CharSign;
use crate::features::{Compat, Incompat, RoCompat};
use crate::text::until_zero;
use crate::time::Timestamp;
use crate::types::{BlockCount, GroupNr, InodeNr, PhysBlock};

/// The set bit in `s_encoding_flags` that refuses names that are not valid.
const ENC_STRICT_MODE_FL: u16 = 1;

fn some_inode(number: u32) -> Option<InodeNr> {
    (number != 0).then_some(InodeNr(number))
}

/// Identity and format.
impl Superblock {
    /// The UUID.
    #[must_use]
    pub fn uuid(&self) -> Uuid {
        Uuid::from_bytes(self.raw.s_uuid)
    }

    /// The label, at most 16 bytes; empty when there is none.
    #[must_use]
    pub fn volume_name(&self) -> &[u8] {
        until_zero(&self.raw.s_volume_name)
    }

    /// The directory it was last mounted on, at most 64 bytes; empty when not known.
    #[must_use]
    pub fn last_mounted(&self) -> &[u8] {
        until_zero(&self.raw.s_last_mounted)
    }

    /// Mount options to apply by default, as text; empty when there are none.
    #[must_use]
    pub fn mount_opts(&self) -> &[u8] {
        until_zero(&self.raw.s_mount_opts)
    }

    /// Default mount options, as bits.
    #[must_use]
    pub fn default_mount_opts(&self) -> DefaultMountOpts {
        DefaultMountOpts::from_bits_retain(self.raw.s_default_mount_opts.get())
    }

    /// The revision, 0 or 1, and the minor revision.
    #[must_use]
    pub fn revision(&self) -> (u32, u16) {
        (self.raw.s_rev_level.get(), self.raw.s_minor_rev_level.get())
    }

    /// Flags that are not features.
    #[must_use]
    pub fn flags(&self) -> SuperFlags {
        SuperFlags::from_bits_retain(self.raw.s_flags.get())
    }

    /// The operating system that made the file system.
    #[must_use]
    pub fn creator_os(&self) -> CreatorOs {
        match self.raw.s_creator_os.get() {
            0 => CreatorOs::Linux,
            1 => CreatorOs::Hurd,
            2 => CreatorOs::Masix,
            3 => CreatorOs::FreeBsd,
            4 => CreatorOs::Lites,
            other => CreatorOs::Unknown(other),
        }
    }

    /// The checksums of metadata.
    #[must_use]
    pub fn metadata_checksum(&self) -> MetadataChecksum {
        let ro_compat = self.features.ro_compat;
        if ro_compat.contains(RoCompat::METADATA_CSUM) {
            MetadataChecksum::Crc32c
        } else if ro_compat.contains(RoCompat::GDT_CSUM) {
            MetadataChecksum::Crc16
        } else {
            MetadataChecksum::None
        }
    }

    /// Whether all metadata has a crc32c.
    #[must_use]
    pub fn has_metadata_csum(&self) -> bool {
        self.metadata_checksum() == MetadataChecksum::Crc32c
    }

    /// The group this copy of the superblock was written for; 0 for the primary.
    #[must_use]
    pub fn block_group_nr(&self) -> GroupNr {
        GroupNr(self.raw.s_block_group_nr.get().into())
    }
}

/// Counts and sizes that [`Geometry`](crate::geometry::Geometry) does not need.
impl Superblock {
    /// Blocks that only the super-user (and [`reserved_uid`](Self::reserved_uid)) may allocate. Not
    /// checked.
    #[must_use]
    pub fn reserved_blocks(&self) -> BlockCount {
        let raw = &self.raw;
        BlockCount(raw.wide(
            self.features,
            raw.s_r_blocks_count_lo,
            raw.s_r_blocks_count_hi,
        ))
    }

    /// Free blocks at the last clean unmount. Not checked.
    #[must_use]
    pub fn free_blocks(&self) -> BlockCount {
        let raw = &self.raw;
        BlockCount(raw.wide(
            self.features,
            raw.s_free_blocks_count_lo,
            raw.s_free_blocks_count_hi,
        ))
    }

    /// Free inodes at the last clean unmount. Not checked.
    #[must_use]
    pub fn free_inodes(&self) -> u32 {
        self.raw.s_free_inodes_count.get()
    }

    /// Clusters of fixed metadata and the journal, as mkfs computed them; 0 if it did not. Not
    /// checked.
    #[must_use]
    pub fn overhead_clusters(&self) -> u32 {
        self.raw.s_overhead_clusters.get()
    }

    /// Groups in a flex group: a power of two, 1 without `flex_bg`.
    #[must_use]
    pub fn groups_per_flex(&self) -> u32 {
        match u32::from(self.raw.s_log_groups_per_flex) {
            log if log < 32 && self.features.incompat.contains(Incompat::FLEX_BG) => 1 << log,
            _ => 1,
        }
    }

    /// Blocks after the descriptors reserved for growth.
    #[must_use]
    pub fn reserved_gdt_blocks(&self) -> u16 {
        self.raw.s_reserved_gdt_blocks.get()
    }

    /// Blocks on one disk of an array before the next disk; 0 when not known.
    #[must_use]
    pub fn raid_stride_blocks(&self) -> u16 {
        self.raw.s_raid_stride.get()
    }

    /// Blocks in one stripe over all data disks of an array; 0 when not known.
    #[must_use]
    pub fn raid_stripe_width_blocks(&self) -> u32 {
        self.raw.s_raid_stripe_width.get()
    }

    /// KiB written in the life of the file system.
    #[must_use]
    pub fn kbytes_written(&self) -> u64 {
        self.raw.s_kbytes_written.get()
    }

    /// The user that may allocate reserved blocks.
    #[must_use]
    pub fn reserved_uid(&self) -> u32 {
        halves(self.raw.s_def_resuid.get(), self.raw.s_def_resuid_hi.get())
    }

    /// The group that may allocate reserved blocks.
    #[must_use]
    pub fn reserved_gid(&self) -> u32 {
        halves(self.raw.s_def_resgid.get(), self.raw.s_def_resgid_hi.get())
    }

    /// Extra inode bytes that all inodes have.
    #[must_use]
    pub fn min_extra_isize_bytes(&self) -> u16 {
        self.raw.s_min_extra_isize.get()
    }

    /// Extra inode bytes that new inodes should have. Not checked.
    #[must_use]
    pub fn want_extra_isize_bytes(&self) -> u16 {
        self.raw.s_want_extra_isize.get()
    }
}

fn halves(low: u16, high: u16) -> u32 {
    u32::from(low) | (u32::from(high) << 16)
}

/// Inodes and blocks with a role.
impl Superblock {
    /// The first inode that is not reserved; at least 11.
    #[must_use]
    pub fn first_inode(&self) -> InodeNr {
        self.raw.first_ino()
    }

    /// Whether this inode may have a name in a directory: it exists, and is the root or neither
    /// reserved nor hidden. Linux refuses a name of another inode (`EUCLEAN`).
    #[must_use]
    pub fn may_be_named(&self, inode: InodeNr) -> bool {
        let ordinary = inode >= self.first_inode() && inode.0 <= self.geometry.inodes();
        inode == InodeNr::ROOT || ordinary && !self.is_hidden(inode)
    }

    /// Whether the file system keeps data of its own in this inode: it is a quota file, or the
    /// orphan file. Such an inode need not be a reserved one.
    #[must_use]
    pub fn is_hidden(&self, inode: InodeNr) -> bool {
        let QuotaInodes {
            user,
            group,
            project,
        } = self.quota_inodes();
        [user, group, project, self.orphan_file_inode()].contains(&Some(inode))
    }

    /// The location of the journal; `None` without one. The inode exists.
    #[must_use]
    pub fn journal(&self) -> Option<JournalPlace> {
        let raw = &self.raw;
        if !self.features.compat.contains(Compat::HAS_JOURNAL) {
            return None;
        }
        let device = raw.s_journal_dev.get();
        match raw.s_journal_inum.get() {
            0 if device == 0 && raw.s_journal_uuid == [0; 16] => None,
            0 => Some(JournalPlace::Device {
                uuid: Uuid::from_bytes(raw.s_journal_uuid),
                device,
            }),
            found => self.existing(found).map(JournalPlace::Inode),
        }
    }

    /// The head of the orphan list. Not checked.
    #[must_use]
    pub fn last_orphan(&self) -> Option<InodeNr> {
        some_inode(self.raw.s_last_orphan.get())
    }

    /// The inode of the orphan file; `None` without `orphan_file`. Exists.
    #[must_use]
    pub fn orphan_file_inode(&self) -> Option<InodeNr> {
        let has = self.features.compat.contains(Compat::ORPHAN_FILE);
        self.existing(self.raw.s_orphan_file_inum.get())
            .filter(|_| has)
    }

    /// The inodes of quota files. They exist.
    #[must_use]
    pub fn quota_inodes(&self) -> QuotaInodes {
        let ro_compat = self.features.ro_compat;
        if !ro_compat.contains(RoCompat::QUOTA) {
            return QuotaInodes::default();
        }
        let project = ro_compat.contains(RoCompat::PROJECT);
        let quota_file = |found| {
            let inode = self.existing(found);
            inode.filter(|&inode| !has_other_role(inode))
        };
        QuotaInodes {
            user: quota_file(self.raw.s_usr_quota_inum.get()),
            group: quota_file(self.raw.s_grp_quota_inum.get()),
            project: quota_file(self.raw.s_prj_quota_inum.get()).filter(|_| project),
        }
    }

    /// An inode number of a field, if the inode exists.
    fn existing(&self, found: u32) -> Option<InodeNr> {
        some_inode(found).filter(|inode| inode.0 <= self.geometry.inodes())
    }

    /// The MMP block; `None` without `mmp`. Inside the file system.
    #[must_use]
    pub fn mmp_block(&self) -> Option<PhysBlock> {
        let has = self.features.incompat.contains(Incompat::MMP);
        let block = PhysBlock(self.raw.s_mmp_block.get());
        (has && may_be_mmp_block(&self.geometry, block)).then_some(block)
    }

    /// Seconds between updates of the MMP block; 0 means the default.
    #[must_use]
    pub fn mmp_update_interval_seconds(&self) -> u16 {
        self.raw.s_mmp_update_interval.get()
    }
}

/// Names.
impl Superblock {
    /// The hash of new hash-tree directories, as `s_def_hash_version` numbers them. Not checked.
    #[must_use]
    pub fn def_hash_version(&self) -> u8 {
        self.raw.s_def_hash_version
    }

    /// The seed of directory hashes; all zero means the built-in one.
    #[must_use]
    pub fn hash_seed(&self) -> [u32; 4] {
        self.raw.s_hash_seed.map(|word| word.get())
    }

    /// The sign of name bytes in hashes. A file system without either flag was written on a machine
    /// with signed `char`, or has no hash trees yet.
    #[must_use]
    pub fn hash_sign(&self) -> CharSign {
        match self.flags().contains(SuperFlags::UNSIGNED_HASH) {
            true => CharSign::Unsigned,
            false => CharSign::Signed,
        }
    }

    /// The encoding of names; `None` without `casefold`.
    #[must_use]
    pub fn encoding(&self) -> Option<NameEncoding> {
        let strict = self.raw.s_encoding_flags.get() & ENC_STRICT_MODE_FL != 0;
        self.features
            .incompat
            .contains(Incompat::CASEFOLD)
            .then_some(NameEncoding { strict })
    }
}

/// State, times and errors.
impl Superblock {
    /// The state flags.
    #[must_use]
    pub fn state(&self) -> State {
        State::from_bits_retain(self.raw.s_state.get())
    }

    /// The action when an error is found.
    #[must_use]
    pub fn error_policy(&self) -> ErrorPolicy {
        match self.raw.s_errors.get() {
            1 => ErrorPolicy::Continue,
            2 => ErrorPolicy::RemountReadOnly,
            3 => ErrorPolicy::Panic,
            other => ErrorPolicy::Unknown(other),
        }
    }

    /// The time of its creation.
    #[must_use]
    pub fn mkfs_time(&self) -> Option<Timestamp> {
        Timestamp::from_superblock(self.raw.s_mkfs_time.get(), self.raw.s_mkfs_time_hi)
    }

    /// The time of the last mount; `None` for never.
    #[must_use]
    pub fn mount_time(&self) -> Option<Timestamp> {
        Timestamp::from_superblock(self.raw.s_mtime.get(), self.raw.s_mtime_hi)
    }

    /// The time of the last write of the superblock.
    #[must_use]
    pub fn write_time(&self) -> Option<Timestamp> {
        Timestamp::from_superblock(self.raw.s_wtime.get(), self.raw.s_wtime_hi)
    }

    /// The time of the last check.
    #[must_use]
    pub fn last_check(&self) -> Option<Timestamp> {
        Timestamp::from_superblock(self.raw.s_lastcheck.get(), self.raw.s_lastcheck_hi)
    }

    /// The longest time between checks in seconds; 0 means no limit.
    #[must_use]
    pub fn check_interval_seconds(&self) -> u32 {
        self.raw.s_checkinterval.get()
    }

    /// Mounts since the last check.
    #[must_use]
    pub fn mount_count(&self) -> u16 {
        self.raw.s_mnt_count.get()
    }

    /// Mounts after which a check is due; 0 or less means never.
    #[must_use]
    pub fn max_mount_count(&self) -> i16 {
        self.raw.s_max_mnt_count.get().cast_signed()
    }

    /// Errors seen since the last check.
    #[must_use]
    pub fn error_count(&self) -> u32 {
        self.raw.s_error_count.get()
    }

    /// The first error since the last check.
    #[must_use]
    pub fn first_error(&self) -> Option<ErrorRecord<'_>> {
        let raw = &self.raw;
        let time =
            Timestamp::from_superblock(raw.s_first_error_time.get(), raw.s_first_error_time_hi)?;
        Some(ErrorRecord {
            time,
            inode: some_inode(raw.s_first_error_ino.get()),
            block: some_block(raw.s_first_error_block.get()),
            function: until_zero(&raw.s_first_error_func),
            line: raw.s_first_error_line.get(),
            code: raw.s_first_error_errcode,
        })
    }

    /// The most recent error since the last check.
    #[must_use]
    pub fn last_error(&self) -> Option<ErrorRecord<'_>> {
        let raw = &self.raw;
        let time =
            Timestamp::from_superblock(raw.s_last_error_time.get(), raw.s_last_error_time_hi)?;
        Some(ErrorRecord {
            time,
            inode: some_inode(raw.s_last_error_ino.get()),
            block: some_block(raw.s_last_error_block.get()),
            function: until_zero(&raw.s_last_error_func),
            line: raw.s_last_error_line.get(),
            code: raw.s_last_error_errcode,
        })
    }
}

fn some_block(number: u64) -> Option<PhysBlock> {
    (number != 0).then_some(PhysBlock(number))
}
