//! Compares how the kernel, e2fsck and we recover a file system that was not unmounted.

use fourscore::FileType;
use fourscore_testkit::image::Image;
use fourscore_testkit::mount::{Access, KernelMount};
use fourscore_testkit::oracle::{assert_clean, e2fsck_repair};

use crate::common::{mount, open, unmount_clean};
use crate::tree::{Object, Tree, assert_same, host_tree, our_tree};

/// Differences that are accepted.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Forgiven {
    Nothing,
    /// Link counts of directories, which the kernel does not correct when it replays fast commits.
    DirectoryLinks,
    /// The result of e2fsck.
    E2fsck,
}

/// Returns the part of a tree that is compared. The time at which a truncation was finished, and
/// the number of nodes that a map has afterwards, depend on the program that finishes it; e2fsck
/// compares the space with the map.
fn comparable(mut tree: Tree, forgiven: Forgiven) -> Tree {
    let unlike = |object: &mut Object| {
        (object.mtime, object.sectors) = (None, 0);
        if object.kind == FileType::Directory && forgiven == Forgiven::DirectoryLinks {
            object.links = None;
        }
    };
    tree.values_mut().for_each(unlike);
    tree
}

/// Has the kernel, e2fsck and us recover copies of a crashed image, and compares the results with
/// what we read from it before; each must be clean. Where links of directories are forgiven, e2fsck
/// first repairs the image that the kernel leaves.
pub(crate) fn assert_recovered_alike(crashed: &Image, forgiven: Forgiven, what: &str) -> Tree {
    let by_kernel = crashed.copy().unwrap();
    let kernel = KernelMount::new(by_kernel.path(), Access::ReadWrite, "").unwrap();
    let expected = comparable(host_tree(kernel.path()), forgiven);
    kernel.unmount().unwrap();
    if forgiven == Forgiven::DirectoryLinks {
        e2fsck_repair(by_kernel.path(), &[]).unwrap();
    }
    assert_clean(by_kernel.path());

    if forgiven != Forgiven::E2fsck {
        let by_e2fsck = crashed.copy().unwrap();
        let repaired = e2fsck_repair(by_e2fsck.path(), &[]).unwrap().output;
        assert_clean(by_e2fsck.path());
        // e2fsck gives up the truncation of an orphan then, and loses its blocks (FINDINGS 28).
        if !repaired.contains("Already cleared indirect block") {
            let found = comparable(our_tree(&open(&by_e2fsck)), forgiven);
            assert_same(&found, &expected, &format!("{what}: e2fsck: {repaired}"));
        }
    }

    let read = comparable(our_tree(&open(crashed)), forgiven);
    assert_same(&read, &expected, &format!("{what}: read by us"));

    let by_us = crashed.copy().unwrap();
    let fs = mount(&by_us);
    assert_eq!(fs.orphans().unwrap(), [], "{what}");
    unmount_clean(fs, &by_us);
    let found = comparable(our_tree(&open(&by_us)), forgiven);
    assert_same(&found, &expected, &format!("{what}: recovered by us"));
    expected
}
