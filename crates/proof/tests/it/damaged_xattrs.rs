//! Damaged blocks of attributes and inodes of values: what is refused of them, what is not shared,
//! and that nothing is freed that others use.

use fourscore::{Error, Fs, InodeNr, SetXattr};
use fourscore_ondisk::xattr;
use fourscore_testkit::image::Image;
use fourscore_testkit::oracle::debugfs_write;
use fourscore_testkit::require;
use fourscore_testkit::tools::Need;
use std::os::unix::fs::FileExt;

use crate::common::shared_attributes::{
    NAME, VALUE, block, free_blocks, image, image_with, image_with_values, make, set, sharing,
    stats,
};
use crate::common::{self, ROOT, mount_words, open, require_e2fsprogs};

/// Changes bytes of the block of attributes at `offset`, and renews its checksum.
fn forge(image: &Image, offset: u64, change: impl FnOnce(&mut [u8])) {
    let fs = open(image);
    let superblock = fs.superblock().clone();
    let block_size = superblock.geometry().block_size();
    let file = std::fs::File::options()
        .read(true)
        .write(true)
        .open(image.path())
        .unwrap();
    let mut bytes = vec![0; block_size.bytes()];
    file.read_exact_at(&mut bytes, offset).unwrap();
    change(&mut bytes);
    let at = fourscore::PhysBlock(offset / bytes.len() as u64);
    xattr::seal_block(&mut bytes, at, superblock.checksum_seed()).unwrap();
    file.write_all_at(&bytes, offset).unwrap();
}

fn with_users(users: u32) -> impl FnOnce(&mut [u8]) {
    move |block| xattr::put_users(&mut block[xattr::REFCOUNT], users)
}

#[track_caller]
fn assert_corrupt<T: std::fmt::Debug>(outcome: fourscore::Result<T>, places: &[&str]) {
    let Err(Error::Corrupt(corrupt)) = outcome else {
        panic!("{outcome:?}");
    };
    let text = corrupt.to_string();
    for place in places {
        assert!(text.contains(place), "{place} is not in: {text}");
    }
}

#[test]
fn an_impossible_number_of_users_is_corrupt() {
    require_e2fsprogs!();
    for users in [0, 1025, u32::MAX] {
        let image = image();
        let fs = sharing(&image);
        let (file, other) = (make(&fs, "file"), make(&fs, "other"));
        set(&fs, file, &VALUE);
        let at = block(&fs, file).unwrap();
        fs.unmount().unwrap();
        forge(&image, at, with_users(users));
        let before = std::fs::read(image.path()).unwrap();
        let places = [
            format!("h_refcount is {users}"),
            format!("block {}", at / 4096),
            format!("inode {}", file.0),
        ];
        let places = places.each_ref().map(|place| &place[..]);
        let fs = open(&image);
        assert_corrupt(fs.xattr(file, NAME), &places);
        drop(fs);
        assert_eq!(std::fs::read(image.path()).unwrap(), before);
        let fs = mount_words(&image, "mbcache,errors=continue");
        assert_corrupt(fs.set_xattr(file, NAME, b"x", SetXattr::Any), &places);
        assert_corrupt(fs.remove_xattr(file, NAME), &places);
        assert_corrupt(fs.unlink(ROOT, b"file"), &places);
        // No other inode shares it.
        set(&fs, other, &VALUE);
        assert_ne!(block(&fs, other), Some(at));
        fs.unmount().unwrap();
        let fs = open(&image);
        assert!(fs.lookup(ROOT, b"file").is_ok(), "nothing was freed");
    }
}

/// A count that is too low frees a block that others still use. They are refused, whether the block
/// is free or belongs to another file by then.
#[test]
fn a_block_that_was_freed_under_its_users_is_corrupt() {
    require_e2fsprogs!();
    let image = image();
    let fs = sharing(&image);
    let (one, two) = (make(&fs, "one"), make(&fs, "two"));
    set(&fs, one, &VALUE);
    set(&fs, two, &VALUE);
    let at = block(&fs, one).unwrap();
    assert_eq!(block(&fs, two), Some(at));
    fs.unmount().unwrap();
    forge(&image, at, with_users(1));
    let fs = mount_words(&image, "mbcache,errors=continue");
    fs.remove_xattr(one, NAME).unwrap();
    let places = [
        format!("block {} is not in use", at / 4096),
        format!("inode {}", two.0),
    ];
    let places = places.each_ref().map(|place| &place[..]);
    let free = free_blocks(&fs);
    assert_corrupt(fs.set_xattr(two, NAME, &[1; 600], SetXattr::Any), &places);
    assert_corrupt(fs.remove_xattr(two, NAME), &places);
    assert_corrupt(fs.unlink(ROOT, b"two"), &places);
    assert_eq!(free_blocks(&fs), free, "nothing is freed twice");
    fs.unmount().unwrap();
}

/// A file has the block of another file's attributes as data, and frees it when it is removed. The
/// block was changed before, when it was still in use.
#[test]
fn a_block_that_a_file_has_as_data_and_frees_is_corrupt() {
    require!(
        Need::Program("mke2fs"),
        Need::Program("e2fsck"),
        Need::Program("debugfs")
    );
    let image = image();
    let fs = sharing(&image);
    let (file, data) = (make(&fs, "file"), make(&fs, "data"));
    set(&fs, file, &VALUE);
    let old = block(&fs, file).unwrap();
    fs.write_at(data, &[0; 4096], 0).unwrap();
    fs.sync().unwrap();
    let at = fs.extents(data).unwrap()[0].physical;
    fs.unmount().unwrap();
    let bytes = std::fs::read(image.path()).unwrap();
    let from = usize::try_from(old).unwrap();
    let content = bytes[from..from + 4096].to_vec();
    forge(&image, at.0 * 4096, |block| block.copy_from_slice(&content));
    debugfs_write(image.path(), &[format!("sif file file_acl {}", at.0)]).unwrap();
    let fs = mount_words(&image, "mbcache,errors=continue");
    set(&fs, file, &[1; 500]);
    set(&fs, file, &[2; 500]);
    assert_eq!(
        block(&fs, file),
        Some(at.0 * 4096),
        "it is changed in place"
    );
    fs.unlink(ROOT, b"data").unwrap();
    fs.sync().unwrap();
    let places = [
        format!("block {} is not in use", at.0),
        format!("inode {}", file.0),
    ];
    let places = places.each_ref().map(|place| &place[..]);
    assert_corrupt(fs.set_xattr(file, NAME, &[3; 500], SetXattr::Any), &places);
    assert_corrupt(fs.remove_xattr(file, NAME), &places);
    fs.unmount().unwrap();
}

/// A block that its inode uses although the bitmap calls it free gets no other user: it may be
/// given to a file at any time.
#[test]
fn a_block_that_is_free_is_not_shared() {
    require_e2fsprogs!();
    let image = image();
    let fs = sharing(&image);
    let (one, two, new) = (make(&fs, "one"), make(&fs, "two"), make(&fs, "new"));
    set(&fs, one, &VALUE);
    set(&fs, two, &VALUE);
    let at = block(&fs, two).unwrap();
    fs.unmount().unwrap();
    forge(&image, at, with_users(1));
    let fs = sharing(&image);
    fs.remove_xattr(one, NAME).unwrap();
    fs.unmount().unwrap();
    let fs = sharing(&image);
    let _ = fs.xattr(two, NAME);
    set(&fs, new, &VALUE);
    assert_eq!(stats(&fs).hits, 0);
    fs.remove_xattr(new, NAME).unwrap();
    fs.unmount().unwrap();
}

/// Damaged blocks are not shared: the attributes of another inode do not depend on them.
#[test]
fn damaged_blocks_are_not_shared() {
    require_e2fsprogs!();
    /// Where the first entry of a block has its hash, and the second one its value's offset.
    const HASH: usize = 32 + 12;
    type Damage = (&'static str, fn(&mut [u8]));
    let damages: [Damage; 4] = [
        ("the hash of the block", |block| block[12] ^= 1),
        ("no hash", |block| block[12..16].fill(0)),
        ("the hash of an entry", |block| block[HASH] ^= 1),
        ("values that share bytes", |block| {
            let second = 32 + 16 + 4;
            let first = [block[32 + 2], block[32 + 3]];
            block[second + 2..second + 4].copy_from_slice(&first);
        }),
    ];
    for (what, damage) in damages {
        let image = image();
        let fs = sharing(&image);
        let put = |fs: &Fs, file| {
            for name in [&b"user.a"[..], b"user.b"] {
                fs.set_xattr(file, name, &VALUE, SetXattr::Any).unwrap();
            }
        };
        let (old, new) = (make(&fs, "old"), make(&fs, "new"));
        put(&fs, old);
        let at = block(&fs, old).unwrap();
        fs.unmount().unwrap();
        forge(&image, at, damage);
        let fs = sharing(&image);
        assert_eq!(fs.xattr(old, b"user.a").unwrap(), VALUE, "{what}");
        put(&fs, new);
        assert_ne!(block(&fs, new), Some(at), "{what}");
        assert_eq!(stats(&fs).hits, 0, "{what}");
        fs.unmount().unwrap();
    }
}

#[test]
fn a_value_in_an_inode_that_holds_none_frees_nothing() {
    require_e2fsprogs!();
    let image = image_with_values();
    let fs = sharing(&image);
    let (file, victim) = (make(&fs, "file"), make(&fs, "victim"));
    fs.write_at(victim, b"kept", 0).unwrap();
    // Two values, the large one in an inode; the entry is in the block of the file.
    fs.set_xattr(file, b"user.large", &[1; 9000], SetXattr::Any)
        .unwrap();
    set(&fs, file, &[2; 1500]);
    fs.set_xattr(file, b"user.fill", &[3; 1500], SetXattr::Any)
        .unwrap();
    let at = block(&fs, file).unwrap();
    fs.unmount().unwrap();
    // All entries of the block whose value is in an inode get another one.
    let mut found = 0;
    forge(&image, at, |block| {
        let mut entry = 32;
        while block[entry] != 0 {
            if block[entry + 4..entry + 8] != [0; 4] {
                block[entry + 4..entry + 8].copy_from_slice(&victim.0.to_le_bytes());
                found += 1;
            }
            entry += 16 + usize::from(block[entry]).next_multiple_of(4);
        }
    });
    if found == 0 {
        // The entry went into the inode: the test would show nothing.
        panic!("no entry with a value in an inode");
    }
    let fs = mount_words(&image, "mbcache,errors=continue");
    let victim_text = format!("inode {}", victim.0);
    assert_corrupt(
        fs.remove_xattr(file, b"user.large"),
        &["EA_INODE_FL", &victim_text],
    );
    assert_corrupt(fs.unlink(ROOT, b"file"), &["EA_INODE_FL", &victim_text]);
    assert_eq!(common::content(&fs, victim), b"kept");
    fs.unmount().unwrap();
}

/// An inode that counts no user of its value, or is deleted, was freed once already.
#[test]
fn a_value_without_users_is_corrupt() {
    require!(
        Need::Program("mke2fs"),
        Need::Program("e2fsck"),
        Need::Program("debugfs")
    );
    let damages = [&["ctime 0", "version 0", "mtime 0"][..], &["links_count 0"]];
    for damage in damages {
        let image = image_with_values();
        let fs = sharing(&image);
        let (file, new) = (make(&fs, "file"), make(&fs, "new"));
        set(&fs, file, &[1; 9000]);
        let value = InodeNr(new.0 + 1);
        fs.unmount().unwrap();
        let set_fields = damage
            .iter()
            .map(|field| format!("sif <{}> {field}", value.0));
        debugfs_write(image.path(), &set_fields.collect::<Vec<_>>()).unwrap();
        let fs = mount_words(&image, "mbcache,errors=continue");
        let before = free_blocks(&fs);
        assert_eq!(fs.xattr(file, NAME).unwrap(), [1; 9000], "it can be read");
        set(&fs, new, &[1; 9000]);
        assert_eq!(stats(&fs).hits, 0, "it is not shared: {damage:?}");
        fs.remove_xattr(new, NAME).unwrap();
        let place = format!("inode {}", value.0);
        assert_corrupt(fs.remove_xattr(file, NAME), &["users", &place]);
        assert_corrupt(fs.unlink(ROOT, b"file"), &["users", &place]);
        assert_eq!(free_blocks(&fs), before, "nothing is freed");
        fs.unmount().unwrap();
    }
}

/// The inode of a value that its user has although the bitmap calls it free gets no other user: its
/// number may be given to a file at any time.
#[test]
fn a_value_whose_inode_is_free_is_not_shared() {
    require!(
        Need::Program("mke2fs"),
        Need::Program("e2fsck"),
        Need::Program("debugfs")
    );
    for is_free in [false, true] {
        // The entry is in the inode, so the only place to share is that of the value.
        let image = image_with(&["ea_inode"]);
        let fs = sharing(&image);
        // Numbers that are free and come first.
        let [early, earlier] = ["early", "earlier"].map(|name| make(&fs, name));
        let (file, new) = (make(&fs, "file"), make(&fs, "new"));
        set(&fs, file, &[1; 9000]);
        let value = InodeNr(new.0 + 1);
        assert!(fs.holds_value(value).unwrap());
        for (name, nr) in [("early", early), ("earlier", earlier)] {
            assert!(nr < value);
            fs.unlink(ROOT, name.as_bytes()).unwrap();
        }
        fs.unmount().unwrap();
        if is_free {
            debugfs_write(image.path(), &[format!("freei <{}>", value.0)]).unwrap();
        }
        let fs = mount_words(&image, "mbcache,errors=continue");
        assert_eq!(fs.xattr(file, NAME).unwrap(), [1; 9000], "it can be read");
        set(&fs, new, &[1; 9000]);
        let hits = if is_free { 0 } else { 1 };
        assert_eq!(stats(&fs).hits, hits, "{:?}", stats(&fs));
        assert_eq!(fs.xattr(new, NAME).unwrap(), [1; 9000]);
        fs.unmount().unwrap();
    }
}
