//! **Purpose.** Reads bitmaps into memory before the allocator needs them, so that allocating
//! threads do not wait for the device.
//!
//! **Model.** The allocator names groups. A background thread reads their bitmaps; all groups that
//! were named in the meantime go to the device in one batch. The allocator looks into the buffer
//! cache to see whether a bitmap has arrived.
//!
//! **Locking.** The list's lock is a leaf and is not held across I/O.

use std::mem;

use fourscore_block::BufferCache;
use fourscore_ondisk::PhysBlock;
use fourscore_sync::{Arc, Condvar, Mutex, thread};

/// The list of blocks to read.
#[derive(Debug, Default)]
struct Wanted {
    blocks: Vec<PhysBlock>,
    stopping: bool,
}

#[derive(Debug, Default)]
struct Shared {
    wanted: Mutex<Wanted>,
    more: Condvar,
}

/// Reads blocks ahead, in the background.
#[derive(Debug)]
pub(crate) struct Prefetcher {
    shared: Arc<Shared>,
    thread: Option<thread::JoinHandle<()>>,
}

impl Prefetcher {
    /// Starts a thread that reads into `buffers`.
    pub(crate) fn new(buffers: Arc<BufferCache>) -> Self {
        let shared = Arc::new(Shared::default());
        let own = Arc::clone(&shared);
        Self {
            shared,
            thread: Some(thread::spawn(move || own.serve(&buffers))),
        }
    }

    /// Queues `blocks` to be read soon.
    pub(crate) fn want(&self, blocks: impl Iterator<Item = PhysBlock>) {
        self.shared.wanted.lock().blocks.extend(blocks);
        self.shared.more.notify_one();
    }
}

impl Shared {
    fn serve(&self, buffers: &BufferCache) {
        let mut wanted = self.wanted.lock();
        while !wanted.stopping {
            if wanted.blocks.is_empty() {
                self.more.wait(&mut wanted);
                continue;
            }
            let mut blocks = mem::take(&mut wanted.blocks);
            drop(wanted);
            blocks.sort_unstable();
            buffers.read_ahead_all(blocks);
            wanted = self.wanted.lock();
        }
    }
}

impl Drop for Prefetcher {
    fn drop(&mut self) {
        self.shared.wanted.lock().stopping = true;
        self.shared.more.notify_one();
        if let Some(thread) = self.thread.take() {
            // Prefetching is only advice, so a panic of its thread is ignored.
            let _ = thread.join();
        }
    }
}
