//! Reads and copies of file data while its map changes.

use anyhow::{Context as _, Result, ensure};
use fourscore::{DataMode, Error, Fallocate, Fs, InodeNr, MountOptions, OnError};
use fourscore_ondisk::PhysBlock;
use fourscore_testkit::require;
use fourscore_testkit::tools::Need;
use std::ops::Range;

use crate::disk::{BLOCK_BYTES, Disk, OWNER, ROOT, quiet, usual};
#[cfg(feature = "sabotage")]
use crate::disk::{LONG, beside};

const BLOCK: u64 = BLOCK_BYTES as u64;
/// The number of blocks of a file of which no two are contiguous on the device: more extents than
/// fit into the inode, so they are in a leaf.
const SCATTERED: usize = 16;
const LEN: u64 = SCATTERED as u64 * BLOCK;

/// A file of [`SCATTERED`] blocks full of `byte`.
fn scattered(fs: &Fs, name: &[u8], byte: u8) -> InodeNr {
    let file = fs.create(ROOT, name, &OWNER).unwrap();
    let bytes = [byte; (2 * SCATTERED - 1) * BLOCK_BYTES];
    fs.write_at(file, &bytes, 0).unwrap();
    for at in 1..SCATTERED as u64 {
        fs.fallocate(file, Fallocate::CollapseRange, at * BLOCK, BLOCK)
            .unwrap();
    }
    assert_eq!(fs.extents(file).unwrap().len(), SCATTERED);
    file
}

/// The location of the first extent of `file` on the device.
fn first_extent(fs: &Fs, file: InodeNr) -> Range<PhysBlock> {
    let extent = fs.extents(file).unwrap()[0];
    extent.physical..PhysBlock(extent.physical.0 + u64::from(extent.blocks))
}

/// A copy that has found the blocks of its source, and reads them after they were freed and belong
/// to another file.
fn copy_beside_a_cut(options: &MountOptions) -> Result<()> {
    let disk = Disk::new();
    let fs = disk.mount(&options.clone().on_error(OnError::RemountReadOnly));
    let source = scattered(&fs, b"source", b'a');
    let target = fs.create(ROOT, b"target", &OWNER).unwrap();
    let copied = disk.stopped_at(
        first_extent(&fs, source),
        || fs.copy_file_range(source, 0, target, 0, LEN),
        || {
            fs.truncate(source, 0).unwrap();
            fs.sync().unwrap();
            fill(&fs, b's');
        },
    );
    let copied = copied.context("the copy")?;
    ensure!(copied == 0 || copied == LEN, "{copied} bytes");
    let mut bytes = vec![0; usize::try_from(LEN)?];
    let len = fs.read_at(target, &mut bytes, 0)?;
    ensure!(!bytes[..len].contains(&b's'), "data of another file");
    fs.create(ROOT, b"another", &OWNER)
        .context("an error was noted in a healthy file system")?;
    fs.unmount().unwrap();
    Ok(())
}

#[test]
fn a_copy_notes_no_damage_while_its_source_is_cut() {
    require!(Need::Program("mke2fs"));
    copy_beside_a_cut(&quiet()).unwrap();
}

/// A read that has the old key of a leaf, and finds the new leaf.
fn read_beside_a_punch(options: &MountOptions) -> Result<()> {
    let disk = Disk::new();
    let fs = disk.mount(options);
    let file = scattered(&fs, b"file", b'a');
    let mut bytes = vec![0; SCATTERED * BLOCK_BYTES];
    let read = disk.stopped_at(
        first_extent(&fs, file),
        || fs.read_at(file, &mut bytes, 0),
        || fs.fallocate(file, Fallocate::PunchHole, 0, BLOCK).unwrap(),
    );
    ensure!(read.context("the read")? == bytes.len());
    let (first, rest) = bytes.split_at(BLOCK_BYTES);
    ensure!(first.iter().all(|&byte| byte == 0) || first.iter().all(|&byte| byte == b'a'));
    ensure!(rest.iter().all(|&byte| byte == b'a'));
    fs.unmount().unwrap();
    Ok(())
}

#[test]
fn a_read_succeeds_while_the_first_key_of_a_leaf_changes() {
    require!(Need::Program("mke2fs"));
    read_beside_a_punch(&quiet()).unwrap();
}

/// Fills all free space with a file full of `byte`, which has the name `filler`.
pub(crate) fn fill(fs: &Fs, byte: u8) -> InodeNr {
    let file = fs.create(ROOT, b"filler", &OWNER).unwrap();
    let mut at = 0;
    for len in [16 * BLOCK_BYTES, BLOCK_BYTES] {
        loop {
            match fs.write_at(file, &vec![byte; len], at) {
                Ok(_) => at += len as u64,
                Err(Error::NoSpace) => break,
                Err(error) => panic!("{error}"),
            }
        }
    }
    file
}

/// A read that has an old map of journaled data, a part of which never reached the device.
fn journaled_read_beside_a_punch(options: &MountOptions) -> Result<()> {
    let disk = Disk::new();
    let fs = disk.mount(&quiet());
    let file = fs.create(ROOT, b"file", &OWNER).unwrap();
    fs.write_at(file, &[b'a'; BLOCK_BYTES], 0).unwrap();
    fill(&fs, b's');
    fs.unlink(ROOT, b"filler").unwrap();
    fs.unmount().unwrap();

    let fs = disk.mount(&options.clone().data(DataMode::Journal));
    fs.write_at(file, &[b'b'; BLOCK_BYTES], 8 * BLOCK).unwrap();
    let mut bytes = vec![0; 9 * BLOCK_BYTES];
    let read = disk.stopped_at(
        first_extent(&fs, file),
        || fs.read_at(file, &mut bytes, 0),
        || {
            fs.fallocate(file, Fallocate::PunchHole, 8 * BLOCK, BLOCK)
                .unwrap();
        },
    );
    ensure!(read? == bytes.len());
    let last = &bytes[8 * BLOCK_BYTES..];
    ensure!(
        last.iter().all(|&byte| byte == 0) || last.iter().all(|&byte| byte == b'b'),
        "a block of {:?}",
        char::from(last[0])
    );
    fs.unmount().unwrap();
    Ok(())
}

#[test]
fn journaled_content_that_goes_shows_nothing_of_what_the_device_has() {
    require!(Need::Program("mke2fs"));
    journaled_read_beside_a_punch(&quiet()).unwrap();
}

/// An operation that fails has made a buffer of zeroes for the only free block. The data of an
/// inode moves to that block next.
#[test]
fn content_that_leaves_its_inode_is_not_hidden_by_an_old_buffer() {
    require!(Need::Program("mke2fs"));
    let disk = Disk::of(&usual().features(&["inline_data"]).arguments(["-m", "0"]));
    let fs = disk.mount(&quiet());
    let small = fs.create(ROOT, b"small", &OWNER).unwrap();
    fs.write_at(small, &[b'a'; 40], 0).unwrap();
    let name = |number: u32| format!("{number:0>200}").into_bytes();
    let [dir, other] = [&b"dir"[..], b"other"].map(|name| fs.mkdir(ROOT, name, &OWNER).unwrap());
    let is_full = |number| {
        fs.link(small, other, &name(number)).unwrap();
        fs.stat(other).unwrap().size_bytes > BLOCK
    };
    let room = (0..).find(|&number| is_full(number)).unwrap();
    (0..room).for_each(|number| fs.link(small, dir, &name(number)).unwrap());
    let filler = fill(&fs, b'f');
    let size = fs.stat(filler).unwrap().size_bytes;
    fs.truncate(filler, size - BLOCK).unwrap();
    fs.unmount().unwrap();

    let fs = disk.mount(&quiet().data(DataMode::Journal));
    assert_eq!(fs.statfs().unwrap().free_blocks, 1);
    // An index and a second leaf are two blocks.
    let linked = fs.link(small, dir, &name(room));
    assert!(matches!(linked, Err(Error::NoSpace)), "{linked:?}");
    fs.write_at(small, &[b'b'; 10], 500).unwrap();
    let mut bytes = [0; 40];
    assert_eq!(fs.read_at(small, &mut bytes, 0).unwrap(), 40);
    assert_eq!(bytes, [b'a'; 40]);
    fs.unmount().unwrap();
}

/// A read that has found the blocks of a file, and reads them after they were freed and belong to
/// another file.
fn read_beside_a_reuse(options: &MountOptions) -> Result<()> {
    let disk = Disk::new();
    let fs = disk.mount(options);
    let file = fs.create(ROOT, b"file", &OWNER).unwrap();
    fs.write_at(file, &[b'a'; 4 * BLOCK_BYTES], 0).unwrap();
    let mut bytes = vec![b'x'; 4 * BLOCK_BYTES];
    let read = disk.stopped_at(
        first_extent(&fs, file),
        || fs.read_at(file, &mut bytes, 0),
        || {
            fs.fallocate(file, Fallocate::PunchHole, 0, 4 * BLOCK)
                .unwrap();
            fs.sync().unwrap();
            fill(&fs, b's');
        },
    );
    ensure!(read? == bytes.len());
    let first = bytes[0];
    ensure!(first == b'a' || first == 0, "{:?}", char::from(first));
    ensure!(bytes.iter().all(|&byte| byte == first));
    fs.unmount().unwrap();
    Ok(())
}

#[test]
fn a_read_returns_no_data_of_a_file_that_got_its_blocks() {
    require!(Need::Program("mke2fs"));
    read_beside_a_reuse(&quiet()).unwrap();
}

/// A read that has found the last block of a file, and reads it after it has moved to another
/// offset and was overwritten there.
fn read_beside_a_move(options: &MountOptions) -> Result<()> {
    let disk = Disk::new();
    let fs = disk.mount(options);
    let file = fs.create(ROOT, b"file", &OWNER).unwrap();
    fs.write_at(file, &[b'a'; BLOCK_BYTES], 0).unwrap();
    fs.write_at(file, &[b'b'; BLOCK_BYTES], BLOCK).unwrap();
    let mut bytes = vec![b'x'; BLOCK_BYTES];
    let read = disk.stopped_at(
        first_extent(&fs, file),
        || fs.read_at(file, &mut bytes, BLOCK),
        || {
            fs.fallocate(file, Fallocate::CollapseRange, 0, BLOCK)
                .unwrap();
            fs.write_at(file, &[b'c'; BLOCK_BYTES], 0).unwrap();
        },
    );
    let bytes = &bytes[..read?];
    ensure!(!bytes.contains(&b'c'), "data that was never at this offset");
    ensure!(bytes.is_empty() || bytes.iter().all(|&byte| byte == b'b'));
    fs.unmount().unwrap();
    Ok(())
}

#[test]
fn a_read_returns_no_data_that_was_written_where_its_blocks_moved_to() {
    require!(Need::Program("mke2fs"));
    read_beside_a_move(&quiet()).unwrap();
}

/// Reads of a file beside punches of its first block, which change the first key of a leaf.
#[cfg(feature = "sabotage")]
fn reads_beside_punches(options: &MountOptions) -> Result<()> {
    let disk = Disk::new();
    let fs = disk.mount(options);
    let file = scattered(&fs, b"file", b'a');
    let punch = || {
        fs.fallocate(file, Fallocate::PunchHole, 0, BLOCK)?;
        fs.write_at(file, &[b'a'; BLOCK_BYTES], 0)?;
        Ok(())
    };
    let read = || {
        let mut bytes = vec![0; SCATTERED * BLOCK_BYTES];
        fs.read_at(file, &mut bytes, 0)?;
        Ok(())
    };
    beside(LONG, 1, punch, read)
}

#[cfg(feature = "sabotage")]
put_back! {
    a_copy_without_a_lock_is_found: CopyWithoutLock, quiet(), copy_beside_a_cut;
    an_unsequenced_change_of_a_key_is_found:
        UnsequencedKeyChange, quiet(), reads_beside_punches;
    a_free_that_is_not_counted_is_found: UncountedFree, quiet(), read_beside_a_reuse;
    an_unnoticed_reuse_is_found: UnnoticedReuse, quiet(), read_beside_a_reuse;
    an_unnoticed_move_is_found: UnnoticedMove, quiet(), read_beside_a_move;
    forgetting_buffers_without_a_word_is_found:
        ForgetBeforePublish, quiet(), journaled_read_beside_a_punch;
}
