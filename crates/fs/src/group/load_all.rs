//! **Purpose.** Loads the bitmaps of all groups in the background of a new mount, so that no
//! allocation has to wait for one (mount option `prefetch_block_bitmaps`).
//!
//! **Model.** One thread visits the groups in order, a batch at a time: the bitmaps of a batch are
//! read together, then the allocator makes buddies of them. It leaves out groups without a free
//! cluster, and stops once as many are in memory as the mount may keep there.
//!
//! **Locking.** None beyond those of loading a group. The thread stops between two groups.

use fourscore_block::BufferCache;
use fourscore_mballoc::Allocator;
use fourscore_ondisk::GroupNr;
use fourscore_sync::atomic::{AtomicBool, Ordering};
use fourscore_sync::{Arc, thread};

use crate::group::table::{Groups, Map};

/// Groups whose bitmaps are read together.
const BATCH: u32 = 64;

/// What the thread works on.
#[derive(Debug)]
struct Work {
    allocator: Arc<Allocator>,
    groups: Arc<Groups>,
    buffers: Arc<BufferCache>,
    /// The most groups to have in memory.
    most: u32,
    stopping: AtomicBool,
}

/// The thread; dropping it stops it and waits for its end.
#[derive(Debug)]
pub(crate) struct LoadAll {
    work: Arc<Work>,
    thread: Option<thread::JoinHandle<()>>,
}

impl LoadAll {
    /// Starts the thread. It loads groups as long as fewer than `most` are in memory.
    pub(crate) fn start(
        allocator: Arc<Allocator>,
        groups: Arc<Groups>,
        buffers: Arc<BufferCache>,
        most: u32,
    ) -> Self {
        let work = Arc::new(Work {
            allocator,
            groups,
            buffers,
            most,
            stopping: AtomicBool::new(false),
        });
        let own = Arc::clone(&work);
        Self {
            work,
            thread: Some(thread::spawn(move || own.run())),
        }
    }
}

impl Work {
    fn run(&self) {
        // Groups that are added meanwhile are loaded when they are needed.
        let groups = self.allocator.geometry().groups();
        let mut first = 0;
        while first < groups {
            let batch = first..first.saturating_add(BATCH).min(groups);
            let wanted = batch.clone().map(GroupNr);
            let wanted: Vec<_> = wanted.filter(|&group| self.has_space(group)).collect();
            self.read(&wanted);
            for group in wanted {
                let all = self.allocator.geometry().groups();
                let loaded = all.saturating_sub(self.allocator.absent_groups());
                if self.stopping.load(Ordering::Relaxed) || loaded >= self.most {
                    return;
                }
                // A request that needs the group gets the error.
                let _ = self.allocator.load(group);
            }
            first = batch.end;
        }
    }

    fn has_space(&self, group: GroupNr) -> bool {
        let group = self.groups.get(group);
        group.is_some_and(|group| group.counts().free_clusters > 0)
    }

    /// Reads the bitmaps that are on disk.
    fn read(&self, wanted: &[GroupNr]) {
        let groups = wanted.iter().filter_map(|&group| self.groups.get(group));
        let bitmaps = groups.map(|group| group.place(Map::Blocks));
        let on_disk = bitmaps.filter(|bitmap| !bitmap.is_uninit());
        let mut blocks: Vec<_> = on_disk.map(|bitmap| bitmap.block()).collect();
        blocks.sort_unstable();
        self.buffers.read_ahead_all(blocks);
    }
}

impl Drop for LoadAll {
    fn drop(&mut self) {
        self.work.stopping.store(true, Ordering::Relaxed);
        if let Some(thread) = self.thread.take() {
            // Loading ahead is only advice, so a panic of its thread is ignored.
            let _ = thread.join();
        }
    }
}
