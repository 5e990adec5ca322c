//! **Purpose.** The findings of a check: one variant for each invariant, with the object that
//! breaks it, the values found and what a repair would do.
//!
//! **Model.** One table gives, for each invariant, its pass, its severity, its name in the library
//! (the variant), its stable name in output (the code), its fields, its sentence and its repair.
//! Everything else (text, JSON, the list in docs/CHECK.md) follows from it.
//!
//! **Invariants.** Codes never change their meaning. The first field with a number is the subject:
//! findings of a pass are sorted by it.

mod field;

use std::fmt;

use fourscore_ondisk::dirent::DirentError;
use fourscore_ondisk::extent::ExtentError;
use fourscore_ondisk::group::GroupDescError;
use fourscore_ondisk::htree::HtreeError;
use fourscore_ondisk::inline::InlineError;
use fourscore_ondisk::mmp::MmpError;
use fourscore_ondisk::orphan::OrphanError;
use fourscore_ondisk::xattr::XattrError;
use fourscore_ondisk::{ChecksumMismatch, GroupNr, InodeNr, LogicalBlock, PhysBlock};
use serde_json::{Map, Value};

use field::Field;
pub use field::{Inodes, Name};

/// The pass of e2fsck to which an invariant belongs.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Pass {
    /// Superblock, descriptors, their backups, the journal.
    Zero,
    /// Inodes and what they map.
    One,
    /// Directories.
    Two,
    /// Whether every directory is reachable from the root.
    Three,
    /// Link counts.
    Four,
    /// Bitmaps and free counts.
    Five,
    /// Quota files.
    Six,
}

impl Pass {
    /// Its number, 0 to 6.
    #[must_use]
    pub fn number(self) -> u8 {
        match self {
            Self::Zero => 0,
            Self::One => 1,
            Self::Two => 2,
            Self::Three => 3,
            Self::Four => 4,
            Self::Five => 5,
            Self::Six => 6,
        }
    }
}

/// How severe a finding is.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Severity {
    /// Information: the file system is sound.
    Note,
    /// A wrong hint, or a wrong copy or sum that is not needed while the original is sound.
    Warning,
    /// A broken invariant.
    Error,
}

impl Severity {
    /// Its name in output.
    #[must_use]
    pub fn name(self) -> &'static str {
        match self {
            Self::Note => "note",
            Self::Warning => "warning",
            Self::Error => "error",
        }
    }
}

macro_rules! findings {
    ($($pass:ident { $(
        $(#[$doc:meta])* $severity:ident $name:ident $code:literal
        { $($field:ident: $kind:ty),* } => $text:literal, $repair:literal;
    )* })*) => {
        /// A broken invariant, or a note. The documentation of each variant is the invariant that
        /// holds in a sound file system.
        #[derive(Clone, Debug, PartialEq, Eq)]
        #[expect(missing_docs, reason = "fields bear the names of what they are")]
        pub enum Finding {
            $($( $(#[$doc])* $name { $($field: $kind),* }, )*)*
        }

        impl Finding {
            /// All codes, in the order of passes, each with pass, severity and repair.
            pub const CODES: &[Invariant] = &[
                $($( Invariant::new($code, Pass::$pass, Severity::$severity, $repair), )*)*
            ];

            /// The invariant that does not hold.
            #[must_use]
            pub fn invariant(&self) -> Invariant {
                match self {
                    $($( Self::$name { .. } =>
                        Invariant::new($code, Pass::$pass, Severity::$severity, $repair), )*)*
                }
            }

            /// The number of the first field that has one: the object of the finding.
            pub(crate) fn subject(&self) -> u64 {
                match self {
                    $($( Self::$name { $($field),* } => {
                        let numbers: &[Option<u64>] = &[$(Field::number($field)),*];
                        numbers.iter().flatten().next().copied().unwrap_or(0)
                    } )*)*
                }
            }

            /// The sentences, before fields are filled in.
            #[cfg(test)]
            const SENTENCES: &[&str] = &[$($( $text, )*)*];

            fn fields(&self) -> Map<String, Value> {
                let mut fields = Map::new();
                match self {
                    $($( Self::$name { $($field),* } => {
                        $(fields.insert(stringify!($field).to_owned(), Field::json($field));)*
                    } )*)*
                }
                fields
            }
        }

        impl fmt::Display for Finding {
            #[allow(unused_variables, reason = "not every sentence names every field")]
            fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                match self {
                    $($( Self::$name { $($field),* } => write!(f, $text), )*)*
                }
            }
        }
    };
}

/// The parts of an invariant that do not depend on the object that breaks it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Invariant {
    /// Its stable name, `[a-z0-9-]`.
    pub code: &'static str,
    /// Its pass.
    pub pass: Pass,
    /// How severe a violation is.
    pub severity: Severity,
    /// What a repair would do.
    pub repair: &'static str,
}

impl Invariant {
    const fn new(code: &'static str, pass: Pass, severity: Severity, repair: &'static str) -> Self {
        Self {
            code,
            pass,
            severity,
            repair,
        }
    }
}

findings! {
    Zero {
        /// The primary superblock is valid.
        Error SuperblockRejected "superblock" { why: String }
            => "superblock: {why}", "write a sound backup over it";
        /// The primary superblock is the one in use.
        Error BackupInUse "superblock-backup-used" { block: PhysBlock, block_bytes: u32 }
            => "superblock: the backup at block {block} of {block_bytes} bytes is used instead",
            "write it over the primary one";
        /// Fields of the superblock that readers do not depend on name existing objects.
        Error SuperblockField "superblock-field" { why: String }
            => "superblock: {why}", "clear the field, and the feature that needs it";
        /// Counts of the superblock lie within their limits.
        Error SuperblockCount "superblock-count" { field: &'static str, found: u64, most: u64 }
            => "superblock: {field} is {found}, at most {most} is valid", "set it to a twentieth of the blocks";
        /// Features are consistent with each other.
        Warning Features "superblock-features" { why: &'static str }
            => "superblock: features: {why}", "set the feature that is missing, or clear the other";
        /// Every feature is one that is known.
        Error UnknownFeatures "superblock-unknown-features" { features: String }
            => "superblock: unknown features {features}; what they mean is not checked",
            "none; a later version may know them";
        /// The superblock requests extra fields that fit into inodes.
        Warning SuperblockExtraIsize "superblock-extra-isize"
        { field: &'static str, found: u16, most: u16 }
            => "superblock: {field} {found} is no multiple of 4 from 4 to {most}",
            "set it to 32";
        /// The device is as long as the file system.
        Error DeviceShort "device-short" { found: u64, expected: u64 }
            => "device: {found} bytes, the file system has {expected}",
            "none; the device must be made longer";
        /// Without `resize_inode` no blocks are reserved for descriptors.
        Warning ReservedGdtBlocks "reserved-gdt-blocks" { found: u16 }
            => "superblock: s_reserved_gdt_blocks is {found} without resize_inode", "set it to 0";
        /// Inode 7 holds the blocks reserved for descriptors, each with its backups.
        Error ResizeInode "resize-inode" { inode: InodeNr, why: &'static str }
            => "inode {inode} (resize): {why}", "recreate the inode";
        /// Descriptors match their checksums.
        Error GroupChecksum "group-checksum" { group: GroupNr, why: GroupDescError }
            => "group {group}: {why}", "recompute the checksum and distrust the uninit flags";
        /// Bitmaps and inode tables lie where the layout permits.
        Error GroupPlace "group-place" { group: GroupNr, why: GroupDescError }
            => "group {group}: {why}", "take the place from a backup, or move it to free blocks";
        /// Without descriptor checksums nothing is uninitialised.
        Warning GroupFlags "group-flags" { group: GroupNr, found: u16 }
            => "group {group}: bg_flags is {found:#x} without descriptor checksums",
            "clear the flags";
        /// The last group has a block bitmap.
        Error LastGroupUninit "last-group-uninit" { group: GroupNr }
            => "group {group}: the last group is marked BLOCK_UNINIT", "write its bitmap";
        /// No more inodes are unused than are free.
        Warning ItableUnused "itable-unused" { group: GroupNr, found: u32, most: u32 }
            => "group {group}: bg_itable_unused is {found}, at most {most} is valid",
            "set it to 0";
        /// Fixed metadata does not overlap.
        Error MetadataOverlap "metadata-overlap"
        { group: GroupNr, field: &'static str, block: PhysBlock }
            => "group {group}: {field} at block {block} lies on other metadata",
            "take the place from a backup, or move it to free blocks";
        /// Backups of the superblock describe this file system.
        Warning BackupSuperblock "backup-superblock" { group: GroupNr, why: String }
            => "group {group}: backup superblock: {why}", "write the primary one over it";
        /// Backups of descriptors name the same tables.
        Warning BackupDescriptors "backup-descriptors" { group: GroupNr, other: GroupNr }
            => "group {group}: the backup descriptor of group {other} names other tables",
            "take the place with more sound inodes, write it over the other one";
        /// The journal's inode is a regular file without holes, large enough for a log.
        Error JournalInode "journal-inode" { inode: InodeNr, why: &'static str }
            => "inode {inode} (journal): {why}", "clear it and recreate the journal";
        /// The journal is found by its inode.
        Note JournalCopyUsed "journal-copy-used" { inode: InodeNr }
            => "inode {inode} (journal): its copy in the superblock (s_jnl_blocks) is used instead",
            "write the copy over it";
        /// The journal can be read and recovered.
        Error JournalUnreadable "journal-unreadable" { why: String }
            => "journal: {why}", "recreate the journal";
        /// A journal that needs recovery is marked so.
        Error JournalUnmarked "journal-unmarked" { start: u32 }
            => "journal: the log begins at {start}, but needs_recovery is not set",
            "mark the log as empty";
        /// The journal records no error that aborted it.
        Error JournalErrno "journal-errno" { errno: u32 }
            => "journal: error {errno} aborted it (s_errno)", "set it to 0";
        /// A journal that was replayed in memory.
        Note JournalReplayed "journal-replayed" { inode: InodeNr }
            => "inode {inode} (journal): replayed in memory; what follows is its outcome",
            "replay it on disk";
        /// Fast commits that were replayed in memory, after the transactions of the log.
        Note FastCommitsReplayed "fast-commits-replayed" { inode: InodeNr }
            => "inode {inode} (journal): replayed in memory with its fast commits; \
                what follows is the outcome",
            "replay them on disk";
        /// The last transaction of the log is complete.
        Note JournalTail "journal-tail" { why: String }
            => "journal: {why}", "nothing; a crash may end a log like this";
        /// What was committed to the log can be replayed.
        Error JournalDamaged "journal-damaged" { why: String }
            => "journal: {why}", "replay what is intact, and check the whole file system";
        /// An external journal is given, so that nothing is left to replay unseen.
        Note JournalElsewhere "journal-elsewhere" { why: &'static str }
            => "journal: {why}", "check together with the device of the journal";
        /// A journal that must be replayed is given.
        Error JournalNotGiven "journal-not-given" { uuid: String }
            => "journal: must be replayed, and is on a device that was not given (UUID {uuid}); \
                what is in place is checked",
            "none; name the device of the journal (-j) and check again";
        /// The file system was unmounted, and no error was recorded.
        Note NotClean "not-clean" { state: u16 }
            => "superblock: s_state is {state:#x}: not unmounted, or errors were recorded",
            "mark it clean";
        /// The block of multi-mount protection is valid.
        Error Mmp "mmp" { block: PhysBlock, why: MmpError }
            => "block {block}: {why}", "rewrite it";
        /// Every block of metadata can be read.
        Error Unreadable "unreadable" { block: PhysBlock, why: String }
            => "block {block}: {why}", "none; the device must be repaired";
    }
    One {
        /// Inodes match their checksums.
        Error InodeChecksum "inode-checksum" { inode: InodeNr, why: ChecksumMismatch }
            => "inode {inode}: {why}", "recompute it";
        /// The time of deletion is 0 or a time; a small number is a link of a lost orphan list.
        Error LowDtime "inode-low-dtime" { inode: InodeNr, found: u32 }
            => "inode {inode}: i_dtime is {found}, a link of a lost orphan list",
            "set it to now, or to 0 if the inode has names";
        /// A deleted inode has a time of deletion.
        Error ZeroDtime "inode-zero-dtime" { inode: InodeNr, mode: u16 }
            => "inode {inode}: deleted without i_dtime (mode {mode:#o})", "set i_dtime to now";
        /// An inode in use has no time of deletion.
        Error DtimeInUse "inode-dtime-in-use" { inode: InodeNr, found: u32 }
            => "inode {inode}: in use with i_dtime {found}", "set i_dtime to 0";
        /// The root is a directory.
        Error RootMode "root-mode" { inode: InodeNr, found: u16 }
            => "inode {inode}: the root has mode {found:#o}", "set its type, or make a root";
        /// Reserved inodes have the type of their role.
        Error ReservedMode "reserved-mode" { inode: InodeNr, found: u16 }
            => "inode {inode} (reserved): mode is {found:#o}", "set it to the type of the role";
        /// Reserved inodes without a role are empty.
        Error ReservedInUse "reserved-in-use" { inode: InodeNr }
            => "inode {inode} (reserved): not empty, and nothing refers to it", "clear it";
        /// The inode of bad blocks has no field set but its blocks.
        Error BadBlocksInode "bad-blocks-inode" { inode: InodeNr }
            => "inode {inode} (bad blocks): has more than blocks", "clear the other fields";
        /// A mode has a known type.
        Error InodeMode "inode-mode" { inode: InodeNr, found: u16 }
            => "inode {inode}: mode {found:#o} has no known type", "set it to a directory if it is one, else clear the inode";
        /// Devices, pipes and sockets map nothing.
        Error SpecialMapped "special-mapped" { inode: InodeNr, flags: u32 }
            => "inode {inode}: a special file with flags {flags:#x}, which imply data",
            "clear the flags";
        /// Special files and links are neither immutable nor append-only.
        Error SpecialImmutable "special-immutable" { inode: InodeNr, flags: u32 }
            => "inode {inode}: immutable or append-only (flags {flags:#x}), \
                which is not valid for its type",
            "clear the flags";
        /// Special files have size 0.
        Error SpecialSize "special-size" { inode: InodeNr, found: u64 }
            => "inode {inode}: a special file of {found} bytes", "set the size to 0";
        /// A symbolic link has a target as long as its size says.
        Error Symlink "symlink" { inode: InodeNr, why: &'static str }
            => "inode {inode}: symbolic link: {why}", "set the size to that of the target, or clear the inode";
        /// Reserved fields are zero.
        Error ReservedField "inode-reserved-field"
        { inode: InodeNr, field: &'static str, found: u32 }
            => "inode {inode}: {field} is {found:#x}, must be 0", "set it to 0";
        /// Flags are consistent with the features and with each other.
        Error InodeFlags "inode-flags" { inode: InodeNr, flag: &'static str, why: &'static str }
            => "inode {inode}: flag {flag}: {why}", "clear the flag, or the inode";
        /// Extra fields fit into the inode.
        Error ExtraIsize "inode-extra-isize" { inode: InodeNr, found: u16, most: u16 }
            => "inode {inode}: i_extra_isize {found} is no multiple of 4 from 4 to {most}",
            "set it to s_want_extra_isize";
        /// Times before 1970 are stored as such.
        Error TimeRange "inode-time-range" { inode: InodeNr, field: &'static str }
            => "inode {inode}: {field} lies beyond 2310: a time before 1970, stored wrongly",
            "clear its upper bits";
        /// Attributes inside an inode are valid.
        Error XattrInInode "xattr-inode" { inode: InodeNr, why: XattrError }
            => "inode {inode}: {why}", "remove all attributes inside the inode";
        /// Attributes do not overlap.
        Error XattrCollision "xattr-collision" { inode: InodeNr, at: u32 }
            => "inode {inode}: the attribute at byte {at} overlaps another",
            "remove all attributes of the area";
        /// Attributes match their hashes.
        Error XattrHash "xattr-hash" { inode: InodeNr, at: u32, found: u32, expected: u32 }
            => "inode {inode}: the attribute at byte {at} has hash {found:#010x}, \
                expected {expected:#010x}",
            "remove all attributes of the area";
        /// Names of attributes have a prefix.
        Error XattrName "xattr-name" { inode: InodeNr, at: u32 }
            => "inode {inode}: the attribute at byte {at} has no name index",
            "remove all attributes of the area";
        /// A value outside the inode is in an inode with `EA_INODE_FL` and the hash of the entry.
        Error XattrValueInode "xattr-value-inode" { inode: InodeNr, value: InodeNr }
            => "inode {inode}: the value of an attribute refers to inode \
                {value}, which holds no such value",
            "remove all attributes of the area";
        /// Attribute blocks lie inside the file system, and need the feature `ext_attr`.
        Error XattrBlockPlace "xattr-block-place" { inode: InodeNr, block: PhysBlock }
            => "inode {inode}: attribute block {block} lies outside the file system, or ext_attr is not set", "set i_file_acl to 0";
        /// Attribute blocks are valid.
        Error XattrBlock "xattr-block" { inode: InodeNr, block: PhysBlock, why: XattrError }
            => "inode {inode}: attribute block {block}: {why}", "set i_file_acl to 0";
        /// The reference counts of attribute blocks are right.
        Error XattrRefcount "xattr-refcount" { block: PhysBlock, found: u32, expected: u64 }
            => "attribute block {block}: h_refcount is {found}, expected {expected}",
            "set it to the number of inodes";
        /// The root of an extent tree is valid.
        Error ExtentRoot "extent-root" { inode: InodeNr, why: ExtentError }
            => "inode {inode}: {why}", "build the map again of what can be followed";
        /// A node of an extent tree is valid.
        Error ExtentNode "extent-node" { inode: InodeNr, block: PhysBlock, why: ExtentError }
            => "inode {inode}: block {block}: {why}", "build the map again of what can be followed";
        /// `eh_max` is the capacity of the node.
        Error ExtentMax "extent-max" { inode: InodeNr, found: u16, expected: u16 }
            => "inode {inode}: eh_max is {found}, expected {expected}", "build the map again";
        /// Extents have the same offset within a cluster in the file and on the device.
        Error ClusterAlign "cluster-align"
        { inode: InodeNr, logical: LogicalBlock, block: PhysBlock }
            => "inode {inode}: block {logical} lies at {block}, at another offset within its cluster",
            "copy the blocks to a cluster of their own";
        /// Pointers refer to blocks inside the file system.
        Error BlockOutside "block-outside" { inode: InodeNr, logical: u64, block: PhysBlock }
            => "inode {inode}: block {logical}: pointer to {block}, outside the file system",
            "clear the pointer";
        /// Blocks of maps and trees do not overlap fixed metadata.
        Error MapOnMetadata "map-on-metadata" { inode: InodeNr, block: PhysBlock }
            => "inode {inode}: its map's block {block} lies on the file system's own metadata",
            "build the map again without it";
        /// Files together map at most a bounded multiple of the blocks of the file system.
        Error SharedBeyond "shared-beyond-measure" { inode: InodeNr }
            => "inode {inode}: too many blocks are shared; the rest of its map \
                is not followed",
            "clear the inode";
        /// A directory has written blocks from its first to its last.
        Error DirUnwritten "dir-unwritten" { inode: InodeNr, logical: LogicalBlock }
            => "inode {inode}: directory block {logical} is marked unwritten", "build the map again, written";
        /// See [`Finding::DirUnwritten`].
        Error DirHole "dir-hole" { inode: InodeNr, logical: u64 }
            => "inode {inode}: the directory has a hole at block {logical}",
            "move the blocks behind it down";
        /// A directory has at least one block.
        Error DirEmpty "dir-empty" { inode: InodeNr }
            => "inode {inode}: the directory has no blocks", "clear the inode";
        /// A directory ends before 2 GiB without `large_dir`.
        Error DirTooBig "dir-too-big" { inode: InodeNr, logical: u64 }
            => "inode {inode}: the directory reaches block {logical}, past 2 GiB without large_dir", "cut it off";
        /// The size agrees with the map.
        Error InodeSize "inode-size" { inode: InodeNr, found: u64, mapped: u64 }
            => "inode {inode}: i_size is {found}, blocks are mapped up to byte {mapped}",
            "set it to the end of the map";
        /// The count of blocks agrees with the map.
        Error InodeBlocks "inode-blocks" { inode: InodeNr, found: u64, expected: u64 }
            => "inode {inode}: i_blocks is {found}, expected {expected}", "set it";
        /// A large file needs `large_file`.
        Error LargeFile "large-file" { inode: InodeNr, size: u64 }
            => "inode {inode}: {size} bytes without the feature large_file", "set the feature";
        /// With `bigalloc`, files have extents.
        Error BigallocBlockMap "bigalloc-block-map" { inode: InodeNr }
            => "inode {inode}: has a block map, which bigalloc forbids", "build the map again";
        /// Inline data can be found.
        Error Inline "inline-data" { inode: InodeNr, why: InlineError }
            => "inode {inode}: {why}", "cut the file to 0 bytes";
        /// An encrypted inode has a valid encryption context.
        Error EncryptionContext "encryption-context" { inode: InodeNr, why: &'static str }
            => "inode {inode}: encryption context: {why}", "clear the inode";
        /// The orphan file is valid.
        Error OrphanFile "orphan-file" { inode: InodeNr, block: LogicalBlock, why: OrphanError }
            => "inode {inode} (orphan file): block {block}: {why}", "write the file again";
        /// The orphan list is valid.
        Error OrphanList "orphan-list" { inode: InodeNr, why: &'static str }
            => "inode {inode} (orphan list): {why}", "drop the rest of the list";
        /// An inode that the next mount deletes or truncates.
        Note Orphan "orphan" { inode: InodeNr }
            => "inode {inode}: an orphan", "delete it, or truncate it to its size";
        /// A block belongs to one owner.
        Error SharedBlocks "shared-blocks" { block: PhysBlock, count: u64, inodes: Inodes }
            => "blocks {block} to +{count}: claimed by inodes {inodes}",
            "give each inode but the first a copy";
        /// A block of fixed metadata belongs to no inode.
        Error SharedWithMetadata "shared-with-metadata"
        { block: PhysBlock, count: u64, inodes: Inodes }
            => "blocks {block} to +{count}: metadata of the file system, claimed by \
                inodes {inodes}",
            "give each inode a copy";
    }
    Two {
        /// Blocks of directories match their checksums.
        Error DirChecksum "dir-checksum" { dir: InodeNr, block: LogicalBlock, why: DirentError }
            => "directory {dir}: block {block}: {why}", "write the block again with its entries";
        /// Records fill a block from its start to its end.
        Error DirRecord "dir-record" { dir: InodeNr, block: LogicalBlock, why: DirentError }
            => "directory {dir}: block {block}: {why}", "write the block again with the entries that are found";
        /// A directory inside its inode is valid.
        Error DirInline "dir-inline" { dir: InodeNr, why: InlineError }
            => "directory {dir}: {why}", "write it again with the entries that are found";
        /// The first entry is `.` and refers to the directory.
        Error Dot "dir-dot" { dir: InodeNr, why: &'static str }
            => "directory {dir}: its first entry {why}", "write '.' there";
        /// The second entry is `..`.
        Error DotDot "dir-dotdot" { dir: InodeNr, why: &'static str }
            => "directory {dir}: its second entry {why}", "write '..' there";
        /// `.` and `..` stand at the front only.
        Error DotsAgain "dir-dots-again" { dir: InodeNr, block: LogicalBlock, name: Name }
            => "directory {dir}: block {block}: a second entry '{name}'", "remove it";
        /// Entries refer to inodes that exist and may have names.
        Error EntryInode "entry-inode"
        { dir: InodeNr, block: LogicalBlock, name: Name, inode: InodeNr }
            => "directory {dir}: block {block}: '{name}' refers to inode {inode}, \
                which no name may refer to",
            "remove the entry";
        /// Entries refer to inodes in use.
        Error EntryUnused "entry-unused"
        { dir: InodeNr, block: LogicalBlock, name: Name, inode: InodeNr }
            => "directory {dir}: block {block}: '{name}' refers to inode {inode}, \
                which is not in use",
            "remove the entry";
        /// Entries refer to inodes in the used part of their table.
        Error EntryInUnused "entry-in-unused"
        { dir: InodeNr, block: LogicalBlock, name: Name, inode: InodeNr }
            => "directory {dir}: block {block}: '{name}' refers to inode {inode}, in a \
                part of its table marked unused",
            "lower bg_itable_unused and check again";
        /// Names do not refer to inodes that hold attribute values.
        Error EntryValue "entry-value"
        { dir: InodeNr, block: LogicalBlock, name: Name, inode: InodeNr }
            => "directory {dir}: block {block}: '{name}' refers to inode {inode}, \
                which holds the value of an attribute (EA_INODE_FL)",
            "remove the entry";
        /// Entries refer to the root only as `..`.
        Error EntryRoot "entry-root" { dir: InodeNr, block: LogicalBlock, name: Name }
            => "directory {dir}: block {block}: '{name}' refers to the root", "remove the entry";
        /// Names are not empty.
        Error EntryNoName "entry-no-name" { dir: InodeNr, block: LogicalBlock, inode: InodeNr }
            => "directory {dir}: block {block}: an entry without a name refers to inode {inode}",
            "remove the entry";
        /// Names hold neither `/` nor NUL.
        Error EntryName "entry-name" { dir: InodeNr, block: LogicalBlock, name: Name }
            => "directory {dir}: block {block}: '{name}' holds '/' or NUL", "replace the bytes by dots";
        /// Names are UTF-8 in directories that ignore case, where the encoding is strict.
        Error EntryEncoding "entry-encoding" { dir: InodeNr, block: LogicalBlock, name: Name }
            => "directory {dir}: block {block}: '{name}' is not UTF-8, which the encoding of the directory requires",
            "replace the bytes by dots";
        /// Encrypted names have the length of a cipher block at least.
        Error EntryEncrypted "entry-encrypted" { dir: InodeNr, block: LogicalBlock, name: Name }
            => "directory {dir}: block {block}: '{name}' is too short for an encrypted name",
            "remove the entry";
        /// The file type of an entry is that of its inode.
        Error EntryType "entry-type"
        { dir: InodeNr, block: LogicalBlock, name: Name, found: u32, expected: u32 }
            => "directory {dir}: block {block}: '{name}' has file type {found}, \
                expected {expected}",
            "set it";
        /// The file type of an entry is set.
        Warning EntryTypeOpen "entry-type-open"
        { dir: InodeNr, block: LogicalBlock, name: Name, expected: u32 }
            => "directory {dir}: block {block}: '{name}' has no file type, expected {expected}",
            "set it";
        /// Names of a directory differ.
        Error EntryTwice "entry-twice" { dir: InodeNr, block: LogicalBlock, name: Name }
            => "directory {dir}: block {block}: '{name}' occurs twice", "rename the second one";
        /// A directory has one name.
        Error DirTwoNames "dir-two-names" { inode: InodeNr, dir: InodeNr, other: InodeNr }
            => "directory {inode}: has names in directories {dir} and {other}",
            "remove the second name";
        /// Inodes in an encrypted directory are encrypted.
        Error EntryNotEncrypted "entry-not-encrypted"
        { dir: InodeNr, block: LogicalBlock, name: Name, inode: InodeNr }
            => "directory {dir}: block {block}: '{name}' refers to inode {inode}, \
                which is not encrypted",
            "remove the entry";
        /// Inodes in an encrypted directory have its encryption policy.
        Error EntryPolicy "entry-policy"
        { dir: InodeNr, block: LogicalBlock, name: Name, inode: InodeNr }
            => "directory {dir}: block {block}: '{name}' refers to inode {inode}, \
                which has another encryption policy",
            "remove the entry";
        /// The root of an index is valid.
        Error IndexRoot "index-root" { dir: InodeNr, why: HtreeError }
            => "directory {dir}: {why}", "remove the index; the blocks stay";
        /// A block of an index is valid.
        Error IndexNode "index-node" { dir: InodeNr, block: LogicalBlock, why: HtreeError }
            => "directory {dir}: block {block}: {why}", "remove the index; the blocks stay";
        /// Each block is in the index once.
        Error IndexUnreferenced "index-unreferenced" { dir: InodeNr, block: LogicalBlock }
            => "directory {dir}: block {block} is not in the index", "remove the index; the blocks stay";
        /// See [`Finding::IndexUnreferenced`].
        Error IndexTwice "index-twice" { dir: InodeNr, block: LogicalBlock }
            => "directory {dir}: block {block} is in the index twice", "remove the index; the blocks stay";
        /// All leaves have the same depth.
        Error IndexDepth "index-depth"
        { dir: InodeNr, block: LogicalBlock, found: u32, expected: u32 }
            => "directory {dir}: block {block} is at depth {found} of the index, \
                expected {expected}",
            "remove the index; the blocks stay";
        /// Hashes of names lie in the range of their block.
        Error IndexHash "index-hash"
        { dir: InodeNr, block: LogicalBlock, found: u32, first: u32, last: u32 }
            => "directory {dir}: block {block} has a name of hash {found:#010x}, \
                expected {first:#010x} to {last:#010x}",
            "remove the index; the blocks stay";
    }
    Three {
        /// There is a root.
        Error NoRoot "no-root" { inode: InodeNr }
            => "inode {inode}: there is no root directory", "make one";
        /// Every directory has a name.
        Error DirLost "dir-lost" { inode: InodeNr, dotdot: InodeNr }
            => "directory {inode}: no name refers to it ('..' is {dotdot})",
            "put it into lost+found";
        /// Every directory is below the root.
        Error DirLoop "dir-loop" { inode: InodeNr, parent: InodeNr }
            => "directory {inode}: lies below itself (its name is in {parent})",
            "put it into lost+found";
        /// `..` refers to the directory that has the name.
        Error DotDotInode "dotdot-inode" { inode: InodeNr, found: InodeNr, expected: InodeNr }
            => "directory {inode}: '..' refers to {found}, expected {expected}", "set it";
    }
    Four {
        /// Every inode in use has a name.
        Error Unattached "unattached" { inode: InodeNr, links: u32 }
            => "inode {inode}: in use without a name (i_links_count {links})",
            "put it into lost+found, or clear it";
        /// The link count of an inode is the number of its names.
        Error LinksCount "links-count" { inode: InodeNr, found: u32, expected: u32 }
            => "inode {inode}: i_links_count is {found}, expected {expected}", "set it";
        /// A directory with more than 65 000 links needs `dir_nlink`.
        Error DirNlink "dir-nlink" { inode: InodeNr, found: u32 }
            => "directory {inode}: {found} links, more than i_links_count can hold without the \
                feature dir_nlink",
            "set the feature";
        /// An inode with names does not have `EA_INODE_FL`.
        Error ValueFlag "value-flag" { inode: InodeNr }
            => "inode {inode}: EA_INODE_FL is set, but names refer to it and no attribute has its \
                value there",
            "clear the flag";
        /// Inodes that hold attribute values count the attributes that use them.
        Error ValueRefs "value-refs" { inode: InodeNr, found: u64, expected: u64 }
            => "inode {inode}: used by {expected} attributes, counts {found}", "set it";
    }
    Five {
        /// Bitmaps match their checksums.
        Error BitmapChecksum "bitmap-checksum" { group: GroupNr, why: GroupDescError }
            => "group {group}: {why}", "recompute it";
        /// Blocks in use are marked as used.
        Error BlockNotMarked "block-not-marked" { group: GroupNr, block: PhysBlock, count: u64 }
            => "group {group}: blocks {block} to +{count} are in use but marked free", "mark them";
        /// Blocks marked as used are in use.
        Error BlockNotUsed "block-not-used" { group: GroupNr, block: PhysBlock, count: u64 }
            => "group {group}: blocks {block} to +{count} are marked used but not in use", "free them";
        /// Inodes in use are marked as used.
        Error InodeNotMarked "inode-not-marked" { group: GroupNr, inode: InodeNr, count: u32 }
            => "group {group}: inodes {inode} to +{count} are in use but marked free", "mark them";
        /// Inodes marked as used are in use.
        Error InodeNotUsed "inode-not-used" { group: GroupNr, inode: InodeNr, count: u32 }
            => "group {group}: inodes {inode} to +{count} are marked used but not in use", "free them";
        /// Bits past the last block or inode are set.
        Error BitmapPadding "bitmap-padding" { group: GroupNr, bitmap: &'static str }
            => "group {group}: {bitmap} bitmap: bits past its end are not set", "set them";
        /// The free block count of a group is right.
        Error GroupFreeBlocks "group-free-blocks" { group: GroupNr, found: u32, expected: u32 }
            => "group {group}: {found} free clusters counted, expected {expected}", "set it";
        /// The free inode count of a group is right.
        Error GroupFreeInodes "group-free-inodes" { group: GroupNr, found: u32, expected: u32 }
            => "group {group}: {found} free inodes counted, expected {expected}", "set it";
        /// The directory count of a group is right.
        Error GroupDirs "group-dirs" { group: GroupNr, found: u32, expected: u32 }
            => "group {group}: {found} directories counted, expected {expected}", "set it";
        /// The free block count of the superblock is right.
        Warning FreeBlocks "free-blocks" { found: u64, expected: u64 }
            => "superblock: {found} free blocks counted, expected {expected}", "set it";
        /// The free inode count of the superblock is right.
        Warning FreeInodes "free-inodes" { found: u32, expected: u32 }
            => "superblock: {found} free inodes counted, expected {expected}", "set it";
    }
    Six {
        /// A quota file is valid.
        Error QuotaFile "quota-file" { inode: InodeNr, why: &'static str }
            => "inode {inode} (quota): {why}", "write the file again";
        /// Quota files hold the usage of each identifier.
        Error QuotaUsage "quota-usage"
        { inode: InodeNr, id: u32, bytes: u64, expected_bytes: u64, inodes: u64,
          expected_inodes: u64 }
            => "inode {inode} (quota): {id} uses {bytes} bytes in {inodes} inodes, \
                expected {expected_bytes} in {expected_inodes}",
            "set it";
    }
}

impl Finding {
    /// Returns a JSON object with code, pass, severity, text, repair, and the fields.
    #[must_use]
    pub fn to_json(&self) -> Value {
        let Invariant {
            code,
            pass,
            severity,
            repair,
        } = self.invariant();
        let mut object = Map::new();
        object.insert("code".to_owned(), code.into());
        object.insert("pass".to_owned(), pass.number().into());
        object.insert("severity".to_owned(), severity.name().into());
        object.insert("text".to_owned(), self.to_string().into());
        object.insert("repair".to_owned(), repair.into());
        object.insert("fields".to_owned(), self.fields().into());
        Value::Object(object)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn codes_are_distinct_and_in_one_style() {
        let mut codes: Vec<_> = Finding::CODES.iter().map(|row| row.code).collect();
        for code in &codes {
            let fits = |byte: u8| matches!(byte, b'a'..=b'z' | b'0'..=b'9' | b'-');
            assert!(code.bytes().all(fits), "{code}");
        }
        let all = codes.len();
        codes.sort_unstable();
        codes.dedup();
        assert_eq!(codes.len(), all);
    }

    #[test]
    fn every_sentence_begins_with_its_object_and_has_a_repair() {
        let objects = [
            "superblock: ",
            "device: ",
            "journal: ",
            "group {group}: ",
            "inode {inode}: ",
            "inode {inode} (",
            "directory {dir}: ",
            "directory {inode}: ",
            "block {block}: ",
            "blocks {block} to +{count}: ",
            "attribute block {block}: ",
        ];
        assert_eq!(Finding::SENTENCES.len(), Finding::CODES.len());
        for (sentence, row) in Finding::SENTENCES.iter().zip(Finding::CODES) {
            let named = objects.iter().any(|object| sentence.starts_with(object));
            assert!(named, "{}: {sentence}", row.code);
            assert!(row.repair.len() > 3, "{}: no repair", row.code);
        }
    }

    #[test]
    fn a_finding_names_its_object_and_its_repair() {
        let finding = Finding::InodeBlocks {
            inode: InodeNr(12),
            found: 8,
            expected: 16,
        };
        assert_eq!(finding.to_string(), "inode 12: i_blocks is 8, expected 16");
        assert_eq!(
            (finding.subject(), finding.invariant().repair),
            (12, "set it")
        );
        let json = finding.to_json();
        assert_eq!(json["code"], "inode-blocks");
        assert_eq!(json["fields"]["expected"], 16);
        let shared = Finding::SharedBlocks {
            block: PhysBlock(9),
            count: 2,
            inodes: Inodes(vec![InodeNr(12), InodeNr(13)]),
        };
        assert_eq!(shared.to_json()["fields"]["inodes"], "12, 13");
    }
}
