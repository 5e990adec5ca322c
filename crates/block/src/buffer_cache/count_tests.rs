//! Tests of the number of cache lines that operations of the buffer cache move between cores.

use fourscore_ondisk::InodeNr;
use fourscore_sync::CoreNr;
use fourscore_sync::count::{Cores, Report, with_cores};

use super::*;
use crate::RamDevice;
use crate::buffer::Structure;

const BLOCKS: u64 = 256;

fn tag() -> VerifiedAs {
    VerifiedAs::new(Structure::InodeTable, InodeNr(0))
}

fn cache(hits: HitCounting) -> BufferCache {
    let device = Arc::new(RamDevice::new(BLOCKS * 4096));
    let block_size = BlockSize::from_log(2).expect("4 KiB");
    BufferCache::new(
        device,
        block_size,
        CacheOptions {
            budget_bytes: 16 << 20,
            hits,
        },
    )
}

/// The cost after every core has performed the operation on every block.
fn steady(cores: &Cores, mut operation: impl FnMut(PhysBlock)) -> Report {
    let mut all = || (0..BLOCKS).map(PhysBlock).for_each(&mut operation);
    cores.run(2, |_, _| all());
    cores.run(2, |_, _| all())
}

#[test]
fn hits_move_no_line() {
    for size in [2, 80, 192] {
        with_cores(size, |cores| {
            for hits in [HitCounting::Off, HitCounting::On] {
                let cache = cache(hits);
                let report = steady(cores, |block| {
                    let check = |_: &[u8]| -> io::Result<()> { Ok(()) };
                    let len = cache.read_verified(block, tag(), check, <[u8]>::len);
                    assert_eq!(len.expect("readable"), 4096);
                });
                assert_eq!(report.transfers(), 0, "{report}");
            }
        });
    }
}

#[test]
fn read_ahead_of_cached_blocks_moves_no_line() {
    with_cores(192, |cores| {
        let cache = cache(HitCounting::On);
        let report = steady(cores, |block| {
            cache.read_ahead(block, BlockCount(8));
        });
        assert_eq!(report.transfers(), 0, "{report}");
    });
}

/// Shows that the counting works: loading a buffer writes its reference count, which all cores
/// share.
#[test]
fn holding_a_buffer_moves_its_count() {
    with_cores(80, |cores| {
        let cache = cache(HitCounting::Off);
        let hold = || assert_eq!(cache.load(PhysBlock(3)).expect("readable").block().0, 3);
        cores.run(2, |_, _| hold());
        let report = cores.run(10, |_, _| hold());
        assert!(report.transfers_per_op() >= 1.0, "{report}");
    });
}

/// A reader among writers pays for the new versions that the writers made, and nothing else.
#[test]
fn a_change_costs_each_reader_the_new_version_once() {
    with_cores(80, |cores| {
        let cache = cache(HitCounting::Off);
        let operation = |core: CoreNr| {
            if core.index() == 0 {
                let change = |bytes: &mut [u8]| bytes[0] = bytes[0].wrapping_add(1);
                cache
                    .modify(PhysBlock(1), Tid(1), tag(), change)
                    .expect("readable");
            } else {
                cache
                    .read(PhysBlock(1), |bytes| bytes[0])
                    .expect("readable");
            }
        };
        cores.run(3, |core, _| operation(core));
        let report = cores.run(10, |core, _| operation(core));
        assert!(report.transfers_per_op() <= 3.0, "{report}");
    });
}
