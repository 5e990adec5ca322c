//! What a mount asks of the allocator is what Linux asks: stripes from the superblock or the mount
//! option, fallocate as it is, and nothing for a file that is closed.

use std::time::{Duration, Instant};

use fourscore::{Error, Fallocate, Fs, InodeNr, OpenInode, OpenOptions};
use fourscore_mballoc::Tunable;
use fourscore_mballoc::stats::Count;
use fourscore_sync::thread;
use fourscore_testkit::image::{Image, MiB};
use fourscore_testkit::oracle::assert_clean;

use crate::common::{OWNER, ROOT, device_to_read, mount, mount_words, require_e2fsprogs};

/// More than a locality group serves with blocks of 4 KiB, and 7 blocks less than its size class.
const LEN: u64 = 25 * 4096;

fn image(arguments: &[&str]) -> Image {
    let image = Image::builder(MiB(64)).kind("ext4").block_size_bytes(4096);
    image.arguments(arguments.iter().copied()).make().unwrap()
}

fn counted(fs: &Fs, count: Count) -> u64 {
    fs.stats().mount.unwrap().allocator[count]
}

/// Clusters that are preallocated now.
fn preallocated(fs: &Fs) -> u64 {
    let taken = counted(fs, Count::Preallocated);
    taken - counted(fs, Count::Discarded) - counted(fs, Count::InodePreallocHits)
}

fn stripe(fs: &Fs) -> u32 {
    fs.tunables().unwrap().get(Tunable::Stripe)
}

#[test]
fn the_stripe_is_that_of_the_option_or_of_the_superblock() {
    require_e2fsprogs!();
    let image = image(&["-E", "stride=16,stripe_width=64"]);
    for (words, expected) in [
        ("", 64),
        ("stripe=48", 48),
        ("stripe=0", 64),
        ("stripe=1", 0),
    ] {
        let fs = mount_words(&image, words);
        assert_eq!(stripe(&fs), expected, "{words}");
        fs.unmount().unwrap();
    }
    let only_stride = self::image(&["-E", "stride=16"]);
    let fs = mount(&only_stride);
    assert_eq!(stripe(&fs), 16);
    fs.unmount().unwrap();
}

/// Blocks of a stripe are not clusters: one of 64 blocks has 4 clusters of 16.
#[test]
fn whole_stripes_of_clusters_begin_with_a_stripe() {
    require_e2fsprogs!();
    let clusters = ["-O", "bigalloc", "-C", "65536"];
    let image = image(&[&clusters[..], &["-E", "stride=16,stripe_width=64"]].concat());
    let fs = mount(&image);
    assert_eq!(stripe(&fs), 4);
    for (number, clusters) in [5, 4, 1, 4, 6, 4, 3, 8].into_iter().enumerate() {
        let name = format!("{number}");
        let file = fs.create(ROOT, name.as_bytes(), &OWNER).unwrap();
        let what = Fallocate::AllocateKeepSize;
        fs.fallocate(file, what, 0, clusters * 65536).unwrap();
        let extents = fs.extents(file).unwrap();
        if clusters % 4 == 0 {
            assert_eq!(extents[0].physical.0 % 64, 0, "{clusters}: {extents:?}");
        }
    }
    fs.unmount().unwrap();
    assert_clean(image.path());
}

#[test]
fn a_stripe_that_is_not_whole_clusters_is_none() {
    require_e2fsprogs!();
    let image = image(&["-O", "bigalloc", "-C", "65536", "-E", "stripe_width=24"]);
    let fs = mount(&image);
    assert_eq!(stripe(&fs), 0);
    fs.unmount().unwrap();
}

#[test]
fn fallocate_preallocates_nothing_beyond_its_range() {
    require_e2fsprogs!();
    let image = image(&[]);
    let fs = mount(&image);
    let file = fs.create(ROOT, b"file", &OWNER).unwrap();
    for nth in 0..4 {
        let what = Fallocate::AllocateKeepSize;
        fs.fallocate(file, what, nth * LEN, LEN).unwrap();
        assert_eq!(counted(&fs, Count::Preallocated), 0);
    }
    // Each range continues the one before it.
    assert_eq!(fs.extents(file).unwrap().len(), 1);
    fs.unmount().unwrap();
    assert_clean(image.path());
}

fn write(fs: &Fs, file: InodeNr, offset: u64) {
    let data = vec![7; usize::try_from(LEN).unwrap()];
    assert_eq!(fs.write_at(file, &data, offset).unwrap(), data.len());
}

#[test]
fn closing_gives_back_what_is_preallocated() {
    require_e2fsprogs!();
    let image = image(&[]);
    let fs = mount(&image);
    let file = OpenInode::created(&*fs, ROOT, b"file", &OWNER).unwrap();
    let other = OpenInode::new(&*fs, file.inode()).unwrap();
    write(&fs, file.inode(), 0);
    assert_eq!(preallocated(&fs), 7);
    other.close().unwrap();
    assert_eq!(preallocated(&fs), 7, "it is still open");
    let nr = file.inode();
    file.close().unwrap();
    assert_eq!(preallocated(&fs), 0);
    // The tail of a closed file gets what it asks for, and in one piece with the rest.
    write(&fs, nr, LEN);
    assert_eq!(preallocated(&fs), 0);
    assert_eq!(fs.extents(nr).unwrap().len(), 1);
    let again = OpenInode::new(&*fs, nr).unwrap();
    write(&fs, nr, 2 * LEN);
    assert!(preallocated(&fs) > 0, "it is open again");
    drop(again);
    assert_eq!(preallocated(&fs), 0);
    fs.unmount().unwrap();
    assert_clean(image.path());
}

#[test]
fn a_writer_by_number_gives_back_when_it_says_so() {
    require_e2fsprogs!();
    let image = image(&[]);
    let fs = mount(&image);
    let file = fs.create(ROOT, b"file", &OWNER).unwrap();
    write(&fs, file, 0);
    assert_eq!(preallocated(&fs), 7);
    fs.end_writing(file).unwrap();
    assert_eq!(preallocated(&fs), 0);
    fs.unmount().unwrap();
    let fs = Fs::open(device_to_read(&image), &OpenOptions::new()).unwrap();
    assert!(matches!(fs.end_writing(file), Err(Error::ReadOnly(_))));
}

#[test]
fn all_bitmaps_are_loaded_after_a_mount_that_asks_for_it() {
    require_e2fsprogs!();
    let image = Image::builder(MiB(64)).kind("ext4").block_size_bytes(1024);
    let image = image.make().unwrap();
    let loaded = |fs: &Fs| fs.stats().mount.unwrap().groups_loaded;
    for words in ["", "prefetch_block_bitmaps,no_prefetch_block_bitmaps"] {
        let fs = mount_words(&image, words);
        assert_eq!(loaded(&fs), 0, "{words}");
        fs.unmount().unwrap();
    }
    let fs = mount_words(&image, "prefetch_block_bitmaps");
    let groups = fs.superblock().geometry().groups();
    assert_eq!(groups, 8);
    let begin = Instant::now();
    while loaded(&fs) < groups {
        assert!(begin.elapsed() < Duration::from_secs(60), "{}", loaded(&fs));
        thread::sleep(Duration::from_millis(1));
    }
    fs.unmount().unwrap();
    // An unmount does not wait for all of them.
    let fs = mount_words(&image, "prefetch_block_bitmaps");
    fs.unmount().unwrap();
    assert_clean(image.path());
}

/// The blocks of the inode table that one stat reads ahead.
fn inode_blocks_read(fs: &Fs, file: InodeNr) -> u64 {
    let read = || fs.stats().buffers.read_ahead_blocks;
    let before = read();
    fs.stat(file).unwrap();
    read() - before
}

#[test]
fn the_inode_table_is_read_ahead_as_tuned() {
    require_e2fsprogs!();
    let image = image(&[]);
    let fs = mount(&image);
    let mut files: Vec<InodeNr> = (0..1000)
        .map(|n| fs.create(ROOT, format!("{n}").as_bytes(), &OWNER).unwrap())
        .collect();
    files.sort_unstable();
    fs.unmount().unwrap();
    // 16 inodes of 256 bytes in a block: 1000 of them take more than 62 blocks.
    for (words, expected) in [
        ("", 32),
        ("inode_readahead_blks=8", 8),
        ("inode_readahead_blks=1", 1),
        ("inode_readahead_blks=0", 0),
    ] {
        let fs = mount_words(&image, words);
        assert_eq!(inode_blocks_read(&fs, files[600]), expected, "{words}");
        fs.unmount().unwrap();
    }
    let fs = mount(&image);
    fs.tune("inode_readahead_blks", 4).unwrap();
    assert!(fs.tunable_values().contains(&("inode_readahead_blks", 4)));
    assert_eq!(inode_blocks_read(&fs, files[600]), 4);
    for value in [3, 1 << 31] {
        let error = fs.tune("inode_readahead_blks", value).unwrap_err();
        assert!(matches!(error, Error::InvalidArgument(_)), "{error}");
    }
    let error = fs.tune("mb_nothing", 1).unwrap_err();
    assert!(
        error.to_string().contains("inode_readahead_blks"),
        "{error}"
    );
    fs.unmount().unwrap();
}
