//! **Purpose.** Checkpoints: writes committed blocks to their home locations, and frees space in
//! the log.
//!
//! # Model
//! ```text
//!            tail                      head
//! log  ..free.. | T1 | T2 | T3 | .. | Tn | reserved: committing, running | ..free..
//! latest(b) = the last committed transaction that holds block b, with its bytes
//! T is settled = no latest(b) is T            tail = the first T that is not settled
//! ```
//! A block that a later transaction commits again moves to that one, so it is written to its home
//! location once, in its newest committed version. A block that a transaction revokes is dropped:
//! it was freed, and may be allocated to another file.
//!
//! **The end of the log.** A log is a ring. If the journal has a fast-commit area after the log,
//! e2fsck and debugfs do not wrap around: they read on into that area, and lose what was committed
//! after the wrap. So such a log wraps around only when it is empty:
//! ```text
//! first           tail          head          end    area
//! | ..free..       | T1 | .. | Tn |  < share   |  ..  |   checkpoint all; tail = head = first
//! ```
//! The committer tests this before it seals, when it knows only the most blocks that the
//! transaction may take, its share. A transaction that ends with the last block of the log leaves
//! the head at the first one, while recovery still needs the blocks before the end: that is a wrap
//! as well. The blocks between the head and the end, fewer than a share, stay unused and do not
//! count as `used`.
//!
//! # Invariants
//! - Only versions of durable commits are written to home locations, never those of the running
//!   transaction. The bytes are sealed and kept here, so a checkpoint waits for no handle, no
//!   commit and no buffer's lock: *a thread that needs space can always free it*.
//! - The tail moves past a transaction when each of its blocks is durable at its home location, or
//!   is in a later transaction of the log. Its part of the log is used again when the superblock
//!   with the new tail is durable.
//! - `used` + one transaction's share for the running one never exceeds the log. In front of a
//!   fast-commit area these blocks need not be in one piece, but a checkpoint alone makes them so.
//!
//! # Locking
//! One lock guards the lists; it is never held across I/O and no other is taken under it. The
//! *role* of checkpointer is a flag under it: the thread that has it does the I/O.
//!
//! # Crash safety
//! Write to the home locations, flush the file system's device, then write the tail with FUA.
//! Without the flush the tail could pass blocks that are still in the device's volatile cache, and
//! after a crash neither the log nor the home location would have them.
//!
//! When an empty log wraps around, the tail is written twice, with FUA and with the number of the
//! next transaction: the checkpoint sets it to the head, then it is set to the first block. A crash
//! after either write finds no transaction there, since the blocks hold older numbers, and
//! everything is in place; fast commits of the next transaction are replayed. Only then is that
//! transaction written. If it were written before the second tail, recovery would begin at the old
//! head, and drop an acknowledged commit.

use std::collections::{HashMap, VecDeque};
use std::hash::{BuildHasherDefault, Hasher};

use fourscore_block::{Batch, Buffer, IoBuf, Sealed};
use fourscore_ondisk::jbd2::JournalBlock;
use fourscore_ondisk::{PhysBlock, Tid};
use fourscore_sync::profile::{self, Section};
use fourscore_sync::{Arc, Condvar, Mutex, MutexGuard};

use crate::error::{During, Error};
use crate::journal::{Inner, Logged};
use crate::ring::Ring;
use crate::sabotage::Sabotage;

/// The most blocks in one request.
const MAX_BLOCKS: usize = 512;

/// A sealed block of a transaction, and its buffer.
#[derive(Debug)]
pub(crate) struct CommittedBlock {
    pub(crate) sealed: Sealed,
    pub(crate) buffer: Arc<Buffer>,
}

/// A committed transaction that recovery may need.
#[derive(Debug)]
struct Committed {
    tid: Tid,
    start: JournalBlock,
    /// The number of its blocks in the log.
    log_blocks: u32,
    /// The blocks that it committed, in ascending order; some may have moved to later transactions.
    blocks: Vec<PhysBlock>,
    /// The number of blocks that have not moved, and have not been checkpointed or revoked.
    latest: usize,
}

/// When a log may wrap around from its last block to its first.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Wrap {
    Always,
    WhenEmpty,
}

#[derive(Debug)]
struct Lists {
    ring: Ring,
    wrap: Wrap,
    /// Where the next transaction begins.
    head: JournalBlock,
    /// The next transaction.
    next: Tid,
    /// Blocks of the log from the durable tail to the head.
    used: u32,
    /// Oldest first, with consecutive tids.
    transactions: VecDeque<Committed>,
    latest: HashMap<PhysBlock, CommittedBlock, BuildHasherDefault<BlockHasher>>,
    /// Blocks that are being checkpointed, in ascending order.
    in_flight: Vec<PhysBlock>,
    checkpointing: bool,
    /// Whether a background checkpoint is requested.
    wanted: bool,
    stopping: bool,
}

/// Hashes block numbers, which come in runs. A malicious image could make them collide, but no more
/// of them than a log holds, and that slows down only its own commits.
#[derive(Debug, Default)]
struct BlockHasher(u64);

impl Hasher for BlockHasher {
    fn write(&mut self, bytes: &[u8]) {
        bytes
            .iter()
            .for_each(|&byte| self.write_u64(u64::from(byte)));
    }

    #[inline]
    #[expect(clippy::cast_possible_truncation, reason = "folds the two halves")]
    fn write_u64(&mut self, word: u64) {
        let product = u128::from(self.0 ^ word) * 0x9e37_79b9_7f4a_7c15;
        self.0 = (product as u64) ^ ((product >> 64) as u64);
    }

    #[inline]
    fn finish(&self) -> u64 {
        self.0
    }
}

/// The space of a log.
#[derive(Debug)]
pub(crate) struct LogSpace {
    lists: Mutex<Lists>,
    /// A checkpoint or a part of it has ended.
    changed: Condvar,
    /// There is work for the background thread.
    work: Condvar,
}

/// The blocks of one round of a checkpoint.
struct Part {
    blocks: Vec<CommittedBlock>,
}

/// The start of the log for recovery: the first transaction that is not settled.
#[derive(Clone, Copy, Debug)]
struct Tail {
    start: JournalBlock,
    tid: Tid,
}

impl LogSpace {
    /// The space of an empty log; its first transaction will be `next` and begin at `head`.
    pub(crate) fn new(ring: Ring, wrap: Wrap, head: JournalBlock, next: Tid) -> Self {
        let lists = Lists {
            ring,
            wrap,
            head,
            next,
            used: 0,
            transactions: VecDeque::new(),
            latest: HashMap::default(),
            in_flight: Vec::new(),
            checkpointing: false,
            wanted: false,
            stopping: false,
        };
        Self {
            lists: Mutex::new(lists),
            changed: Condvar::new(),
            work: Condvar::new(),
        }
    }

    /// Where the next transaction begins.
    pub(crate) fn head(&self) -> JournalBlock {
        self.lists.lock().head
    }

    /// Whether the log must be empty before a transaction of at most `share` blocks is written.
    fn must_wrap(&self, share: u32) -> bool {
        let lists = self.lists.lock();
        let wraps = match lists.head == lists.ring.first() {
            // The last transaction may have ended with the last block.
            true => lists.used > 0,
            false => lists.ring.wraps(lists.head, share),
        };
        lists.wrap == Wrap::WhenEmpty && wraps
    }

    /// Lets the next transaction begin at the first block of the log, which is empty. Returns the
    /// tail that must be written to the superblock first; `None` if the head was at the first
    /// block, so that the superblock has it.
    fn wrap_around(&self) -> Option<Tail> {
        let mut lists = self.lists.lock();
        debug_assert!(lists.transactions.is_empty(), "the log is not empty");
        let (head, first) = (lists.head, lists.ring.first());
        lists.head = first;
        (head != first).then_some(Tail {
            start: first,
            tid: lists.next,
        })
    }

    /// Blocks of the log that are in use.
    pub(crate) fn used(&self) -> u32 {
        self.lists.lock().used
    }

    /// Whether the log holds a copy of `block` that a checkpoint is going to write.
    pub(crate) fn awaits_checkpoint(&self, block: PhysBlock) -> bool {
        self.lists.lock().latest.contains_key(&block)
    }

    /// The length of the log.
    pub(crate) fn log_blocks(&self) -> u32 {
        self.lists.lock().ring.len()
    }

    /// Adds the transaction `tid`, which was committed in `log_blocks` blocks at the head, and
    /// drops the blocks that it revoked. `blocks` are in ascending order.
    pub(crate) fn committed(
        &self,
        tid: Tid,
        log_blocks: u32,
        blocks: Vec<CommittedBlock>,
        revoked: &[PhysBlock],
    ) {
        let mut lists = self.lists.lock();
        debug_assert_eq!(tid, lists.next, "transactions are committed in order");
        for &block in revoked {
            lists.drop_latest(block);
        }
        let start = lists.head;
        lists.head = lists.ring.after(start, log_blocks);
        lists.next = tid.next();
        lists.used += log_blocks;
        lists.transactions.push_back(Committed {
            tid,
            start,
            log_blocks,
            blocks: blocks.iter().map(|block| block.sealed.block).collect(),
            latest: blocks.len(),
        });
        lists.latest.reserve(blocks.len());
        for block in blocks {
            let at = block.sealed.block;
            if let Some(older) = lists.latest.insert(at, block) {
                lists.count_moved(older.sealed.tid);
            }
        }
        // A revoked block may be allocated again after this: no old version of it may be in flight.
        while revoked
            .iter()
            .any(|block| lists.in_flight.binary_search(block).is_ok())
        {
            self.changed.wait(&mut lists);
        }
        if lists.used > lists.background_from() {
            lists.wanted = true;
            self.work.notify_all();
        }
    }

    /// Waits until the role is free and becomes the checkpointer, if more than `target` blocks of
    /// the log are still in use.
    fn take_role(&self, target: u32) -> Option<MutexGuard<'_, Lists>> {
        let mut lists = self.lists.lock();
        while lists.checkpointing {
            self.changed.wait(&mut lists);
        }
        if lists.used <= target {
            return None;
        }
        lists.checkpointing = true;
        Some(lists)
    }

    /// Waits until no thread has the role.
    pub(crate) fn wait_idle(&self) {
        let mut lists = self.lists.lock();
        while lists.checkpointing {
            self.changed.wait(&mut lists);
        }
    }

    /// Waits until there is work for the background thread; `false` when the journal is closed.
    pub(crate) fn wait_for_work(&self) -> bool {
        let mut lists = self.lists.lock();
        while !lists.wanted && !lists.stopping {
            self.work.wait(&mut lists);
        }
        lists.wanted = false;
        !lists.stopping
    }

    /// Ends the background thread.
    pub(crate) fn stop(&self) {
        self.lists.lock().stopping = true;
        self.work.notify_all();
    }
}

impl Lists {
    /// A background checkpoint starts when more blocks are used than this. Commits wait for space
    /// when more than half of the log is used; and the later a checkpoint starts, the more blocks
    /// have been committed again and need not be written twice.
    fn background_from(&self) -> u32 {
        self.ring.len() / 8 * 3
    }

    /// Counts one block fewer whose latest committed version is in `tid`.
    fn count_moved(&mut self, tid: Tid) {
        let oldest = self.transactions.front().map(|oldest| oldest.tid.0);
        let index = tid.0.wrapping_sub(oldest.unwrap_or(tid.0));
        let index = usize::try_from(index).unwrap_or(usize::MAX);
        if let Some(transaction) = self.transactions.get_mut(index) {
            transaction.latest -= 1;
        }
    }

    fn drop_latest(&mut self, block: PhysBlock) {
        if let Some(dropped) = self.latest.remove(&block) {
            self.count_moved(dropped.sealed.tid);
        }
    }

    /// The blocks that must be checkpointed so that at most `target` blocks of the log are used, in
    /// ascending order.
    fn part(&mut self, target: u32) -> Part {
        let mut left = self.used;
        let mut blocks = Vec::new();
        for transaction in &self.transactions {
            if left <= target {
                break;
            }
            left = left.saturating_sub(transaction.log_blocks);
            for block in &transaction.blocks {
                if let Some(latest) = self.latest.get(block)
                    && latest.sealed.tid == transaction.tid
                {
                    blocks.push(CommittedBlock {
                        sealed: latest.sealed.clone(),
                        buffer: Arc::clone(&latest.buffer),
                    });
                }
            }
        }
        blocks.sort_unstable_by_key(|block| block.sealed.block);
        self.in_flight = blocks.iter().map(|block| block.sealed.block).collect();
        Part { blocks }
    }

    /// Notes that `part` is durable at its home locations. Returns the new tail, and the number of
    /// log blocks that are freed when it is durable.
    fn settle(&mut self, part: &Part) -> (Tail, u32) {
        self.in_flight.clear();
        for CommittedBlock { sealed, .. } in &part.blocks {
            let written = self.latest.get(&sealed.block);
            if written.is_some_and(|latest| latest.sealed.tid == sealed.tid) {
                self.drop_latest(sealed.block);
            }
        }
        let mut freed = 0;
        let is_settled = |oldest: &Committed| oldest.latest == 0;
        while self.transactions.front().is_some_and(is_settled)
            && let Some(settled) = self.transactions.pop_front()
        {
            freed += settled.log_blocks;
        }
        let tail = match self.transactions.front() {
            Some(oldest) => Tail {
                start: oldest.start,
                tid: oldest.tid,
            },
            None => Tail {
                start: self.head,
                tid: self.next,
            },
        };
        (tail, freed)
    }
}

impl Inner {
    /// Writes the last committed content of `block` to its home location, unless it is there. Ends
    /// no checkpoint: the log keeps its copy. Durable with the next flush. Only for the committer.
    /// Returns `false` if an older content may be on its way there.
    pub(crate) fn write_home(&self, logged: &Logged, block: PhysBlock) -> Result<bool, Error> {
        let latest = {
            let lists = logged.space().lists.lock();
            if lists.in_flight.binary_search(&block).is_ok() {
                return Ok(false);
            }
            let Some(latest) = lists.latest.get(&block) else {
                return Ok(true);
            };
            CommittedBlock {
                sealed: latest.sealed.clone(),
                buffer: Arc::clone(&latest.buffer),
            }
        };
        let batch = self.in_place(&[latest]);
        let written = self.home().submit(batch).wait_all_ok();
        written.map_err(|source| self.abort_with(During::Checkpoint, source))?;
        Ok(true)
    }

    /// Frees space in the log for one more transaction beside the one that is about to be
    /// committed, checkpointing on this thread if necessary. Only for the committer.
    pub(crate) fn make_space(&self) -> Result<(), Error> {
        let Some(logged) = self.logged() else {
            return Ok(());
        };
        let (share, space) = (self.budget().limits().log_blocks, logged.space());
        if space.must_wrap(share) {
            self.checkpoint(0)?;
            return match space.wrap_around() {
                Some(Tail { start, tid }) => logged
                    .superblock()
                    .move_tail(logged.log(), start, tid)
                    .map_err(|source| self.abort_with(During::Superblock, source)),
                None => Ok(()),
            };
        }
        let target = space.log_blocks().saturating_sub(2 * share);
        if space.used() <= target {
            return Ok(());
        }
        self.checkpoint(target / 2)
    }

    /// Checkpoints until at most `target` blocks of the log are in use.
    pub(crate) fn checkpoint(&self, target: u32) -> Result<(), Error> {
        let _section = profile::enter(Section::Journal);
        let logged = self.logged();
        let role = logged.and_then(|logged| Some((logged, logged.space().take_role(target)?)));
        let Some((logged, mut lists)) = role else {
            return self.check_not_aborted();
        };
        let result = loop {
            if lists.used <= target {
                break Ok(());
            }
            let part = lists.part(target);
            drop(lists);
            let result = self.checkpoint_part(logged, &part);
            lists = logged.space().lists.lock();
            if result.is_err() {
                break result;
            }
        };
        lists.in_flight.clear();
        lists.checkpointing = false;
        logged.space().changed.notify_all();
        result
    }

    /// Writes a part to its home locations, makes it durable, and moves the tail.
    fn checkpoint_part(&self, logged: &Logged, part: &Part) -> Result<(), Error> {
        self.check_not_aborted()?;
        let failed = |source| self.abort_with(During::Checkpoint, source);
        if !part.blocks.is_empty() {
            let batch = self.in_place(&part.blocks);
            self.home().submit(batch).wait_all_ok().map_err(failed)?;
            if !self.skips(Sabotage::EarlyTail) {
                self.home().flush().map_err(failed)?;
            }
        }
        let space = logged.space();
        let (tail, freed) = space.lists.lock().settle(part);
        for block in &part.blocks {
            block.buffer.checkpointed(block.sealed.tid);
        }
        space.changed.notify_all();
        logged
            .superblock()
            .set_tail(logged.log(), Some(tail.start), tail.tid)
            .map_err(|source| self.abort_with(During::Superblock, source))?;
        space.lists.lock().used -= freed;
        Ok(())
    }

    /// The writes of `blocks`, which are in ascending order, to their home locations.
    pub(crate) fn in_place(&self, blocks: &[CommittedBlock]) -> Batch {
        let block_size = self.block_size();
        let mut batch = Batch::new();
        let follows = |one: &CommittedBlock, two: &CommittedBlock| {
            one.sealed.block.0.checked_add(1) == Some(two.sealed.block.0)
        };
        for run in blocks.chunk_by(follows) {
            for run in run.chunks(MAX_BLOCKS) {
                let bufs = run
                    .iter()
                    .map(|block| IoBuf::from(Arc::clone(&block.sealed.bytes)));
                let first = run.first().map_or(PhysBlock(0), |block| block.sealed.block);
                batch.write(bufs.collect(), block_size.offset(first));
            }
        }
        batch
    }
}
