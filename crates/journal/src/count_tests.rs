//! Tests of the cache lines that handles move between cores.

use fourscore_block::Buffer;
use fourscore_ondisk::PhysBlock;
use fourscore_sync::count::{Cores, Report, with_cores};
use fourscore_sync::{Arc, CachePadded, CoreNr, thread};

use crate::testing::{BLOCK_BYTES, Disk, crowded, tag, without_threads};
use crate::{Credits, Journal};

fn own_buffers(cores: &Cores) -> Vec<Arc<Buffer>> {
    let _ = cores;
    let buffer = |core: CoreNr| {
        let block = PhysBlock(u64::try_from(core.index()).expect("few"));
        Arc::new(Buffer::new(block, Arc::from([0; BLOCK_BYTES])))
    };
    CoreNr::all().map(buffer).collect()
}

/// Every core opens a handle, changes a buffer, and stops.
fn handles(cores: &Cores, journal: &Journal, buffer: impl Fn(CoreNr) -> Arc<Buffer>) -> Report {
    let operation = |core: CoreNr, _| {
        let mut handle = journal.start(Credits(2)).expect("not aborted");
        let change = |bytes: &mut [u8]| bytes[0] = bytes[0].wrapping_add(1);
        handle
            .modify(&buffer(core), tag(), change)
            .expect("credits");
        handle.stop();
    };
    cores.run(3, operation);
    cores.run(5, operation)
}

#[test]
fn a_handle_that_changes_a_joined_buffer_moves_no_line() {
    for size in [2, 80, 192] {
        with_cores(size, |cores| {
            let disk = Disk::new(8192);
            let journal = disk.open(without_threads());
            let buffers = own_buffers(cores);
            let report = handles(cores, &journal, |core| {
                // The reference count is not instrumented; a cache lookup with an epoch guard
                // moves no line either.
                Arc::clone(&buffers[core.index()])
            });
            assert_eq!(report.transfers(), 0, "{report}");
        });
    }
}

#[test]
fn a_handle_moves_no_line_once_a_seal_is_over() {
    with_cores(80, |cores| {
        let disk = Disk::new(8192);
        let journal = disk.open(without_threads());
        let buffers = own_buffers(cores);
        let buffer = |core: CoreNr| Arc::clone(&buffers[core.index()]);
        let before = handles(cores, &journal, buffer);
        assert_eq!(before.transfers(), 0, "{before}");
        cores.on(CoreNr::new(0).expect("the first"), || {
            journal.commit().expect("in memory");
        });
        let after = handles(cores, &journal, buffer);
        assert_eq!(after.transfers(), 0, "steady again: {after}");
    });
}

/// The smallest log that mke2fs makes and 64 cores, each with credits of its own.
#[test]
fn a_log_of_1024_blocks_serves_64_cores() {
    const ROUNDS: u8 = 40;
    with_cores(64, |cores| {
        let disk = Disk::new(1024);
        let journal = disk.open(without_threads());
        thread::scope(|scope| {
            for core in CoreNr::all() {
                let (journal, disk, nr) = (&journal, &disk, core.index() as u64);
                scope.spawn(move || cores.on(core, || crowded(journal, disk, nr, ROUNDS)));
            }
        });
        assert!(journal.stats().log_blocks > 2 * 1024, "the log wrapped");
        journal.close().expect("in memory");
        for block in 0..4 * 64 {
            assert_eq!(disk.read(block)[9], ROUNDS, "block {block}");
        }
    });
}

/// Checks the instrument: a buffer that all cores change moves from core to core.
#[test]
fn a_buffer_that_all_cores_change_moves() {
    with_cores(80, |cores| {
        let disk = Disk::new(8192);
        let journal = disk.open(without_threads());
        let shared = CachePadded::new(disk.buffer(7));
        let report = handles(cores, &journal, |_| Arc::clone(&shared));
        assert!(report.transfers_per_op() >= 1.0, "{report}");
    });
}
