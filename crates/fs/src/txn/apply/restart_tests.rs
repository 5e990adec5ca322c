//! Plans that are refused, and what they leave in the transaction that refused them.

use fourscore_block::{
    BlockDevice, DeviceOp, DeviceOptions, FaultyDevice, RamDevice, Retired, Rule, Structure,
    VerifiedAs, open_path,
};
use fourscore_journal::{Background, JournalOptions};
use fourscore_mballoc::{ChangeKind, Reach};
use fourscore_ondisk::group::GroupFlags;
use fourscore_ondisk::{GroupNr, PhysBlock};
use fourscore_sync::{Arc, epoch};
use fourscore_testkit::image::{Image, MiB};
use fourscore_testkit::tools::Need;
use fourscore_testkit::{oracle, require};

use super::*;
use crate::group::change::{self, BitRange};
use crate::group::table::{Counted, Map};
use crate::txn::slot;
use crate::{Fs, InodeNr, MountOptions, NewAttributes, OpenOptions};

const OWNER: NewAttributes = NewAttributes::owned_by(0, 0);

/// A file system in memory, its device, and a file whose blocks are all at their home locations.
pub(super) struct Fixture {
    image: Image,
    device: Arc<FaultyDevice>,
    pub(super) fs: Arc<Fs>,
    pub(super) file: InodeNr,
}

pub(super) fn fixture() -> Fixture {
    fixture_of(MiB(8), 8 << 20)
}

fn fixture_of(size: MiB, cache_bytes: usize) -> Fixture {
    let image = Image::builder(size).kind("ext4").make().unwrap();
    let base = open_path(image.path(), DeviceOptions::default()).unwrap();
    let memory = Arc::new(RamDevice::over(Arc::new(base)));
    let device = Arc::new(FaultyDevice::new(memory));
    let journal = JournalOptions {
        background: Background::None,
        ..JournalOptions::default()
    };
    let open = OpenOptions::new().cache_bytes(cache_bytes);
    let options = MountOptions::new().open(open).journal(journal);
    let fs = Fs::mount(Arc::clone(&device) as _, &options).unwrap();
    let file = fs.create(InodeNr::ROOT, b"file", &OWNER).unwrap();
    fs.sync().unwrap();
    fs.writable().unwrap().journal().checkpoint().unwrap();
    Fixture {
        image,
        device,
        fs,
        file,
    }
}

/// A plan of a new block and of an inode whose table leaves the cache before the plan is applied.
/// Returns the plan and both blocks.
fn refused_once(fixture: &Fixture) -> (Plan<'_>, PhysBlock, PhysBlock) {
    let mount = fixture.fs.writable().unwrap();
    let mut plan = Plan::new(mount);
    let tag = VerifiedAs::new(Structure::Xattrs, fixture.file);
    let goal = PhysBlock(0);
    let (new, _) = plan
        .allocate_metadata(fixture.file, Reach::Full, goal, tag)
        .unwrap();
    slot::slot(&mut plan, fixture.file).unwrap();
    let table = plan.memory.regions.last().unwrap().buffer.block();
    mount
        .core
        .buffers
        .forget(table, mount.journal().running_tid());
    (plan, new, table)
}

fn is_in_transaction(fixture: &Fixture, block: PhysBlock) -> bool {
    let mount = fixture.fs.writable().unwrap();
    let guard = epoch::pin();
    let buffer = mount.core.buffers.cached(block, &guard);
    buffer.is_some_and(|buffer| buffer.is_dirty_in(mount.journal().running_tid()))
}

#[test]
fn a_plan_that_fails_leaves_none_of_its_new_blocks_in_the_transaction() {
    require!(Need::Program("mke2fs"));
    let fixture = fixture();
    let (plan, new, _) = refused_once(&fixture);
    fixture.device.add(Rule::nth(DeviceOp::Read, 1));
    plan.apply(&[]).unwrap_err();
    assert!(!is_in_transaction(&fixture, new));
    let stats = fixture.fs.writable().unwrap().journal().stats();
    fixture.fs.sync().unwrap();
    let after = fixture.fs.writable().unwrap().journal().stats();
    assert_eq!(after.log_blocks, stats.log_blocks, "nothing has changed");
    fixture.fs.unmount().unwrap();
}

#[test]
fn a_plan_that_is_refused_once_is_applied_with_all_its_blocks() {
    require!(Need::Program("mke2fs"));
    let fixture = fixture();
    let (plan, new, table) = refused_once(&fixture);
    plan.apply(&[]).unwrap();
    assert!(is_in_transaction(&fixture, new));
    assert!(is_in_transaction(&fixture, table));
}

/// Loads so many blocks that a cache without a budget keeps none of the others.
fn load_others(fixture: &Fixture) {
    let buffers = &fixture.fs.writable().unwrap().core.buffers;
    for block in 4000..5000 {
        buffers.load(PhysBlock(block)).unwrap();
    }
}

#[test]
fn a_block_that_was_refused_stays_in_the_cache_until_the_plan_ends() {
    require!(Need::Program("mke2fs"));
    let fixture = fixture_of(MiB(8), 0);
    let (mut plan, _, table) = refused_once(&fixture);
    let mount = fixture.fs.writable().unwrap();
    let is_cached = || mount.core.buffers.cached(table, &epoch::pin()).is_some();
    plan.restart(&Refused::new(ModifyError::Retired(Retired), table))
        .unwrap();
    load_others(&fixture);
    assert!(is_cached());
    drop(plan);
    load_others(&fixture);
    assert!(!is_cached());
}

/// A change of a bit of a group, which counts a directory or only the bit.
fn change_of(fixture: &Fixture, group: u32, map: Map, counted: Counted) -> BitsChange {
    let bits = BitRange {
        group: GroupNr(group),
        map,
        start: 40,
        len: 1,
    };
    let mount = fixture.fs.writable().unwrap();
    change::prepare(mount, bits, ChangeKind::Set, counted).unwrap()
}

#[test]
fn descriptors_that_left_the_cache_are_refused_though_the_bitmap_has_joined() {
    require!(Need::Program("mke2fs"));
    let fixture = fixture();
    let mount = fixture.fs.writable().unwrap();
    let change = change_of(&fixture, 0, Map::Inodes, Counted::Directory);
    mount
        .core
        .buffers
        .forget(change.descriptors, mount.journal().running_tid());
    // Another thread changes the same bitmap, with the descriptors that are in the cache now.
    let other = change_of(&fixture, 0, Map::Inodes, Counted::Directory);
    let mut handle = mount.start(Credits(4)).unwrap();
    mount.groups().join(&mut handle, &other).unwrap();
    let refused = mount.groups().join(&mut handle, &change).unwrap_err();
    assert_eq!(refused.block, change.descriptors);
    let mut change = change;
    mount.groups().reload(&mut change, refused.block).unwrap();
    mount.groups().join(&mut handle, &change).unwrap();
    handle.stop();
}

/// The plan may end without a change after the bitmap has joined, and the transaction is committed.
#[test]
fn a_bitmap_that_was_never_written_joins_with_its_initial_bytes() {
    require!(Need::Program("mke2fs"), Need::Program("e2fsck"));
    let fixture = fixture_of(MiB(40), 8 << 20);
    let mount = fixture.fs.writable().unwrap();
    let groups = mount.groups();
    let is_uninit = |group| groups.is_uninit(GroupNr(group), GroupFlags::BLOCK_UNINIT);
    let group = (0..groups.count()).find(|&group| is_uninit(group)).unwrap();
    let change = change_of(&fixture, group, Map::Blocks, Counted::Bits);
    let mut handle = mount.start(Credits(4)).unwrap();
    groups.join(&mut handle, &change).unwrap();
    handle.stop();
    assert!(!is_uninit(group));
    let Fixture {
        image, device, fs, ..
    } = fixture;
    fs.unmount().unwrap();
    let mut bytes = vec![0; usize::try_from(device.len_bytes()).unwrap()];
    device.read_at(&mut bytes, 0).unwrap();
    std::fs::write(image.path(), bytes).unwrap();
    let fsck = oracle::e2fsck(image.path()).unwrap();
    assert!(fsck.is_clean(), "{}", fsck.output);
}
