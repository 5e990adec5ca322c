//! **Purpose.** Bombs and loops made by hand: images that would make a trusting reader run for ever
//! or fill the memory. Each call ends with the very error that names the fault, or within bounds.
//!
//! **Model.** A seed image is changed and sealed again, so that all checksums are right.

use std::time::{Duration, Instant};

use fourscore::{
    Corrupt, CorruptKind, Error, FileType, Follow, Fs, InodeNr, LogicalBlock, OpenOptions,
    PhysBlock, Replay, Seek,
};
use fourscore_fuzz::device::{BLOCK_BYTES, Patched};
use fourscore_fuzz::images::{self, SeedImage};
use fourscore_fuzz::seal::{reseal, seal_log};
use fourscore_fuzz::targets::recovery;
use fourscore_ondisk::Tid;
use fourscore_ondisk::extent::ExtentError;
use fourscore_ondisk::htree::HtreeError;
use fourscore_ondisk::jbd2::{Damage, JournalBlock};
use fourscore_ondisk::relation::RelationError;
use fourscore_ondisk::xattr::XattrError;
use fourscore_sync::Arc;

/// More than any of these may take on a slow machine.
const SOON: Duration = Duration::from_secs(20);

/// Offsets in an inode.
const I_SIZE_LO: usize = 4;
const I_DTIME: usize = 0x14;
const I_BLOCK: usize = 0x28;
const I_FILE_ACL: usize = 0x68;
const I_SIZE_HIGH: usize = 0x6c;

/// An image in the making.
struct Forge {
    seed: &'static SeedImage,
    before: Arc<Fs>,
    device: Patched,
}

impl Forge {
    fn new(name: &str) -> Self {
        let seed = images::named(name);
        let before = Fs::open(Arc::new(seed.device()), &OpenOptions::new()).unwrap();
        Self {
            seed,
            before,
            device: seed.device(),
        }
    }

    fn find(&self, path: &str) -> InodeNr {
        self.before.resolve(path.as_bytes(), Follow::No).unwrap()
    }

    fn block(&mut self, block: PhysBlock) -> &mut [u8] {
        self.device.block_mut(usize::try_from(block.0).unwrap())
    }

    fn inode(&mut self, nr: InodeNr) -> &mut [u8] {
        let (group, index) = self.before.geometry().inode_group(nr).unwrap();
        let table = self.before.group(group).unwrap().inode_table();
        let place = self.before.geometry().inode_place(table, index);
        &mut self.block(place.block)[place.offset_bytes..]
    }

    /// The number that `i_block` has at a byte.
    fn pointer(&mut self, nr: InodeNr, at: usize) -> PhysBlock {
        PhysBlock(get(self.inode(nr), I_BLOCK + at).into())
    }

    fn set_size(&mut self, nr: InodeNr, size_bytes: u64) {
        let [a, b, c, d, rest @ ..] = size_bytes.to_le_bytes();
        let inode = self.inode(nr);
        put(inode, I_SIZE_LO, u32::from_le_bytes([a, b, c, d]));
        put(inode, I_SIZE_HIGH, u32::from_le_bytes(rest));
    }

    fn open(mut self) -> Arc<Fs> {
        reseal(&mut self.device, self.seed);
        let options = OpenOptions::new().replay(Replay::Ignore);
        Fs::open(Arc::new(self.device), &options).unwrap()
    }
}

fn get(bytes: &[u8], at: usize) -> u32 {
    u32::from_le_bytes(bytes[at..at + 4].try_into().unwrap())
}

fn put(bytes: &mut [u8], at: usize, value: u32) {
    bytes[at..at + 4].copy_from_slice(&value.to_le_bytes());
}

fn block_nr(block: PhysBlock) -> u32 {
    u32::try_from(block.0).unwrap()
}

/// The fault that ended a call.
#[track_caller]
fn kind<T: std::fmt::Debug>(answer: fourscore::Result<T>) -> CorruptKind {
    match answer {
        Err(Error::Corrupt(corrupt)) => corrupt.kind().clone(),
        other => panic!("not corrupt: {other:?}"),
    }
}

#[track_caller]
fn soon<T>(work: impl FnOnce() -> T) -> T {
    let begin = Instant::now();
    let result = work();
    assert!(begin.elapsed() < SOON, "took {:?}", begin.elapsed());
    result
}

#[test]
fn an_extent_node_that_is_its_own_child() {
    let mut forge = Forge::new("ext4");
    let file = forge.find("fragments");
    let node = forge.pointer(file, 12 + 4);
    assert_eq!(
        forge.block(node)[..2],
        [0x0a, 0xf3],
        "the root has a node below it"
    );
    put(forge.block(node), 12 + 4, block_nr(node));
    let expected = ExtentError::Depth {
        found: 1,
        expected: 0,
    };
    assert_eq!(
        kind(forge.open().extents(file)),
        CorruptKind::Extent(expected)
    );
}

#[test]
fn two_index_entries_with_the_same_leaf() {
    let mut forge = Forge::new("ext4");
    let file = forge.find("fragments");
    let node = forge.pointer(file, 12 + 4);
    let (first, second) = (get(forge.block(node), 12 + 4), get(forge.block(node), 24));
    put(forge.block(node), 24 + 4, first);
    let expected = ExtentError::FirstKey {
        found: LogicalBlock(0),
        expected: LogicalBlock(second),
    };
    let fs = forge.open();
    assert_eq!(kind(fs.extents(file)), CorruptKind::Extent(expected));
    assert!(
        fs.read_at(file, &mut [0; 10], 0).is_ok(),
        "what comes before is read"
    );
}

#[test]
fn indirect_blocks_that_point_to_themselves() {
    let mut forge = Forge::new("ext2");
    let file = forge.find("triple");
    let top = forge.pointer(file, 14 * 4);
    assert_ne!(top, PhysBlock(0));
    for at in (0..BLOCK_BYTES).step_by(4) {
        put(forge.block(top), at, block_nr(top));
    }
    for at in (0..15 * 4).step_by(4) {
        put(forge.inode(file), I_BLOCK + at, block_nr(top));
    }
    forge.set_size(file, 16 << 30);
    let fs = forge.open();
    let limit = fs.geometry().blocks().0;
    let expected = CorruptKind::Relation(RelationError::TooManyBlocks {
        found: limit + 1,
        limit,
    });
    assert_eq!(soon(|| kind(fs.extents(file))), expected);
    assert_eq!(soon(|| kind(fs.seek(file, 0, Seek::Hole))), expected);
    assert_eq!(fs.seek(file, 5, Seek::Data).unwrap(), Some(5));
    let mut room = [0; 3000];
    assert_eq!(fs.read_at(file, &mut room, 8 << 30).unwrap(), 3000);
    assert_eq!(
        get(&room, 0),
        block_nr(top),
        "its own content is what it maps to"
    );
}

#[test]
fn a_hole_that_is_mapped_piece_by_piece_has_an_end() {
    let mut forge = Forge::new("ext2");
    let file = forge.find("triple");
    let (top, empty) = (forge.pointer(file, 14 * 4), forge.pointer(file, 12 * 4));
    let leaf = if empty == PhysBlock(0) {
        forge.pointer(forge.find("indirect"), 48)
    } else {
        empty
    };
    forge.block(leaf).fill(0);
    let below = PhysBlock(get(forge.block(top), 0).into());
    for (block, to) in [(top, below), (below, leaf)] {
        for at in (0..BLOCK_BYTES).step_by(4) {
            put(forge.block(block), at, block_nr(to));
        }
    }
    forge.set_size(file, 16 << 30);
    let fs = forge.open();
    assert_eq!(soon(|| fs.seek(file, 0, Seek::Data)).unwrap(), None);
    assert!(soon(|| fs.extents(file)).unwrap().is_empty());
}

#[test]
fn a_directory_with_every_block_the_same() {
    let mut forge = Forge::new("ext2");
    let dir = forge.find("many");
    let (first, indirect) = (forge.pointer(dir, 0), PhysBlock(1000));
    let ordinary = forge.pointer(dir, 4);
    for at in (4..13 * 4).step_by(4) {
        put(forge.inode(dir), I_BLOCK + at, block_nr(ordinary));
    }
    put(forge.inode(dir), I_BLOCK + 48, block_nr(indirect));
    for at in (0..BLOCK_BYTES).step_by(4) {
        put(forge.block(indirect), at, block_nr(ordinary));
    }
    put(forge.inode(dir), I_BLOCK, block_nr(first));
    forge.set_size(dir, 268 << 10);
    let fs = forge.open();
    let expected = RelationError::DirectoryBlockTwice {
        found: LogicalBlock(2),
    };
    assert_eq!(kind(fs.read_dir(dir)), CorruptKind::Relation(expected));
    let mut forge = Forge::new("ext2");
    forge.set_size(dir, 1 << 31);
    let expected = RelationError::DirectorySize {
        found_bytes: 1 << 31,
        limit: 1024,
    };
    assert_eq!(
        kind(forge.open().read_dir(dir)),
        CorruptKind::Relation(expected)
    );
}

/// A walk that follows entries must meet the directory again; the command's walk says so and ends.
#[test]
fn a_directory_below_itself() {
    let mut forge = Forge::new("ext2");
    let (dir, below) = (forge.find("dir"), forge.find("dir/below"));
    let block = forge.pointer(below, 0);
    let at = 24;
    assert_eq!(&forge.block(block)[at + 8..at + 14], b"sparse");
    put(forge.block(block), at, dir.0);
    forge.block(block)[at + 7] = 2;
    let mut bytes = Vec::new();
    for nr in 0..forge.seed.bytes.len() / BLOCK_BYTES {
        bytes.extend_from_slice(forge.device.block(nr));
    }
    let folder = tempfile::tempdir().unwrap();
    let image = folder.path().join("image");
    std::fs::write(&image, bytes).unwrap();
    let fs = forge.open();
    assert_eq!(
        fs.resolve(b"dir/below/sparse/below", Follow::No).unwrap(),
        below
    );
    assert_eq!(fs.stat(dir).unwrap().file_type, FileType::Directory);
    for verb in ["walk", "extract"] {
        let mut arguments = vec![
            "fourscore".into(),
            verb.into(),
            image.clone().into_os_string(),
        ];
        if verb == "extract" {
            arguments.push(folder.path().join("tree").into_os_string());
        }
        let status = soon(|| fourscore_cli::main(arguments));
        assert_eq!(
            format!("{status:?}"),
            format!("{:?}", std::process::ExitCode::FAILURE)
        );
    }
}

#[test]
fn a_sparse_file_of_16_tib() {
    let mut forge = Forge::new("ext4");
    let file = forge.find("dir/below/sparse");
    let last = u32::MAX - 1;
    // The file's only extent, moved to the last block that a file can have.
    let data = forge.pointer(file, 12 + 8);
    put(forge.inode(file), I_BLOCK + 12, last);
    forge.block(data).fill(7);
    let size_bytes = 16 << 40;
    forge.set_size(file, size_bytes);
    let fs = forge.open();
    let at = u64::from(last) << 10;
    assert_eq!(soon(|| fs.seek(file, 0, Seek::Data)).unwrap(), Some(at));
    assert_eq!(fs.seek(file, at, Seek::Hole).unwrap(), Some(at + 1024));
    assert_eq!(fs.seek(file, at + 1024, Seek::Data).unwrap(), None);
    assert_eq!(
        fs.seek(file, size_bytes - 1, Seek::Hole).unwrap(),
        Some(size_bytes - 1)
    );
    let mut room = [1; 3072];
    assert_eq!(fs.read_at(file, &mut room, at - 1024).unwrap(), 3072);
    let parts = [(0..1024, 0), (1024..2048, 7), (2048..3072, 0)];
    for (range, byte) in parts {
        assert!(
            room[range.clone()].iter().all(|&found| found == byte),
            "{range:?}"
        );
    }
    let mut room = vec![1; 8 << 20];
    assert_eq!(soon(|| fs.read_at(file, &mut room, 0)).unwrap(), room.len());
    assert!(room.iter().all(|&byte| byte == 0));
    assert_eq!(fs.read_at(file, &mut room, size_bytes - 3).unwrap(), 3);
}

#[test]
fn attributes_with_huge_and_with_shared_values() {
    let forge = |change: fn(&mut [u8])| {
        let mut forge = Forge::new("ext4");
        let file = forge.find("dir/file");
        let block = PhysBlock(get(forge.inode(file), I_FILE_ACL).into());
        assert_ne!(block, PhysBlock(0), "the attributes are not in a block");
        change(forge.block(block));
        (forge.open(), file)
    };
    let (fs, file) = forge(|block| put(block, 32 + 8, u32::MAX));
    let found = kind(fs.xattrs(file));
    assert!(
        matches!(
            found,
            CorruptKind::Xattr(XattrError::ValueSize { .. } | XattrError::ValueOffset { .. })
        ),
        "{found:?}"
    );
    // All values at the place of the first one: shared bytes are read once for each, no more.
    let (fs, file) = forge(|block| {
        let first = [block[34], block[35]];
        let mut at = 32;
        while get(block, at) != 0 {
            let name_bytes = usize::from(block[at]);
            block[at + 2..at + 4].copy_from_slice(&first);
            at += (16 + name_bytes).next_multiple_of(4);
        }
    });
    let total: usize = match fs.xattrs(file) {
        Ok(xattrs) => xattrs.iter().map(|xattr| xattr.value.len()).sum(),
        Err(Error::Corrupt(_)) => 0,
        Err(other) => panic!("{other}"),
    };
    assert!(total <= 8 * BLOCK_BYTES, "{total}");
}

#[test]
fn an_inode_of_an_attribute_value_with_a_size_of_a_tebibyte() {
    let mut forge = Forge::new("inline");
    let file = forge.find("fragments");
    let holder = (11..64).map(InodeNr).find(|&nr| {
        let flags = get(forge.inode(nr), 0x20);
        flags & 0x20_0000 != 0
    });
    let holder = holder.expect("an EA inode");
    forge.set_size(holder, 1 << 40);
    let found = kind(forge.open().xattrs(file));
    assert!(
        matches!(&found, CorruptKind::Relation(RelationError::EaInodeSize { found, .. })
            if *found == 1 << 40),
        "{found:?}"
    );
}

#[test]
fn an_orphan_chain_that_comes_back() {
    let mut forge = Forge::new("ext4");
    let (one, two) = (forge.find("empty"), forge.find("dir/file"));
    put(forge.block(PhysBlock(1)), 0xe8, one.0);
    put(forge.inode(one), I_DTIME, two.0);
    put(forge.inode(two), I_DTIME, one.0);
    let fs = forge.open();
    let expected = Corrupt::from(RelationError::OrphanTwice).in_inode(one);
    match fs.orphans() {
        Err(Error::Corrupt(found)) => assert_eq!(found, expected),
        other => panic!("not corrupt: {other:?}"),
    }
}

/// Its only block, over and over: each reading of it is right, and none ends.
#[test]
fn an_orphan_file_as_long_as_a_disk() {
    let mut forge = Forge::new("orphan-file");
    let file = forge.before.superblock().orphan_file_inode().unwrap();
    let limit_bytes = 8 << 20;
    forge.set_size(file, limit_bytes + 1024);
    let found = kind(forge.open().orphans());
    let expected = RelationError::OrphanFileSize {
        found_bytes: limit_bytes + 1024,
        limit_bytes,
    };
    assert_eq!(found, CorruptKind::Relation(expected));
}

#[test]
fn links_that_lead_to_themselves() {
    let fs = Forge::new("ext4").open();
    assert!(matches!(
        fs.resolve(b"loop", Follow::Yes),
        Err(Error::TooManySymlinks)
    ));
    assert!(matches!(
        fs.resolve(b"loop/x", Follow::No),
        Err(Error::TooManySymlinks)
    ));
}

#[test]
fn an_index_whose_entries_all_lead_back_to_the_root() {
    let mut forge = Forge::new("htree");
    let dir = forge.find("dir");
    let root = forge.before.extents(dir).unwrap()[0].physical;
    let entries = usize::from(u16::from_le_bytes([
        forge.block(root)[34],
        forge.block(root)[35],
    ]));
    assert!(entries > 1 && forge.block(root)[30] == 1, "two levels");
    for entry in 0..entries {
        put(forge.block(root), 32 + 8 * entry + 4, 0);
    }
    let found = kind(soon(|| forge.open().lookup(dir, b"x")));
    assert!(
        matches!(
            found,
            CorruptKind::Htree(HtreeError::Block { .. } | HtreeError::NodeRecord { .. })
        ),
        "{found:?}"
    );
}

/// Every block of the log is a descriptor of the expected transaction: the scan makes one turn.
#[test]
fn a_log_of_nothing_but_descriptors() {
    for name in ["ext3-dirty", "ext4-dirty"] {
        let seed = images::named(name);
        let mut device = seed.device();
        let start = device.block(seed.journal[0] as usize);
        let [first, sequence] =
            [0x1c, 0x18].map(|at| u32::from_be_bytes(start[at..at + 4].try_into().unwrap()));
        let descriptor = device.block(seed.journal[first as usize] as usize).to_vec();
        assert_eq!(
            descriptor[..8],
            [0xc0, 0x3b, 0x39, 0x98, 0, 0, 0, 1],
            "the log begins with one"
        );
        assert_eq!(descriptor[8..12], sequence.to_be_bytes());
        for &block in &seed.journal[1..] {
            device
                .block_mut(block as usize)
                .copy_from_slice(&descriptor);
        }
        seal_log(&mut device, &seed.journal, 256, |_, _| {});
        let found = soon(|| recovery::replay(seed, Arc::new(device), 256));
        assert_eq!(found, Some((0, 0)), "{name}: nothing is committed");
    }
}

/// The last transaction's commit block does not match: the transactions before it count, and
/// the damage is reported.
#[test]
fn damage_of_the_last_transaction_is_reported() {
    let mut forge = Forge::new("ext4-dirty");
    assert_eq!(forge.before.journal_damage(), None);
    let commit = |&(_, block): &(usize, u32)| {
        let block = forge.device.block(block as usize);
        let header = [0xc0, 0x3b, 0x39, 0x98, 0, 0, 0, 2];
        let tid = block.strip_prefix(&header)?.first_chunk()?;
        Some(u32::from_be_bytes(*tid))
    };
    let blocks = forge.seed.journal.iter().copied().enumerate();
    let (nr, last) = blocks.max_by_key(commit).unwrap();
    let tid = Tid(commit(&(nr, last)).expect("a commit block"));
    // The time of the commit, which nothing but the checksum holds.
    forge.device.block_mut(last as usize)[0x3b] ^= 1;
    let fs = Fs::open(Arc::new(forge.device), &OpenOptions::new()).unwrap();
    let found = fs.journal_damage().expect("the damage is seen");
    assert_eq!(found.tid, tid);
    assert!(
        matches!(found.damage, Damage::Commit { journal_block, .. }
            if journal_block == JournalBlock(u32::try_from(nr).unwrap())),
        "{found}"
    );
    assert!(fs.read_dir(InodeNr::ROOT).unwrap().len() > 3);
}

/// Each tag of the log names the same block: one copy is left.
#[test]
fn a_log_whose_tags_all_name_the_same_block() {
    let seed = images::named("ext3-dirty");
    let mut device = seed.device();
    let mut tags = 0;
    for &block in &seed.journal[1..] {
        let is_descriptor = device
            .block(block as usize)
            .starts_with(&[0xc0, 0x3b, 0x39, 0x98, 0, 0, 0, 1]);
        if !is_descriptor {
            continue;
        }
        let bytes = device.block_mut(block as usize);
        let mut at = 12;
        loop {
            bytes[at..at + 4].copy_from_slice(&1_u32.to_be_bytes());
            tags += 1;
            let flags = bytes[at + 7];
            at += if flags & 2 == 0 { 24 } else { 8 };
            if flags & 8 != 0 {
                break;
            }
        }
    }
    assert!(tags > 5, "{tags}");
    assert_eq!(recovery::replay(seed, Arc::new(device), 256), Some((1, 0)));
}
