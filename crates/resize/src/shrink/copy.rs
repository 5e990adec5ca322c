//! **Purpose.** Copies data to its new place, and discards its old one, with several threads, while
//! the caller plans what moves next.
//!
//! **Model.** A queue of jobs that all threads take from, the caller among them when it waits.
//! Pieces that are adjacent at both ends are joined, since the blocks of small files mostly are,
//! and what is longer than a unit is cut into units.
//!
//! A discard frees memory of the host if the image is a file on tmpfs, which the next copies take
//! while it is in the caches.
//!
//! **Invariants.** No piece has blocks that another one is copied to, and none is discarded before
//! it was copied: sources are in use until the step is durable, targets were free.
//!
//! **Locking.** One lock guards the queue, and is not held while a job is done.

use std::collections::VecDeque;
use std::io;
use std::num::NonZeroUsize;
use std::ops::Range;

use fourscore_block::BlockDevice;
use fourscore_ondisk::{Geometry, PhysBlock};
use fourscore_sync::thread::{self, JoinHandle};
use fourscore_sync::{Arc, Condvar, Mutex};

use crate::error::Result;
use crate::map::Piece;

/// The most that is read and written at once, in bytes: a multiple of every block size that stays
/// in a processor's cache.
const UNIT_BYTES: u64 = 256 << 10;
/// The most that is discarded at once: tmpfs lets nothing be written meanwhile.
const DISCARD_BYTES: u64 = 4 << 20;
/// Fewer bytes are copied by the calling thread alone.
const LEAST_BYTES_FOR_THREADS: u64 = 1 << 20;

/// Bytes to copy.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Unit {
    from: u64,
    to: u64,
    bytes: usize,
}

#[derive(Debug)]
enum Job {
    Copy(Unit),
    Discard(Range<u64>),
}

/// Threads that copy and discard.
#[derive(Debug)]
pub(super) struct Copier {
    shared: Arc<Shared>,
    threads: Vec<JoinHandle<()>>,
    most_threads: usize,
}

#[derive(Debug)]
struct Shared {
    device: Arc<dyn BlockDevice>,
    queue: Mutex<Queue>,
    /// A job was added or has ended, or the queue was closed.
    changed: Condvar,
}

#[derive(Debug, Default)]
struct Queue {
    jobs: VecDeque<Job>,
    /// Jobs that were taken and have not ended.
    running: usize,
    failed: Option<io::Error>,
    is_closed: bool,
}

impl Copier {
    /// Has as many threads as the host has processors, with the caller, when they are needed.
    pub(super) fn new(device: Arc<dyn BlockDevice>) -> Self {
        let processors = thread::available_parallelism().map_or(1, NonZeroUsize::get);
        let shared = Shared {
            device,
            queue: Mutex::new(Queue::default()),
            changed: Condvar::new(),
        };
        Self {
            shared: Arc::new(shared),
            threads: Vec::new(),
            most_threads: processors - 1,
        }
    }

    /// Begins to copy pieces. [`Self::finish`] waits for the end.
    pub(super) fn copy(&mut self, geometry: &Geometry, pieces: Vec<Piece>) {
        let units = units(geometry, joined(pieces));
        if units.iter().map(|unit| unit.bytes as u64).sum::<u64>() >= LEAST_BYTES_FOR_THREADS {
            self.start_threads();
        }
        self.add(units.into_iter().map(Job::Copy));
    }

    /// Begins to discard bytes. A failure is ignored: nothing needs it.
    pub(super) fn discard(&mut self, mut range: Range<u64>) {
        let mut jobs = Vec::new();
        while range.start < range.end {
            let end = range.end.min(range.start + DISCARD_BYTES);
            jobs.push(Job::Discard(range.start..end));
            range.start = end;
        }
        self.add(jobs.into_iter());
    }

    fn start_threads(&mut self) {
        while self.threads.len() < self.most_threads {
            let shared = Arc::clone(&self.shared);
            let started = thread::Builder::new().spawn(move || shared.work());
            let Ok(thread) = started else {
                // The caller does what no thread does.
                return;
            };
            self.threads.push(thread);
        }
    }

    fn add(&self, jobs: impl Iterator<Item = Job>) {
        self.shared.queue.lock().jobs.extend(jobs);
        self.shared.changed.notify_all();
    }

    /// Waits until everything is copied, and helps. What was written is not flushed.
    pub(super) fn finish(&self) -> Result<()> {
        let shared = &*self.shared;
        let mut buffer = Vec::new();
        loop {
            let mut queue = shared.queue.lock();
            if let Some(job) = queue.take() {
                drop(queue);
                shared.carry_out(job, &mut buffer);
            } else if queue.running > 0 {
                shared.changed.wait(&mut queue);
            } else {
                return Ok(queue.failed.take().map_or(Ok(()), Err)?);
            }
        }
    }
}

/// Waits until nothing is copied or discarded any more.
impl Drop for Copier {
    fn drop(&mut self) {
        self.shared.queue.lock().is_closed = true;
        // Its result matters only to a step, which would have waited for it.
        let _ = self.finish();
        self.shared.changed.notify_all();
        for thread in self.threads.drain(..) {
            if let Err(panic) = thread.join()
                && !thread::panicking()
            {
                std::panic::resume_unwind(panic);
            }
        }
    }
}

impl Queue {
    fn take(&mut self) -> Option<Job> {
        let job = self.jobs.pop_front()?;
        self.running += 1;
        Some(job)
    }
}

impl Shared {
    /// Does jobs until the queue is closed.
    fn work(&self) {
        let mut buffer = Vec::new();
        let mut queue = self.queue.lock();
        loop {
            if let Some(job) = queue.take() {
                drop(queue);
                self.carry_out(job, &mut buffer);
                queue = self.queue.lock();
            } else if queue.is_closed {
                return;
            } else {
                self.changed.wait(&mut queue);
            }
        }
    }

    /// Does a job that was taken.
    fn carry_out(&self, job: Job, buffer: &mut Vec<u8>) {
        let mut running = Running {
            shared: self,
            done: Err(io::Error::other("a thread that copies has panicked")),
        };
        running.done = match job {
            Job::Copy(unit) => self.copy(unit, buffer),
            Job::Discard(range) => {
                let _ = self.device.discard(range);
                Ok(())
            }
        };
    }

    fn copy(&self, unit: Unit, buffer: &mut Vec<u8>) -> io::Result<()> {
        buffer.resize(unit.bytes, 0);
        self.device.read_at(buffer, unit.from)?;
        self.device.write_at(buffer, unit.to)
    }
}

/// A job that was taken and has not ended.
struct Running<'a> {
    shared: &'a Shared,
    done: io::Result<()>,
}

impl Drop for Running<'_> {
    fn drop(&mut self) {
        let mut queue = self.shared.queue.lock();
        queue.running -= 1;
        if let Err(why) = std::mem::replace(&mut self.done, Ok(())) {
            queue.jobs.clear();
            queue.failed.get_or_insert(why);
        }
        let is_idle = queue.running == 0 && queue.jobs.is_empty();
        drop(queue);
        if is_idle {
            self.shared.changed.notify_all();
        }
    }
}

/// The pieces in the order of the device, joined where both ends continue.
fn joined(mut pieces: Vec<Piece>) -> Vec<Piece> {
    pieces.sort_by_key(|piece| piece.from.start);
    let mut joined: Vec<Piece> = Vec::with_capacity(pieces.len());
    for piece in pieces {
        match joined.last_mut() {
            Some(last)
                if last.from.end == piece.from.start
                    && last.to.0 + (last.from.end.0 - last.from.start.0) == piece.to.0 =>
            {
                last.from.end = piece.from.end;
            }
            _ => joined.push(piece),
        }
    }
    joined
}

/// The bytes of the pieces, cut into units. A last cluster may reach behind the end of the file
/// system.
fn units(geometry: &Geometry, pieces: Vec<Piece>) -> Vec<Unit> {
    let offset = |block: PhysBlock| geometry.block_size().offset(block);
    let mut units = Vec::new();
    for piece in pieces {
        let (mut from, mut to) = (offset(piece.from.start), offset(piece.to));
        let end = offset(piece.from.end).min(geometry.size_bytes());
        while from < end {
            let bytes = (end - from).min(UNIT_BYTES);
            units.push(Unit {
                from,
                to,
                bytes: usize::try_from(bytes).unwrap_or(0),
            });
            from += bytes;
            to += bytes;
        }
    }
    units
}

#[cfg(test)]
mod tests {
    use std::io::{IoSlice, IoSliceMut};
    use std::panic::{AssertUnwindSafe, catch_unwind};

    use fourscore_block::{DeviceOp, FaultyDevice, RamDevice, Rule};

    use super::*;

    /// Adds copies of the first blocks of a device, for another thread as well.
    fn add_copies(copier: &mut Copier, blocks: u64) {
        copier.start_threads();
        let unit = |nth| Unit {
            from: nth << 10,
            to: (blocks + nth) << 10,
            bytes: 1 << 10,
        };
        copier.add((0..blocks).map(|nth| Job::Copy(unit(nth))));
    }

    /// The step that a copy belongs to must not be made durable; the next one may.
    #[test]
    fn a_copy_that_fails_is_reported_once() {
        for nth in 1..=64 {
            let memory = Arc::new(RamDevice::from_bytes(&[7; 128 << 10]));
            let device = Arc::new(FaultyDevice::new(memory));
            device.add(Rule::nth(DeviceOp::Write, nth));
            let mut copier = Copier::new(device);
            add_copies(&mut copier, 64);
            assert!(copier.finish().is_err(), "write {nth}");
            copier.discard(0..64 << 10);
            add_copies(&mut copier, 64);
            copier.finish().unwrap();
        }
    }

    #[derive(Debug)]
    struct Panics;

    impl BlockDevice for Panics {
        fn len_bytes(&self) -> u64 {
            1 << 20
        }
        fn read_vectored_at(&self, _: &mut [IoSliceMut<'_>], _: u64) -> io::Result<()> {
            panic!("on purpose");
        }
        fn write_vectored_at(&self, _: &[IoSlice<'_>], _: u64) -> io::Result<()> {
            Ok(())
        }
        fn flush(&self) -> io::Result<()> {
            Ok(())
        }
    }

    /// Whichever thread it is: no other waits for ever.
    #[test]
    fn a_copy_that_panics_ends_all_copies() {
        for _ in 0..20 {
            let copied = catch_unwind(AssertUnwindSafe(|| {
                let mut copier = Copier::new(Arc::new(Panics));
                add_copies(&mut copier, 64);
                copier.finish().unwrap();
            }));
            assert!(copied.is_err());
        }
    }

    fn piece(from: u64, blocks: u64, to: u64) -> Piece {
        Piece {
            from: PhysBlock(from)..PhysBlock(from + blocks),
            to: PhysBlock(to),
        }
    }

    #[test]
    fn pieces_are_joined_where_both_ends_continue() {
        let pieces = vec![piece(110, 5, 20), piece(100, 10, 10), piece(115, 1, 30)];
        assert_eq!(joined(pieces), [piece(100, 15, 10), piece(115, 1, 30)]);
    }
}
