//! Blocks that another operation frees as metadata after a plan has joined them, as happens in
//! images in which two structures use one block.

use fourscore_block::{Structure, VerifiedAs};
use fourscore_journal::During;
use fourscore_mballoc::{Kinship, Reach};
use fourscore_ondisk::{GroupNr, PhysBlock};
use fourscore_testkit::require;
use fourscore_testkit::tools::Need;

use super::restart_tests::{Fixture, fixture};
use super::*;
use crate::Error;
use crate::inode::alloc::{self, Want};
use crate::txn::slot;

/// Adds a change to a plan, and returns a block that it changes.
type Add = fn(&mut Plan<'_>, &Fixture) -> PhysBlock;

fn add_whole_block(plan: &mut Plan<'_>, fixture: &Fixture) -> PhysBlock {
    let (block, tag) = (
        PhysBlock(2000),
        VerifiedAs::new(Structure::ExtentNode, fixture.file),
    );
    let region = plan.block(block, tag, |_| Ok(())).unwrap();
    plan.bytes_mut(region).fill(7);
    block
}

fn add_slot(plan: &mut Plan<'_>, fixture: &Fixture) -> PhysBlock {
    slot::slot(plan, fixture.file).unwrap();
    plan.memory.regions[0].buffer.block()
}

fn add_bit(plan: &mut Plan<'_>, fixture: &Fixture) -> PhysBlock {
    let tag = VerifiedAs::new(Structure::Xattrs, fixture.file);
    let goal = PhysBlock(0);
    plan.allocate_metadata(fixture.file, Reach::Full, goal, tag)
        .unwrap();
    plan.memory.claims[0].1.buffer.block()
}

fn add_directory(plan: &mut Plan<'_>, fixture: &Fixture) -> PhysBlock {
    let mount = fixture.fs.writable().unwrap();
    let claim = alloc::claim(mount, GroupNr(0), Want::Directory(Kinship::Below)).unwrap();
    plan.use_inode(claim).unwrap();
    plan.memory.inodes[0].1.descriptors
}

#[test]
fn a_block_that_is_freed_after_it_has_joined_is_reported_and_nothing_is_committed() {
    require!(Need::Program("mke2fs"));
    let adds: [Add; 4] = [add_whole_block, add_slot, add_bit, add_directory];
    for (nth, add) in adds.into_iter().enumerate() {
        let fixture = fixture();
        let mount = fixture.fs.writable().unwrap();
        let mut plan = Plan::new(mount);
        let block = add(&mut plan, &fixture);
        // So that a credit is left, or none.
        let spare = u32::from(nth % 2 == 0);
        let credits = Credits(plan.credits().0 + spare);
        let mut handle = mount.start(credits).unwrap();
        plan.join(&mut handle).unwrap();
        mount.core.buffers.forget(block, handle.tid());
        let mut is_published = false;
        let made = plan.make_visible(&mut handle, Publication::nothing(), || is_published = true);
        handle.stop();
        assert!(is_published, "the steps go on");
        match made {
            Err(Error::Corrupt(corrupt)) => assert_eq!(corrupt.place().block, Some(block)),
            other => panic!("{nth}: {other:?}"),
        }
        let logged = || mount.journal().stats().log_blocks;
        let before = logged();
        mount.journal().commit().unwrap_err();
        assert_eq!(logged(), before, "{nth}");
        let cause = mount.journal().abort_cause().map(|cause| cause.during);
        assert_eq!(cause, Some(During::FileSystem), "{nth}");
    }
}
