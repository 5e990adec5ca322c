//! **Purpose.** The seed images hold what they are there for, are read without an error, and their
//! checksums are all known to the sealer.

use fourscore::{Fs, OpenOptions, Replay};
use fourscore_fuzz::device::Patched;
use fourscore_fuzz::images::{self, SeedImage};
use fourscore_fuzz::seal::reseal;
use fourscore_fuzz::targets::{image, recovery};
use fourscore_ondisk::features::{Compat, Incompat, RoCompat};
use fourscore_ondisk::htree;
use fourscore_ondisk::inode::FileType;
use fourscore_sync::Arc;

#[test]
fn every_image_is_read_without_an_error() {
    for seed in images::all() {
        let found = image::read(seed.device(), Replay::InMemory).unwrap();
        let enough = found.inodes > 10 && found.entries > 10 && found.bytes > 5_000;
        assert!(enough && found.corrupt == 0, "{}: {found:?}", seed.name);
    }
}

#[test]
fn the_images_have_the_features_they_are_named_for() {
    let features = |name: &str| images::named(name).superblock.features();
    assert!(!features("ext2").compat.contains(Compat::HAS_JOURNAL));
    assert!(features("ext4").ro_compat.contains(RoCompat::METADATA_CSUM));
    assert!(
        features("inline")
            .incompat
            .contains(Incompat::INLINE_DATA | Incompat::EA_INODE)
    );
    assert!(features("bigalloc").ro_compat.contains(RoCompat::BIGALLOC));
    assert!(features("casefold").incompat.contains(Incompat::CASEFOLD));
    assert!(features("encrypt").incompat.contains(Incompat::ENCRYPT));
    assert!(features("meta-bg").incompat.contains(Incompat::META_BG));
    assert!(features("orphan-file").compat.contains(Compat::ORPHAN_FILE));
    assert!(
        images::named("orphan-file")
            .superblock
            .mmp_block()
            .is_some()
    );
    assert_eq!(
        images::named("large-inode")
            .superblock
            .geometry()
            .inode_size_bytes(),
        1024
    );
    let dirty: Vec<_> = images::dirty().iter().map(|image| image.name).collect();
    let expected = [
        "ext3-dirty",
        "ext4-dirty",
        "fast-commit",
        "orphan-file",
        "checksum-v1",
        "4k",
    ];
    assert_eq!(dirty, expected);
    for (name, block_bytes) in [("4k", 4096), ("64k", 65_536)] {
        let geometry = images::named(name).superblock.geometry();
        assert_eq!(geometry.block_size().bytes(), block_bytes);
    }
}

/// What recovery finds in the log of an image: copies of blocks and records of fast commits.
fn recovered(seed: &'static SeedImage) -> (usize, usize) {
    let inode_bytes = seed.superblock.geometry().inode_size_bytes();
    recovery::replay(seed, Arc::new(seed.device()), inode_bytes).unwrap()
}

#[test]
fn the_logs_hold_transactions_and_fast_commits() {
    for seed in images::dirty() {
        let (copies, records) = recovered(seed);
        assert!(copies > 3, "{}: {copies}", seed.name);
        assert_eq!(
            records > 10,
            seed.name == "fast-commit",
            "{}: {records}",
            seed.name
        );
    }
}

#[test]
fn deep_trees_and_indexes_are_there() {
    let open = |name: &str| {
        let device = Arc::new(images::named(name).device());
        Fs::open(device, &OpenOptions::new()).unwrap()
    };
    let fs = open("ext4");
    let fragments = fs.lookup(fourscore::InodeNr::ROOT, b"fragments").unwrap();
    assert!(
        fs.extents(fragments).unwrap().len() > 4 * 84,
        "not even two levels"
    );
    let fs = open("htree");
    let dir = fs.lookup(fourscore::InodeNr::ROOT, b"dir").unwrap();
    assert!(
        fs.stat(dir).unwrap().size_bytes > 124 << 10,
        "one level is enough"
    );
    let fs = open("htree-deep");
    let dir = fs.lookup(fourscore::InodeNr::ROOT, b"dir").unwrap();
    let root = fs.extents(dir).unwrap()[0].physical;
    let seed = images::named("htree-deep");
    let root = seed.block(usize::try_from(root.0).unwrap());
    assert_eq!(htree::root_info(root).unwrap().indirect_levels, 2);
    for entry in fs.read_dir(dir).unwrap() {
        assert_eq!(fs.lookup(dir, &entry.name).unwrap(), entry.inode);
    }
    let fs = open("casefold");
    let folded = fs.lookup(fourscore::InodeNr::ROOT, b"folded").unwrap();
    assert_eq!(fs.stat(folded).unwrap().file_type, FileType::Directory);
    let name = "STRASSE".as_bytes();
    assert!(fs.lookup(folded, name).is_ok());
}

#[test]
fn the_walk_finds_orphans_and_attributes() {
    let found = |name: &str| image::read(images::named(name).device(), Replay::InMemory).unwrap();
    assert!(found("orphan-file").orphans >= 6);
    assert!(found("ext4").xattrs > 3);
}

/// After a change that touches every block, sealing must make every checksum right again; the
/// change is one that nothing but a checksum can see.
#[test]
fn sealing_renews_every_checksum() {
    for seed in images::all()
        .iter()
        .filter(|seed| seed.superblock.has_metadata_csum())
    {
        let mut device = seed.device();
        // Another UUID: with it changes the seed of all checksums, unless the superblock stores it.
        let at = 1024 + 0x68;
        let block_bytes = device.block_bytes();
        device.block_mut(at / block_bytes)[at % block_bytes] ^= 0xff;
        let broken = image::read(clone_of(&device, seed), Replay::Ignore);
        assert!(
            broken.is_err(),
            "{}: the superblock still verifies",
            seed.name
        );
        reseal(&mut device, seed);
        let found = image::read(device, Replay::Ignore).unwrap();
        let before = image::read(seed.device(), Replay::Ignore).unwrap();
        assert_eq!(found.corrupt, before.corrupt, "{}: {found:?}", seed.name);
    }
}

fn clone_of(device: &Patched, seed: &SeedImage) -> Patched {
    let mut clone = seed.device();
    for &block in &seed.blocks {
        if device.is_changed(block as usize) {
            clone
                .block_mut(block as usize)
                .copy_from_slice(device.block(block as usize));
        }
    }
    clone
}

/// A change in the log is sealed too: recovery finds as much as before.
#[test]
fn sealing_renews_the_log() {
    for seed in images::dirty() {
        let geometry = seed.superblock.geometry();
        let mut device = seed.device();
        for block in seed.log_blocks() {
            device.block_mut(block as usize);
        }
        // The UUID of the journal seeds its checksums.
        device.block_mut(seed.journal[0] as usize)[0x30] ^= 0xff;
        reseal(&mut device, seed);
        let again = recovery::replay(seed, Arc::new(device), geometry.inode_size_bytes());
        assert_eq!(again, Some(recovered(seed)), "{}", seed.name);
    }
}
