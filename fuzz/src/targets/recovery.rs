//! **Purpose.** Recovery of forged logs: the logs of crashed seed images, with changes.
//!
//! **Input.** Which image, a byte of switches, changes ([`crate::patch`]) to the journal's blocks.

use fourscore_block::BlockDevice;
use fourscore_journal::{FastCommits, JournalMap, JournalRun, Log, recover};
use fourscore_ondisk::PhysBlock;
use fourscore_ondisk::jbd2::JournalBlock;
use fourscore_sync::Arc;

use crate::images::{self, SeedImage};
use crate::input::Input;
use crate::patch;
use crate::seal::seal_log;
use crate::targets::SEAL;

/// Runs the target.
pub fn run(data: &[u8]) {
    let mut input = Input::new(data);
    let [which, switches] = input.array();
    let image = images::dirty()[usize::from(which) % images::dirty().len()];
    let mut device = image.device();
    patch::apply(&mut input, &image.log_blocks(), image, &mut device);
    let inode_bytes = image.superblock.geometry().inode_size_bytes();
    if switches & SEAL != 0 {
        seal_log(&mut device, &image.journal, inode_bytes, |_, _| {});
    }
    let _records = replay(image, Arc::new(device), inode_bytes);
}

/// Recovers the log and reads the result; how many records and copies count.
pub fn replay(
    image: &SeedImage,
    device: Arc<dyn BlockDevice>,
    inode_bytes: usize,
) -> Option<(usize, usize)> {
    let geometry = image.superblock.geometry();
    let runs = (0..).zip(&image.journal).map(|(nr, &block)| JournalRun {
        journal_block: JournalBlock(nr),
        block: PhysBlock(block.into()),
        blocks: 1,
    });
    let map = JournalMap::from_runs(runs, geometry.blocks()).expect("the seed's own map");
    let log = Log::open(
        fourscore_sync::clone_arc(&device),
        geometry.block_size(),
        map,
    )
    .ok()?;
    let recovered = recover(&log, geometry.blocks()).ok()?;
    let journal_blocks = image.journal.len();
    assert!(
        recovered.copies().len() <= journal_blocks,
        "more copies than blocks"
    );
    assert!(
        recovered
            .copies()
            .is_sorted_by(|one, two| one.block < two.block)
    );
    for copy in recovered.copies() {
        assert!(copy.block.0 < geometry.blocks().0 && !log.map().contains(copy.block));
        assert_eq!(recovered.copy_of(copy.block), Some(copy));
    }
    let overlay = recovered
        .overlay(&log, device)
        .expect("all copies lie inside");
    let mut bytes = vec![0; geometry.block_size().bytes()];
    for copy in recovered.copies().iter().take(32) {
        let offset = geometry.block_size().offset(copy.block);
        overlay
            .read_at(&mut bytes, offset)
            .expect("the copy is on the device");
    }
    let fast_commits = FastCommits::read(&log, recovered.end_tid(), inode_bytes).ok()?;
    let records = fast_commits.records().count();
    assert_eq!(fast_commits.is_empty(), records == 0);
    Some((recovered.copies().len(), records))
}
