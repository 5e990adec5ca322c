//! File systems that crashed under load: each reads as the kernel leaves it after it has recovered
//! the journal.

use fourscore::{Error, InodeNr, MountOptions};
use fourscore_testkit::crash::load::Seed;
use fourscore_testkit::crash::{Death, JOURNALS};
use fourscore_testkit::image::Image;
use fourscore_testkit::mount::{Access, KernelMount};
use fourscore_testkit::oracle::assert_clean;
use fourscore_testkit::require;
use fourscore_testkit::tools::Need;

use crate::common::{open, try_mount};
use crate::tree::{Tree, assert_same, host_tree, our_tree};

/// Leaves out of the comparison what recovery itself changes: link counts of directories and the
/// space of files where fast commits were replayed; and the space and the times of files on the
/// orphan list, whose truncation recovery completes.
fn comparable(mut tree: Tree, has_fast_commits: bool, orphans: &[InodeNr]) -> Tree {
    for object in tree.values_mut() {
        if has_fast_commits {
            object.links = object.mtime.is_some().then_some(object.links).flatten();
            object.sectors = 0;
        }
        if orphans.contains(&InodeNr(object.inode)) {
            (object.sectors, object.mtime) = (0, None);
        }
    }
    tree
}

/// A read-write mount finishes the operations that the crash left unfinished, where that is
/// possible.
fn check_written(image: &Image, read: &Tree, fast_commits: bool, orphans: &[InodeNr], what: &str) {
    let written = image.copy().unwrap();
    match try_mount(&written, &MountOptions::new()) {
        Ok(mounted) => mounted.unmount().unwrap(),
        Err(Error::ReadOnly(feature)) => {
            eprintln!("{what}: not written: {feature}");
            return;
        }
        Err(error) => panic!("{what}: {error}"),
    }
    assert_clean(written.path());
    let found = comparable(our_tree(&open(&written)), fast_commits, orphans);
    assert_same(&found, read, what);
}

#[test]
fn every_crashed_image_reads_as_if_recovered() {
    require!(
        Need::KernelMount,
        Need::Program("mke2fs"),
        Need::Program("xfs_io")
    );
    for journal in JOURNALS {
        for (death, seed) in Death::ALL.into_iter().zip(1..) {
            let crashed = journal.crashed(death, Seed(seed)).unwrap();
            let fs = open(&crashed.image);
            let orphans = fs.orphans().unwrap();
            let ours = our_tree(&fs);
            let recovered = crashed.image.copy().unwrap();
            let mount = KernelMount::new(recovered.path(), Access::ReadWrite, "").unwrap();
            let kernels = host_tree(mount.path());
            let has_fast_commits = crashed.fast_commits > 0;
            let ours = comparable(ours, has_fast_commits, &orphans);
            let kernels = comparable(kernels, has_fast_commits, &orphans);
            let what = format!("{} {death:?}", journal.name);
            assert_same(&ours, &kernels, &what);
            check_written(&crashed.image, &ours, has_fast_commits, &orphans, &what);
        }
    }
}
