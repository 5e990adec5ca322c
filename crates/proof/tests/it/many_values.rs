//! An inode can have more values in inodes of their own than one transaction can free. It is
//! deleted all the same, in steps, and whatever a crash leaves of these steps is finished by us and
//! by the kernel. An orphan that cannot be deleted does not keep others from being deleted.

use fourscore::{
    Error, Fs, InodeNr, MountOptions, OpenInode, OpenOptions, QuotaCounts, QuotaKind, Replace,
    SetXattr,
};
use fourscore_block::RecordingDevice;
use fourscore_sync::Arc;
use fourscore_testkit::image::{Image, MiB};
use fourscore_testkit::oracle::{debugfs, debugfs_write, dumpe2fs_header, e2fsck_repair};
use fourscore_testkit::require;
use fourscore_testkit::tools::Need;

use crate::common::{
    OF_USER, PLAIN, ROOT, device_to_read, mount, mount_words, names, open, require_e2fsprogs,
    require_kernel, try_mount, unmount_clean, write_out,
};
use crate::tree::recovered::{Forgiven, assert_recovered_alike};

const VALUE_BYTES: usize = 5000;

/// A file system whose inodes have space for many attributes, and whose journal has the least size.
fn image(features: &[&str]) -> Image {
    let image = Image::builder(MiB(32)).kind("ext4").journal(MiB(4));
    let image = image.block_size_bytes(4096).inode_size_bytes(4096);
    let image = image.features(&[&["ea_inode"], features].concat());
    image.arguments(["-N", "2048"]).make().unwrap()
}

/// Gives an inode at most `most` attributes with different values of a length, each in an inode, as
/// long as it has space. Returns their number.
fn fill(fs: &Fs, inode: InodeNr, tag: u8, bytes: usize, most: usize) -> usize {
    let mut value = vec![tag; bytes];
    for count in 0..most {
        value[..8].copy_from_slice(&count.to_le_bytes());
        let name = format!("user.{count:03}");
        match fs.set_xattr(inode, name.as_bytes(), &value, SetXattr::Create) {
            Ok(()) => {}
            Err(Error::NoSpace) => return count,
            Err(error) => panic!("value {count}: {error}"),
        }
    }
    most
}

fn make_full(fs: &Fs, name: &[u8], tag: u8) -> InodeNr {
    let inode = fs.create(ROOT, name, &OF_USER).unwrap();
    let count = fill(fs, inode, tag, VALUE_BYTES, usize::MAX);
    assert!(count > 300, "{count} values");
    inode
}

/// The numbers of blocks and of inodes that are free.
fn free(fs: &Fs) -> (u64, u64) {
    fs.sync().unwrap();
    let statfs = fs.statfs().unwrap();
    (statfs.free_blocks, statfs.free_inodes.into())
}

/// What the owner of the files is charged; `None` without quota.
fn charged(fs: &Fs) -> Option<QuotaCounts> {
    let report = fs.quota(QuotaKind::User).unwrap()?;
    Some(report.entries.get(&1).unwrap().counts)
}

/// Removes a name by each of the ways on which an inode loses its last one.
#[test]
fn an_inode_with_many_values_is_deleted() {
    require_e2fsprogs!();
    for features in [&["^orphan_file"][..], &["orphan_file", "quota"]] {
        let image = image(features);
        let fs = mount(&image);
        let kept = fs.create(ROOT, b"kept", &OF_USER).unwrap();
        fs.set_xattr(kept, b"user.v", &[9; VALUE_BYTES], SetXattr::Create)
            .unwrap();
        let other = fs.create(ROOT, b"other", &OF_USER).unwrap();
        let (before, charged_before) = (free(&fs), charged(&fs));

        make_full(&fs, b"unlinked", 1);
        fs.unlink(ROOT, b"unlinked").unwrap();
        assert_eq!((free(&fs), charged(&fs)), (before, charged_before));

        let dir = fs.mkdir(ROOT, b"dir", &OF_USER).unwrap();
        fill(&fs, dir, 2, VALUE_BYTES, usize::MAX);
        fs.rmdir(ROOT, b"dir").unwrap();
        assert_eq!((free(&fs), charged(&fs)), (before, charged_before));

        let inode = make_full(&fs, b"open", 3);
        let held = OpenInode::new(&*fs, inode).unwrap();
        fs.unlink(ROOT, b"open").unwrap();
        assert_eq!(fs.xattr(inode, b"user.007").unwrap().len(), VALUE_BYTES);
        held.close().unwrap();
        assert_eq!(fs.xattr(inode, b"user.007").unwrap_err().errno(), 2);
        assert_eq!((free(&fs), charged(&fs)), (before, charged_before));

        make_full(&fs, b"replaced", 4);
        fs.rename((ROOT, b"other"), (ROOT, b"replaced"), Replace::Yes)
            .unwrap();
        assert_eq!(fs.lookup(ROOT, b"replaced").unwrap(), other);
        assert_eq!((free(&fs), charged(&fs)), (before, charged_before));

        assert_eq!(fs.orphans().unwrap(), []);
        assert_eq!(fs.xattr(kept, b"user.v").unwrap(), [9; VALUE_BYTES]);
        unmount_clean(fs, &image);
    }
}

/// Values that other inodes use as well lose a user each and stay.
#[test]
fn the_values_of_others_stay() {
    require_e2fsprogs!();
    let image = image(&[]);
    let fs = mount(&image);
    let kept = make_full(&fs, b"kept", 1);
    make_full(&fs, b"gone", 1);
    fs.unlink(ROOT, b"gone").unwrap();
    assert_eq!(fs.orphans().unwrap(), []);
    let last = fs.xattrs(kept).unwrap().pop().unwrap();
    assert_eq!(last.value[8..], [1; VALUE_BYTES - 8]);
    unmount_clean(fs, &image);
}

/// Ends of commits, behind the event `from`, at which an orphan is partly freed, each with fewer
/// values left than the one before.
fn unfinished_cuts(device: &RecordingDevice, from: usize) -> Vec<usize> {
    let events = device.events();
    let mut cuts = Vec::new();
    for cut in (from..events.len()).filter(|&at| events[at].is_flush()) {
        let device = Arc::new(device.as_of(cut).unwrap());
        let fs = Fs::open(device, &OpenOptions::new()).unwrap();
        if !fs.orphans().unwrap().is_empty() {
            cuts.push((fs.statfs().unwrap().free_inodes, cut));
        }
    }
    cuts.dedup_by_key(|(free_inodes, _)| *free_inodes);
    cuts.into_iter().map(|(_, cut)| cut).collect()
}

/// The values of one file are more than a transaction has space for, so a commit lies between the
/// steps.
#[test]
fn what_a_crash_leaves_of_many_values_is_finished() {
    require_kernel!();
    // The kernel of a test machine may not count quota; e2fsck does.
    for features in [&["^orphan_file"][..], &["orphan_file"], &["quota"]] {
        let image = image(features);
        let device = Arc::new(RecordingDevice::new(device_to_read(&image)));
        let fs = Fs::mount(device.clone(), &MountOptions::new()).unwrap();
        let names = [&b"one"[..], b"two", b"three"];
        for (name, tag) in names.into_iter().zip(1..) {
            make_full(&fs, name, tag);
        }
        fs.sync().unwrap();
        let before = device.cuts() - 1;
        for name in names {
            fs.unlink(ROOT, name).unwrap();
        }
        fs.unmount().unwrap();
        let cuts = unfinished_cuts(&device, before);
        assert!(cuts.len() > 1, "{features:?}: cuts at {cuts:?}");
        for &cut in &cuts {
            let crashed = Image::blank(MiB(32)).unwrap();
            write_out(&device.as_of(cut).unwrap(), &crashed);
            if features != ["quota"] {
                // e2fsck leaves values of an orphan behind (FINDINGS 10).
                let what = format!("{features:?}, cut at {cut}");
                assert_recovered_alike(&crashed, Forgiven::E2fsck, &what);
            } else {
                let fs = mount(&crashed);
                assert_eq!(fs.orphans().unwrap(), []);
                unmount_clean(fs, &crashed);
            }
        }
    }
}

/// An image with three orphans, the oldest of which has values. Returns the inode of one of these.
fn with_orphans(record: &str) -> (Image, InodeNr) {
    let image = image(&[record]);
    let fs = mount(&image);
    let made = |name: &str| {
        let file = OpenInode::created(Arc::clone(&fs), ROOT, name.as_bytes(), &PLAIN).unwrap();
        fs.write_at(file.inode(), &[7; 20_000], 0).unwrap();
        file
    };
    let held = ["one", "two", "three"].map(made);
    let attributed = held[1].inode();
    for (name, tag) in [(&b"user.a"[..], 1), (b"user.b", 2)] {
        fs.set_xattr(attributed, name, &[tag; VALUE_BYTES], SetXattr::Create)
            .unwrap();
    }
    fs.sync().unwrap();
    let mut numbers = (11..=fs.geometry().inodes()).map(InodeNr);
    let value = numbers.find(|&nr| fs.holds_value(nr).unwrap_or(false));
    for name in [&b"one"[..], b"two", b"three"] {
        fs.unlink(ROOT, name).unwrap();
    }
    fs.sync().unwrap();
    let crashed = image.copy().unwrap();
    drop(held);
    fs.unmount().unwrap();
    // The log would hide what is changed in place.
    debugfs_write(crashed.path(), &["jr"]).unwrap();
    assert_eq!(open(&crashed).orphans().unwrap().len(), 3);
    (crashed, value.unwrap())
}

/// It stays on the list, and the others are deleted. The error is noted in the superblock.
#[test]
fn an_orphan_that_cannot_be_deleted_does_not_refuse_the_mount() {
    require!(
        Need::Program("mke2fs"),
        Need::Program("e2fsck"),
        Need::Program("debugfs"),
        Need::Program("dumpe2fs")
    );
    for record in ["^orphan_file", "orphan_file"] {
        let (image, value) = with_orphans(record);
        let is_none = format!("set_inode_field <{value}> flags 0x80000");
        debugfs_write(image.path(), &[is_none]).unwrap();
        let stops = MountOptions::new().parse("errors=remount-ro").unwrap();
        let refused = try_mount(&image, &stops).map(drop);
        assert_eq!(
            refused.unwrap_err().errno(),
            117,
            "it would not be writable"
        );
        for errors in ["1", "2"] {
            let fs = mount_words(&image, "errors=continue");
            assert_eq!(fs.orphans().unwrap().len(), 1, "{record}");
            fs.create(ROOT, errors.as_bytes(), &PLAIN).unwrap();
            let held = OpenInode::unnamed(&*fs, ROOT, &PLAIN).unwrap();
            assert_eq!(fs.orphans().unwrap().len(), 2);
            held.close().unwrap();
            fs.unmount().unwrap();
            let header = dumpe2fs_header(image.path()).unwrap();
            assert_eq!(header["FS Error count"], errors);
            assert_eq!(header["Filesystem state"], "clean with errors");
        }
        e2fsck_repair(image.path(), &[]).unwrap();
        let fs = mount(&image);
        assert_eq!(fs.orphans().unwrap(), []);
        assert_eq!(names(&fs, ROOT).len(), 3);
        unmount_clean(fs, &image);
    }
}

/// Another program can share a block with more values than one transaction can count. A change of
/// it is refused as in Linux, and changes nothing; a deletion is not.
#[test]
fn a_shared_block_of_many_values_is_not_copied() {
    require_e2fsprogs!();
    // Each inode of a value has a block of its own.
    let image = Image::builder(MiB(96)).kind("ext4");
    let image = image.block_size_bytes(16384).inode_size_bytes(16384);
    let image = image.features(&["ea_inode"]).arguments(["-N", "512"]);
    let image = image.make().unwrap();
    let fs = mount(&image);
    let one = fs.create(ROOT, b"one", &OF_USER).unwrap();
    fs.set_xattr(one, b"user.large", &[1; 16_000], SetXattr::Create)
        .unwrap();
    assert_eq!(fill(&fs, one, 1, 17_000, 300), 300);
    let two = fs.create(ROOT, b"two", &OF_USER).unwrap();
    fs.unmount().unwrap();
    let shown = debugfs(image.path(), &["stat one"]).unwrap();
    let block = shown.split("File ACL: ").nth(1).unwrap();
    let block = block.split_whitespace().next().unwrap();
    let join = format!("set_inode_field two file_acl {block}");
    debugfs_write(image.path(), &[join]).unwrap();
    // It counts the users of the block, and the space of the second one.
    e2fsck_repair(image.path(), &[]).unwrap();

    let fs = mount(&image);
    assert!(fs.xattrs(two).unwrap().len() > 280);
    let before = free(&fs);
    let refused = fs.remove_xattr(two, b"user.299").unwrap_err();
    assert_eq!(refused.errno(), 28, "{refused}");
    assert_eq!(fs.xattr(two, b"user.299").unwrap().len(), 17_000);
    assert_eq!(free(&fs), before);
    fs.unlink(ROOT, b"one").unwrap();
    fs.remove_xattr(two, b"user.299").unwrap();
    fs.unlink(ROOT, b"two").unwrap();
    assert_eq!(fs.orphans().unwrap(), []);
    unmount_clean(fs, &image);
}
