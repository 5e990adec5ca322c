//! Constructed records: their order, their limits, and hostile images.

use fourscore_block::{DeviceOptions, open_path};
use fourscore_ondisk::fast_commit::{AddRange, DelRange, Dentry, RangeState, Record};
use fourscore_ondisk::{LogicalBlock, PhysBlock, Tid};
use fourscore_sync::Arc;
use fourscore_testkit::image::{Image, MiB};
use fourscore_testkit::require;
use fourscore_testkit::tools::Need;
use proptest::prelude::*;

use super::*;
use crate::map::mapping::Target;
use crate::mount::fast_commit::ranges::RangeSet;
use crate::{Fs, OpenOptions};

const FILE: InodeNr = InodeNr(12);
const BLOCKS: u64 = 4096;

fn empty_fs() -> Arc<Fs> {
    let image = Image::builder(MiB(16))
        .kind("ext4")
        .block_size_bytes(4096)
        .make()
        .unwrap();
    let device = open_path(image.path(), DeviceOptions::default()).unwrap();
    Fs::open(Arc::new(device), &OpenOptions::new()).unwrap()
}

fn apply(fs: &Fs, records: &[Record<'_>]) -> Result<FastCommitOverlay> {
    apply::apply(records.iter().copied(), &*fs.core, fs.superblock())
}

/// An inode as in a record.
fn raw_inode(mode: u16, links: u16, flags: u32) -> Vec<u8> {
    let mut raw = vec![0; 160];
    raw[..2].copy_from_slice(&mode.to_le_bytes());
    raw[0x1a..0x1c].copy_from_slice(&links.to_le_bytes());
    raw[0x20..0x24].copy_from_slice(&flags.to_le_bytes());
    raw[0x28..0x30].copy_from_slice(b"i_block!");
    raw[0x80..0x82].copy_from_slice(&32_u16.to_le_bytes());
    raw
}

const EXTENTS: u32 = 0x8_0000;

fn add(inode: InodeNr, logical: u32, physical: u64, blocks: u32) -> Record<'static> {
    Record::AddRange(AddRange {
        inode,
        logical: LogicalBlock(logical),
        physical: PhysBlock(physical),
        blocks,
        state: RangeState::Written,
    })
}

fn name(parent: InodeNr, inode: InodeNr, name: &[u8]) -> Dentry<'_> {
    Dentry {
        parent,
        inode,
        name,
    }
}

/// Returns the patched inode as the read path has it, over a table that holds zeroes.
fn patched(fs: &Fs, overlay: &FastCommitOverlay, nr: InodeNr) -> Inode {
    let Some(InodeChange::Patched(patch)) = overlay.inodes.get(&nr) else {
        panic!("inode {nr} is not patched: {overlay:?}");
    };
    let bytes = patch.apply(&[0; 256], nr, fs.superblock()).unwrap();
    Inode::parse(&bytes, nr, fs.superblock()).unwrap()
}

#[test]
fn a_new_file_gets_an_empty_tree_and_one_link() {
    require!(Need::Program("mke2fs"));
    let fs = empty_fs();
    let raw = raw_inode(0o10_0644, 3, EXTENTS);
    let records = [
        Record::Inode {
            inode: FILE,
            raw: &raw,
        },
        add(FILE, 0, 2000, 5),
        Record::Creat(name(InodeNr::ROOT, FILE, b"file")),
    ];
    let overlay = apply(&fs, &records).unwrap();
    let inode = patched(&fs, &overlay, FILE);
    assert_eq!(inode.links_count(), 1);
    assert_eq!(inode.i_block()[..8], [0x0a, 0xf3, 0, 0, 4, 0, 0, 0]);
    let mapped = overlay.ranges[&FILE].at(LogicalBlock(2)).unwrap();
    assert_eq!(
        (mapped.blocks, mapped.target),
        (3, Target::Written(PhysBlock(2002)))
    );
    assert_eq!(overlay.dirs[&InodeNr::ROOT].get(b"file"), Some(Some(FILE)));
}

#[test]
fn what_i_block_holds_decides_where_it_comes_from() {
    require!(Need::Program("mke2fs"));
    let fs = empty_fs();
    // In short links, devices and inline data, `i_block` is content; otherwise it is the map.
    let cases = [
        (0o12_0777, 0, true),
        (0o02_0600, 0, true),
        (0o10_0644, 0x1000_0000, true),
        (0o10_0644, 0, false),
    ];
    for (mode, flags, is_content) in cases {
        let raw = raw_inode(mode, 1, flags);
        let overlay = apply(
            &fs,
            &[Record::Inode {
                inode: FILE,
                raw: &raw,
            }],
        )
        .unwrap();
        let i_block = *patched(&fs, &overlay, FILE).i_block();
        assert_eq!(
            i_block.starts_with(b"i_block!"),
            is_content,
            "{mode:o} {flags:#x}"
        );
        assert_eq!(i_block == [0; 60], !is_content);
    }
}

#[test]
fn records_about_reserved_or_unused_inodes_are_ignored() {
    require!(Need::Program("mke2fs"));
    let fs = empty_fs();
    let raw = raw_inode(0o10_0644, 1, EXTENTS);
    let journal = InodeNr::JOURNAL;
    let records = [
        Record::Inode {
            inode: journal,
            raw: &raw,
        },
        Record::Inode {
            inode: InodeNr(0),
            raw: &raw,
        },
        Record::Inode {
            inode: InodeNr(u32::MAX),
            raw: &raw,
        },
        add(journal, 0, 2000, 5),
        add(FILE, 0, 2000, 5),
        Record::Link(name(InodeNr::ROOT, journal, b"journal")),
        Record::Creat(name(InodeNr::ROOT, FILE, b"unused")),
        Record::Unlink(name(InodeNr::ROOT, FILE, b"lost+found")),
        Record::Link(name(FILE, InodeNr::ROOT, b"root")),
    ];
    let overlay = apply(&fs, &records).unwrap();
    assert!(overlay.inodes.is_empty() && overlay.ranges.is_empty() && overlay.dirs.is_empty());
}

#[test]
fn names_in_encrypted_directories_are_ignored() {
    require!(Need::Program("mke2fs"));
    let fs = empty_fs();
    let dir = InodeNr(13);
    let (raw, encrypted) = (
        raw_inode(0o10_0644, 1, EXTENTS),
        raw_inode(0o4_0755, 2, 0x800),
    );
    let records = [
        Record::Inode {
            inode: FILE,
            raw: &raw,
        },
        Record::Inode {
            inode: dir,
            raw: &encrypted,
        },
        Record::Creat(name(InodeNr::ROOT, dir, b"dir")),
        Record::Link(name(dir, FILE, b"name")),
    ];
    let overlay = apply(&fs, &records).unwrap();
    assert_eq!(overlay.dirs[&dir].entries(dir).count(), 2, "only . and ..");
}

#[test]
fn an_inode_without_links_is_gone_until_it_is_made_again() {
    require!(Need::Program("mke2fs"));
    let fs = empty_fs();
    let (raw, none) = (
        raw_inode(0o10_0644, 1, EXTENTS),
        raw_inode(0o10_0644, 0, EXTENTS),
    );
    let creat = Record::Creat(name(InodeNr::ROOT, FILE, b"a"));
    let unlink = Record::Unlink(name(InodeNr::ROOT, FILE, b"a"));
    let inode = Record::Inode {
        inode: FILE,
        raw: &raw,
    };
    let range = add(FILE, 0, 2000, 5);
    let overlay = apply(&fs, &[inode, range, creat, unlink]).unwrap();
    assert_eq!(overlay.inodes[&FILE], InodeChange::Deleted);
    assert!(overlay.ranges.is_empty());
    assert_eq!(overlay.dirs[&InodeNr::ROOT].get(b"a"), Some(None));
    let overlay = apply(&fs, &[inode, range, creat, unlink, inode, creat]).unwrap();
    assert_eq!(patched(&fs, &overlay, FILE).links_count(), 1);
    assert!(
        overlay.ranges.is_empty(),
        "ranges of the number's former life"
    );
    let gone = Record::Inode {
        inode: FILE,
        raw: &none,
    };
    let overlay = apply(&fs, &[inode, gone, creat]).unwrap();
    assert_eq!(overlay.inodes[&FILE], InodeChange::Deleted);
    assert!(overlay.dirs.is_empty());
}

/// The records that Linux writes for a file that was made by `O_TMPFILE` and linkat(2).
#[test]
fn a_name_may_come_before_its_inode_in_a_commit() {
    require!(Need::Program("mke2fs"));
    let fs = empty_fs();
    let (raw, none) = (
        raw_inode(0o10_0644, 1, EXTENTS),
        raw_inode(0o10_0644, 0, EXTENTS),
    );
    let [inode, gone] = [&raw, &none].map(|raw| Record::Inode { inode: FILE, raw });
    let link = |as_name| Record::Link(name(InodeNr::ROOT, FILE, as_name));
    let unlink = |as_name| Record::Unlink(name(InodeNr::ROOT, FILE, as_name));
    let tail = Record::Tail {
        tid: Tid(1),
        checksum: 0,
    };
    let links_to = |records: &[Record<'_>]| {
        let overlay = apply(&fs, records).unwrap();
        let root = overlay.dirs.get(&InodeNr::ROOT);
        let names = root.map_or(0, |root| root.added().count());
        (names, patched(&fs, &overlay, FILE).links_count())
    };
    assert_eq!(links_to(&[link(b"a"), inode]), (1, 1));
    assert_eq!(links_to(&[link(b"a"), tail, inode]), (0, 1));
    assert_eq!(links_to(&[link(b"a"), unlink(b"a"), inode]), (0, 1));
    let renamed = [link(b"a"), link(b"b"), unlink(b"a"), inode];
    assert_eq!(links_to(&renamed), (1, 1));
    assert_eq!(links_to(&[link(b"a"), gone, inode]), (0, 1));
    let range = add(FILE, 0, 2000, 5);
    let overlay = apply(&fs, &[link(b"a"), range, inode]).unwrap();
    assert!(overlay.ranges[&FILE].at(LogicalBlock(2)).is_some());
    let overlay = apply(&fs, &[link(b"a"), range, tail, inode]).unwrap();
    assert!(overlay.ranges.is_empty());
    // Later names are counted, as usual.
    assert_eq!(links_to(&[link(b"a"), inode, link(b"b")]), (2, 2));
}

#[test]
fn subdirectories_are_counted_as_by_the_operations() {
    require!(Need::Program("mke2fs"));
    let fs = empty_fs();
    let (dir, below) = (FILE, InodeNr(13));
    let directory = |links| raw_inode(0o04_0755, links, EXTENTS);
    let [two, most] = [2, 65_000].map(directory);
    let inode = |inode, raw| Record::Inode { inode, raw };
    let made = [
        inode(dir, &two),
        Record::Creat(name(InodeNr::ROOT, dir, b"dir")),
        inode(dir, &most),
        inode(below, &two),
        Record::Creat(name(dir, below, b"below")),
    ];
    let overlay = apply(&fs, &made).unwrap();
    // mke2fs sets `dir_nlink`.
    assert_eq!(patched(&fs, &overlay, dir).links_count(), 1);
    for (raw, links) in [(None, 1), (Some(&two), 2)] {
        let wrong = raw.map(|raw| inode(dir, raw));
        let removed = Record::Unlink(name(dir, below, b"below"));
        let records: Vec<_> = made.into_iter().chain(wrong).chain([removed]).collect();
        let overlay = apply(&fs, &records).unwrap();
        assert_eq!(patched(&fs, &overlay, dir).links_count(), links);
    }
}

#[test]
fn names_that_exist_are_left_alone() {
    require!(Need::Program("mke2fs"));
    let fs = empty_fs();
    let raw = raw_inode(0o10_0644, 1, EXTENTS);
    let records = [
        Record::Inode {
            inode: FILE,
            raw: &raw,
        },
        Record::Link(name(InodeNr::ROOT, FILE, b"lost+found")),
        Record::Link(name(InodeNr::ROOT, FILE, b"new")),
        Record::Link(name(InodeNr::ROOT, FILE, b"new")),
        // This name refers to another inode: the name stays, and one link is removed all the same.
        Record::Unlink(name(InodeNr::ROOT, FILE, b"lost+found")),
        Record::Unlink(name(InodeNr::ROOT, FILE, b"absent")),
    ];
    let overlay = apply(&fs, &records).unwrap();
    assert_eq!(patched(&fs, &overlay, FILE).links_count(), 1);
    let root = &overlay.dirs[&InodeNr::ROOT];
    assert_eq!(root.get(b"lost+found"), None);
    assert_eq!(root.added().count(), 1);
}

#[test]
fn impossible_names_and_ranges_are_refused() {
    require!(Need::Program("mke2fs"));
    let fs = empty_fs();
    let raw = raw_inode(0o10_0644, 1, EXTENTS);
    let inode = Record::Inode {
        inode: FILE,
        raw: &raw,
    };
    for bad in [&b"a/b"[..], b"a\0", b".", b".."] {
        let link = Record::Link(name(InodeNr::ROOT, FILE, bad));
        let error = apply(&fs, &[inode, link]).unwrap_err();
        assert!(error.to_string().contains("cannot be added"), "{error}");
    }
    for (physical, blocks) in [(BLOCKS - 1, 2), (BLOCKS, 1), (1 << 47, 32768)] {
        let error = apply(&fs, &[inode, add(FILE, 0, physical, blocks)]).unwrap_err();
        assert!(
            error.to_string().contains("outside the file system"),
            "{error}"
        );
    }
    assert!(apply(&fs, &[inode, add(FILE, u32::MAX, BLOCKS - 2, 2)]).is_ok());
}

#[derive(Clone, Debug)]
struct Edit {
    logical: u32,
    blocks: u32,
    target: Target,
}

/// Returns the mapping of the block `by` blocks after the one that maps to `target`.
fn further(target: Target, by: u32) -> Target {
    match target {
        Target::Hole => Target::Hole,
        Target::Unwritten(block) => Target::Unwritten(PhysBlock(block.0 + u64::from(by))),
        Target::Written(block) => Target::Written(PhysBlock(block.0 + u64::from(by))),
    }
}

fn any_edit() -> impl Strategy<Value = Edit> {
    let target = (0..3, 1_u64..1000).prop_map(|(kind, block)| match kind {
        0 => Target::Hole,
        1 => Target::Unwritten(PhysBlock(block)),
        _ => Target::Written(PhysBlock(block)),
    });
    (0_u32..60, 0_u32..20, target).prop_map(|(logical, blocks, target)| Edit {
        logical,
        blocks,
        target,
    })
}

proptest! {
    /// Compares edits of ranges, one after the other, with an array of blocks.
    #[test]
    fn ranges_equal_their_model(edits in prop::collection::vec(any_edit(), 0..40)) {
        let mut model = vec![None; 100];
        let mut set = RangeSet::default();
        for Edit { logical, blocks, target } in edits {
            set.set(LogicalBlock(logical), blocks, target);
            for by in 0..blocks {
                model[(logical + by) as usize] = Some(further(target, by));
            }
        }
        let Some(edits) = set.finish() else {
            prop_assert!(model.iter().all(Option::is_none));
            return Ok(());
        };
        for (at, expected) in (0_u32..).zip(&model) {
            let found = edits.at(LogicalBlock(at));
            prop_assert_eq!(found.map(|run| run.target), *expected, "block {}", at);
            if let Some(run) = found {
                let last = edits.at(LogicalBlock(at + run.blocks - 1));
                prop_assert_eq!(last.map(|run| run.blocks), Some(1));
            } else {
                let next = edits.next_after(LogicalBlock(at)).0;
                let expected = (at..100).find(|&at| model[at as usize].is_some());
                prop_assert_eq!(next, expected.unwrap_or(u32::MAX));
            }
        }
    }
}

#[test]
fn any_records_give_an_overlay_or_an_error() {
    require!(Need::Program("mke2fs"));
    let fs = empty_fs();
    let inodes = || prop_oneof![Just(2_u32), Just(11), 12_u32..16, any::<u32>()];
    let record = (
        0_u32..6,
        inodes(),
        inodes(),
        any::<[u32; 3]>(),
        any::<[u16; 2]>(),
    );
    let mut runner = proptest::test_runner::TestRunner::default();
    runner
        .run(&prop::collection::vec(record, 0..60), |parts| {
            let raws: Vec<Vec<u8>> = parts
                .iter()
                .map(|(_, _, _, [flags, ..], [mode, links])| {
                    raw_inode(*mode, *links, *flags | EXTENTS)
                })
                .collect();
            let names: Vec<Vec<u8>> = parts
                .iter()
                .map(|(.., [mode, _])| vec![b'a' + (*mode % 5) as u8])
                .collect();
            let records: Vec<Record<'_>> = parts
                .iter()
                .zip(raws.iter().zip(&names))
                .map(|((kind, one, two, [x, y, z], _), (raw, name))| {
                    let (one, two) = (InodeNr(*one), InodeNr(*two));
                    let dentry = Dentry {
                        parent: one,
                        inode: two,
                        name,
                    };
                    match kind {
                        0 => add(one, *x, u64::from(*y % 5000), z % 32768),
                        1 => Record::DelRange(DelRange {
                            inode: one,
                            logical: LogicalBlock(*x),
                            blocks: *y,
                        }),
                        2 => Record::Creat(dentry),
                        3 => Record::Link(dentry),
                        4 => Record::Unlink(dentry),
                        _ => Record::Inode { inode: one, raw },
                    }
                })
                .collect();
            if let Ok(overlay) = apply(&fs, &records) {
                prop_assert!(!overlay.inodes.contains_key(&InodeNr::JOURNAL));
                for (nr, change) in &overlay.inodes {
                    if let InodeChange::Patched(patch) = change {
                        let bytes = patch.apply(&[0; 256], *nr, fs.superblock()).unwrap();
                        let _ = Inode::parse(&bytes, *nr, fs.superblock());
                    }
                }
            }
            Ok(())
        })
        .unwrap();
}
