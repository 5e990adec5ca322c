//! Tests of the buffer cache under the schedules that shuttle tries.

use fourscore_ondisk::InodeNr;
use fourscore_sync::{model, thread};

use super::*;
use crate::RamDevice;
use crate::buffer::Structure;

const SCHEDULES: usize = 600;
const BLOCK: PhysBlock = PhysBlock(1);

fn tag() -> VerifiedAs {
    VerifiedAs::new(Structure::InodeBitmap, InodeNr(0))
}

fn cache() -> Arc<BufferCache> {
    let device = Arc::new(RamDevice::new(4096));
    let block_size = BlockSize::from_log(0).expect("1 KiB");
    let options = CacheOptions {
        budget_bytes: 1 << 20,
        hits: HitCounting::Off,
    };
    Arc::new(BufferCache::new(device, block_size, options))
}

fn bump(cache: &BufferCache) {
    let change = |bytes: &mut [u8]| bytes[0] += 1;
    cache
        .modify(BLOCK, Tid(1), tag(), change)
        .expect("readable");
}

/// Does to the block what a commit, a checkpoint and an eviction do.
fn write_back_and_evict(cache: &BufferCache) {
    let buffer = cache.load(BLOCK).expect("readable");
    if let Some(sealed) = buffer.seal(Tid(1)) {
        cache
            .device()
            .write_at(&sealed.bytes, 1024)
            .expect("in range");
        buffer.checkpointed(Tid(1));
    }
    if buffer.retire() == Retire::Done {
        cache.drop_retired(&buffer);
    }
}

#[test]
fn one_read_serves_all_tasks_that_miss() {
    model::check(SCHEDULES, || {
        let cache = cache();
        let tasks: Vec<_> = (0..3)
            .map(|_| {
                let cache = Arc::clone(&cache);
                thread::spawn(move || cache.read(BLOCK, |bytes| bytes[0]).expect("readable"))
            })
            .collect();
        for task in tasks {
            assert_eq!(task.join().expect("a task"), 0);
        }
        assert_eq!(cache.stats().read_blocks, 1);
    });
}

#[test]
fn a_slow_reader_never_inserts_stale_bytes() {
    model::check(SCHEDULES, || {
        let cache = cache();
        let slow = {
            let cache = Arc::clone(&cache);
            thread::spawn(move || {
                cache.read_ahead(BLOCK, BlockCount(1));
            })
        };
        let other = {
            let cache = Arc::clone(&cache);
            thread::spawn(move || {
                let _seen = cache.read(BLOCK, |bytes| bytes[0]).expect("readable");
            })
        };
        bump(&cache);
        write_back_and_evict(&cache);
        slow.join().expect("a task");
        other.join().expect("a task");
        assert_eq!(cache.read(BLOCK, |bytes| bytes[0]).expect("readable"), 1);
    });
}

#[test]
fn no_change_is_lost_to_an_eviction() {
    model::check(SCHEDULES, || {
        let cache = cache();
        let changers: Vec<_> = (0..2)
            .map(|_| {
                let cache = Arc::clone(&cache);
                thread::spawn(move || bump(&cache))
            })
            .collect();
        write_back_and_evict(&cache);
        for changer in changers {
            changer.join().expect("a task");
        }
        assert_eq!(cache.read(BLOCK, |bytes| bytes[0]).expect("readable"), 2);
    });
}

#[test]
fn creating_and_loading_agree_on_one_buffer() {
    model::check(SCHEDULES, || {
        let cache = cache();
        let loader = {
            let cache = Arc::clone(&cache);
            thread::spawn(move || cache.load(BLOCK).expect("readable"))
        };
        let created = cache.create(BLOCK);
        let loaded = loader.join().expect("a task");
        assert!(Arc::ptr_eq(&created, &loaded));
    });
}

#[test]
fn a_change_of_a_kept_buffer_is_not_refused() {
    model::check(SCHEDULES, || {
        let cache = cache();
        let evicting = {
            let cache = Arc::clone(&cache);
            thread::spawn(move || {
                for _ in 0..2 {
                    write_back_and_evict(&cache);
                }
            })
        };
        let kept = loop {
            cache.load(BLOCK).expect("readable");
            if let Some(kept) = cache.keep(BLOCK) {
                break kept;
            }
        };
        let buffer = cache.load(BLOCK).expect("readable");
        let change = |bytes: &mut [u8]| bytes[0] += 1;
        buffer.modify(Tid(1), tag(), change).expect("it is kept");
        drop(kept);
        evicting.join().expect("a task");
        assert_eq!(cache.read(BLOCK, |bytes| bytes[0]).expect("readable"), 1);
    });
}
