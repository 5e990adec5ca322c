//! Tests of the buffer cache: reads of the device, eviction, and changes by several threads.

use std::io::ErrorKind;

use fourscore_ondisk::InodeNr;
use fourscore_sync::thread;

use super::*;
use crate::buffer::{Retired, Structure};
use crate::{RamDevice, raw_os_error};

const BLOCK_BYTES: usize = 1024;

fn tag() -> VerifiedAs {
    VerifiedAs::new(Structure::InodeTable, InodeNr(0))
}

/// A cache over `blocks` blocks whose first eight bytes are their own number.
fn cache_of(blocks: u64, budget_bytes: usize) -> BufferCache {
    let device = RamDevice::new(blocks * to_u64(BLOCK_BYTES));
    for block in 0..blocks {
        device
            .write_at(&block.to_le_bytes(), block * to_u64(BLOCK_BYTES))
            .expect("in range");
    }
    let block_size = BlockSize::from_log(0).expect("1 KiB");
    let options = CacheOptions {
        budget_bytes,
        ..CacheOptions::default()
    };
    BufferCache::new(Arc::new(device), block_size, options)
}

fn number(bytes: &[u8]) -> u64 {
    bytes
        .first_chunk()
        .map_or(u64::MAX, |first| u64::from_le_bytes(*first))
}

fn number_at(cache: &BufferCache, block: u64) -> u64 {
    cache.read(PhysBlock(block), number).expect("readable")
}

fn write_back(cache: &BufferCache, buffer: &Buffer, tid: Tid) {
    let sealed = buffer.seal(tid).expect("dirty");
    let offset = cache.block_size().offset(sealed.block);
    cache
        .device()
        .write_at(&sealed.bytes, offset)
        .expect("written back");
    buffer.checkpointed(tid);
}

#[test]
fn a_block_is_read_once_and_checked_once() {
    let cache = cache_of(16, 1 << 20);
    let mut checks = 0;
    for _ in 0..3 {
        let check = |bytes: &[u8]| {
            checks += 1;
            if number(bytes) == 7 {
                Ok(())
            } else {
                Err(io::Error::other("wrong block"))
            }
        };
        let found = cache.read_verified(PhysBlock(7), tag(), check, number);
        assert_eq!(found.expect("block 7 holds 7"), 7);
    }
    assert_eq!(
        (checks, cache.stats().read_blocks, cache.stats().cache.hits),
        (1, 1, 2)
    );
    assert!(cache.cached(PhysBlock(6), &epoch::pin()).is_none());
    assert_eq!(
        cache.load(PhysBlock(7)).expect("cached").block(),
        PhysBlock(7)
    );
}

#[test]
fn a_block_past_the_end_is_an_error_that_names_it() {
    let cache = cache_of(4, 1 << 20);
    for (block, bytes) in [(4, "4096"), (u64::MAX, &u64::MAX.to_string())] {
        let error = cache
            .read(PhysBlock(block), number)
            .expect_err("past the end");
        assert_eq!(error.kind(), ErrorKind::UnexpectedEof);
        let text = format!(
            "block {block}: read of 1024 bytes at byte {bytes}: the device ends at byte 4096"
        );
        assert_eq!(error.to_string(), text);
        assert_eq!(raw_os_error(&error), None);
    }
    assert_eq!(number_at(&cache, 3), 3);
}

#[test]
fn read_ahead_joins_neighbours_and_skips_cached_blocks() {
    let cache = cache_of(100, 4 << 20);
    assert_eq!(number_at(&cache, 12), 12);
    assert_eq!(
        cache.read_ahead(PhysBlock(10), BlockCount(6)),
        BlockCount(5)
    );
    assert_eq!(cache.stats().read_ahead_requests, 2, "10..12 and 13..16");
    for block in 10..16 {
        assert_eq!(number_at(&cache, block), block);
    }
    assert_eq!(
        cache.stats().read_blocks,
        1,
        "only the first one was missed"
    );
    assert_eq!(
        cache.read_ahead(PhysBlock(10), BlockCount(6)),
        BlockCount(0)
    );
    let scattered = [3, 4, 50, 51, 52, 80].map(PhysBlock);
    assert_eq!(cache.read_ahead_all(scattered), BlockCount(6));
    assert_eq!(cache.stats().read_ahead_requests, 2 + 3);
    assert_eq!(
        cache.read_ahead(PhysBlock(98), BlockCount(u64::MAX)),
        BlockCount(2),
        "the end"
    );
    assert_eq!(number_at(&cache, 52), 52);
}

#[test]
fn read_ahead_takes_an_eighth_of_the_budget_at_most() {
    let cache = cache_of(1000, 64 * BLOCK_BYTES);
    assert_eq!(
        cache.read_ahead(PhysBlock(0), BlockCount(1000)),
        BlockCount(8)
    );
}

#[test]
fn the_budget_holds_but_dirty_buffers_stay() {
    let budget_bytes = 64 * (BLOCK_BYTES + OVERHEAD_BYTES);
    let cache = cache_of(1000, budget_bytes);
    let mut dirty = Vec::new();
    for block in 0..200 {
        let change = |bytes: &mut [u8]| bytes[8] = 1;
        let changed = cache
            .modify(PhysBlock(block), Tid(1), tag(), change)
            .expect("readable");
        assert_eq!(changed.1, Joined::First);
        dirty.push(changed.2);
    }
    assert!(cache.weight_bytes() > budget_bytes, "dirty buffers stay");
    for block in 200..1000 {
        assert_eq!(number_at(&cache, block), block);
    }
    for buffer in &dirty {
        assert!(cache.cached(buffer.block(), &epoch::pin()).is_some());
        write_back(&cache, buffer, Tid(1));
    }
    cache.trim();
    assert!(cache.weight_bytes() <= budget_bytes);
    for block in 0..200 {
        assert_eq!(
            cache
                .read(PhysBlock(block), |bytes| bytes[8])
                .expect("readable"),
            1
        );
    }
}

#[test]
fn an_evicted_buffer_refuses_and_the_cache_changes_the_new_one() {
    let cache = cache_of(8, 1 << 20);
    let stale = cache.load(PhysBlock(3)).expect("readable");
    assert_eq!(stale.retire(), Retire::Done);
    assert_eq!(stale.modify(Tid(1), tag(), |_| ()), Err(Retired));
    let change = |bytes: &mut [u8]| bytes[8] = 5;
    let (_, joined, fresh) = cache
        .modify(PhysBlock(3), Tid(1), tag(), change)
        .expect("reloaded");
    assert!(joined == Joined::First && !Arc::ptr_eq(&stale, &fresh));
    assert_eq!(
        cache.read(PhysBlock(3), |bytes| bytes[8]).expect("cached"),
        5
    );
    assert_eq!(cache.stats().read_blocks, 2);
}

#[test]
fn created_blocks_are_not_read_and_forgotten_ones_are() {
    let cache = cache_of(8, 1 << 20);
    let buffer = cache.create(PhysBlock(5));
    buffer
        .modify(Tid(1), tag(), |bytes| bytes[0] = 42)
        .expect("not retired");
    assert_eq!((number_at(&cache, 5), cache.stats().read_blocks), (42, 0));
    cache.forget(PhysBlock(5), Tid(1));
    assert!(buffer.seal(Tid(1)).is_none(), "discarded with the block");
    assert_eq!((number_at(&cache, 5), cache.stats().read_blocks), (5, 1));
    let existing = cache.create(PhysBlock(5));
    assert_eq!(existing.retire(), Retire::Done);
    assert!(!cache.create(PhysBlock(5)).is_retired());
    cache.forget(PhysBlock(6), Tid(1));
}

#[test]
fn threads_lose_no_change_while_buffers_are_evicted() {
    const THREADS: u64 = 4;
    const ROUNDS: u64 = 400;
    let cache = cache_of(64, 16 * (BLOCK_BYTES + OVERHEAD_BYTES));
    thread::scope(|scope| {
        for me in 0..THREADS {
            let cache = &cache;
            scope.spawn(move || {
                for round in 0..ROUNDS {
                    let block = PhysBlock((round * 7 + me * 13) % 64);
                    let at = 8 + usize::try_from(me).expect("small") * 8;
                    let bump = |bytes: &mut [u8]| {
                        let counter = &mut bytes[at..at + 8];
                        let next = number(counter) + 1;
                        counter.copy_from_slice(&next.to_le_bytes());
                    };
                    let tid = Tid(1);
                    let (_, _, buffer) = cache.modify(block, tid, tag(), bump).expect("readable");
                    assert_eq!(
                        number_at(cache, (round * 11 + me) % 64),
                        (round * 11 + me) % 64
                    );
                    if round % 3 == me % 3 {
                        cache.read_ahead(PhysBlock(round % 64), BlockCount(4));
                    }
                    drop(buffer);
                }
            });
        }
        scope.spawn(|| {
            // The checkpointer: seals and writes back dirty buffers, so that they can be evicted.
            for round in 0..ROUNDS * 4 {
                let Ok(buffer) = cache.load(PhysBlock(round % 64)) else {
                    continue;
                };
                if let Some(sealed) = buffer.seal(Tid(1)) {
                    let offset = cache.block_size().offset(sealed.block);
                    cache
                        .device()
                        .write_at(&sealed.bytes, offset)
                        .expect("in range");
                    buffer.checkpointed(Tid(1));
                }
                cache.trim();
            }
        });
    });
    let total: u64 = (0..64)
        .map(|block| {
            let sum = |bytes: &[u8]| (1..=4).map(|i| number(&bytes[i * 8..])).sum();
            cache.read(PhysBlock(block), sum).unwrap_or(0_u64)
        })
        .sum();
    assert_eq!(total, THREADS * ROUNDS);
    assert!(
        cache.stats().cache.evictions > 0,
        "nothing was evicted: the test proves nothing"
    );
}

#[test]
fn a_kept_buffer_stays_over_the_budget_until_its_last_keeper_ends() {
    let cache = cache_of(64, 0);
    let is_cached = |block| cache.cached(PhysBlock(block), &epoch::pin()).is_some();
    let load_others = || (32..64).for_each(|block| assert_eq!(number_at(&cache, block), block));
    assert!(cache.keep(PhysBlock(1)).is_none(), "it is not in the cache");
    let buffer = cache.load(PhysBlock(1)).unwrap();
    let first = cache.keep(PhysBlock(1)).unwrap();
    let second = cache.keep(PhysBlock(1)).unwrap();
    load_others();
    drop(first);
    load_others();
    assert!(is_cached(1));
    buffer.modify(Tid(1), tag(), |_| ()).unwrap();
    write_back(&cache, &buffer, Tid(1));
    drop(second);
    load_others();
    assert!(!is_cached(1));
    assert_eq!(buffer.modify(Tid(2), tag(), |_| ()), Err(Retired));
}

#[test]
fn a_buffer_that_is_retired_is_not_kept() {
    let cache = cache_of(4, 1 << 20);
    let buffer = cache.load(PhysBlock(2)).unwrap();
    assert_eq!(buffer.retire(), Retire::Done);
    assert!(cache.keep(PhysBlock(2)).is_none());
    assert!(!Arc::ptr_eq(&buffer, &cache.load(PhysBlock(2)).unwrap()));
}
