//! Crash states of our journal on real images, recovered by e2fsck and by the kernel: the blocks
//! are those that our recovery gives.

use std::fs;

use fourscore_testkit::journal_alone::Session;
use fourscore_testkit::mount::{Access, KernelMount};
use fourscore_testkit::tools::Need;
use fourscore_testkit::{Image, MiB, oracle, require};

/// The block with the superblock, which every recovery changes.
const SUPERBLOCK: u64 = 1;

/// Features of the image and the seed of the history, for every form of a log.
const LOGS: [(&[&str], u64); 4] = [
    (&[], 1),
    (&["^64bit"], 5),
    (&["^metadata_csum"], 7),
    (&["^metadata_csum", "^64bit", "^extent"], 8),
];

/// Counts over the samples, which show that they cover every case.
#[derive(Debug, Default)]
struct Seen {
    replayed: u32,
    revoked: u32,
    escaped: u32,
    wrapped: u32,
}

/// Calls `recover_and_compare` with `count` states of each log: the image and the bytes after our
/// recovery.
fn compare(count: u64, mut recover_and_compare: impl FnMut(&Session, &Image, &[u8])) {
    let mut seen = Seen::default();
    for (features, seed) in LOGS {
        let session = Session::record_on_image(seed, features).unwrap();
        let sampled = session.sample(count, |sample| {
            // A torn commit block makes both of them refuse or repair more than the log.
            if sample.recovered.damage().is_some() {
                return Ok(());
            }
            let image = Image::blank(MiB(8))?;
            fs::write(image.path(), &sample.before)?;
            recover_and_compare(&session, &image, &sample.after);
            let copies = sample.recovered.copies();
            seen.replayed += u32::from(!copies.is_empty());
            seen.revoked += u32::from(sample.recovered.revoked() > 0);
            seen.escaped += u32::from(copies.iter().any(|copy| copy.escaped));
            seen.wrapped += u32::from(sample.wrapped);
            Ok(())
        });
        sampled.unwrap_or_else(|error| panic!("{features:?}: {error:#}"));
    }
    println!("{seen:?}");
    let least = seen.replayed.min(seen.revoked).min(seen.escaped);
    assert!(least.min(seen.wrapped) > 0, "{seen:?}");
}

#[test]
fn e2fsck_recovers_the_same_blocks() {
    require!(
        Need::Program("mke2fs"),
        Need::Program("debugfs"),
        Need::Program("e2fsck")
    );
    compare(50, |session, image, ours| {
        let fsck = oracle::e2fsck_repair(image.path(), &["-E", "journal_only"]).unwrap();
        let theirs = fs::read(image.path()).unwrap();
        let mut differences = session.differences(ours, &theirs);
        differences.retain(|block| block.0 != SUPERBLOCK);
        assert_eq!(differences, [], "{}", fsck.output);
    });
}

#[test]
fn the_kernel_recovers_the_same_blocks() {
    require!(
        Need::Program("mke2fs"),
        Need::Program("debugfs"),
        Need::KernelMount
    );
    compare(8, |session, image, ours| {
        let mount = KernelMount::new(image.path(), Access::ReadWrite, "").unwrap();
        mount.unmount().unwrap();
        let theirs = fs::read(image.path()).unwrap();
        let mut differences = session.differences(ours, &theirs);
        differences.retain(|block| session.blocks().contains(block));
        assert_eq!(differences, []);
    });
}
