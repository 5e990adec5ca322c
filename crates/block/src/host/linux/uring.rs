//! **Purpose.** Image files and block devices with the requests of a batch in flight at once, by
//! io_uring.
//!
//! **Not here.** Single reads and writes, which are the same as for a [`FileDevice`]: they are one
//! system call either way.
//!
//! **Model.** A batch in flight owns a ring. Its requests are submitted up to the next flush; when
//! all requests before it have ended, the flush is submitted alone, and then the requests after it.
//! A short transfer is submitted again for the remaining bytes.
//!
//! **Invariants.**
//! - Memory that the kernel may still access is owned by the batch in flight. Dropping the batch
//!   waits for all its completions.
//! - There are never more requests in flight than the completion queue holds, so it cannot
//!   overflow.
//!
//! **Locking.** Idle rings are kept in a list per core, which is locked for a push or a pop only. A
//! batch in flight has exclusive use of its ring, whichever thread polls or waits.
//!
//! **Crash safety.** As for any batch: a flush begins when all requests before it have succeeded.
//!
//! **References.** io_uring(7), io_uring_enter(2).

use std::io::{self, IoSlice, IoSliceMut};
use std::ops::Range;
use std::os::fd::AsRawFd;

use fourscore_sync::{Arc, Mutex, PerCore};
use io_uring::{IoUring, opcode, types};

use super::file::{FileDevice, Memory};
use crate::batch::{Batch, Flight, InFlight, Outcome, Poll, Request};
use crate::device::{BlockDevice, Hints, HostRange, to_u64};
use crate::error::Operation;

/// The maximum number of requests of a batch in the kernel at a time. The completion queue is twice
/// as long.
const DEPTH: u32 = 128;
/// The maximum number of buffers of one request (`IOV_MAX`). Further buffers are transferred as the
/// rest of a short transfer.
const MAX_BUFFERS: usize = 1024;
/// The maximum number of idle rings that are kept for a core.
const MAX_IDLE: usize = 4;

/// A file of the host whose batches go through io_uring.
#[derive(Debug)]
pub struct UringDevice {
    shared: Arc<Shared>,
}

#[derive(Debug)]
struct Shared {
    file: FileDevice,
    idle: PerCore<Mutex<Vec<Ring>>>,
}

struct Ring(IoUring);

impl std::fmt::Debug for Ring {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("Ring")
    }
}

impl UringDevice {
    /// Sends the batches of `file` through io_uring.
    ///
    /// # Errors
    /// The kernel's error if it has no io_uring or refuses it to this process, with a message that
    /// says so. `file` is dropped; a caller that continues without io_uring must reopen it.
    pub fn new(file: FileDevice) -> io::Result<Self> {
        let ring = new_ring().map_err(|error| {
            let hint = "is it older than 5.6, or is kernel.io_uring_disabled set?";
            io::Error::new(
                error.kind(),
                format!("the kernel refuses io_uring: {error} ({hint})"),
            )
        })?;
        let shared = Shared {
            file,
            idle: PerCore::new(|_| Mutex::new(Vec::new())),
        };
        shared.give_back(ring);
        Ok(Self {
            shared: Arc::new(shared),
        })
    }
}

fn new_ring() -> io::Result<Ring> {
    IoUring::new(DEPTH).map(Ring)
}

impl Shared {
    fn ring(&self) -> io::Result<Ring> {
        let idle = self.idle.mine().lock().pop();
        idle.map_or_else(new_ring, Ok)
    }

    fn give_back(&self, ring: Ring) {
        let mut idle = self.idle.mine().lock();
        if idle.len() < MAX_IDLE {
            idle.push(ring);
        }
    }
}

impl BlockDevice for UringDevice {
    fn len_bytes(&self) -> u64 {
        self.shared.file.len_bytes()
    }

    fn lengthen(&self, len_bytes: u64) -> io::Result<u64> {
        self.shared.file.lengthen(len_bytes)
    }

    fn hints(&self) -> Hints {
        self.shared.file.hints()
    }

    fn read_vectored_at(&self, bufs: &mut [IoSliceMut<'_>], offset: u64) -> io::Result<()> {
        self.shared.file.read_vectored_at(bufs, offset)
    }

    fn write_vectored_at(&self, bufs: &[IoSlice<'_>], offset: u64) -> io::Result<()> {
        self.shared.file.write_vectored_at(bufs, offset)
    }

    fn flush(&self) -> io::Result<()> {
        self.shared.file.flush()
    }

    fn write_fua(&self, bufs: &[IoSlice<'_>], offset: u64) -> io::Result<()> {
        self.shared.file.write_fua(bufs, offset)
    }

    fn discard(&self, range: Range<u64>) -> io::Result<()> {
        self.shared.file.discard(range)
    }

    fn unlock(&self) {
        self.shared.file.unlock();
    }

    fn is_being_written(&self) -> bool {
        self.shared.file.is_being_written()
    }

    fn forget_cached(&self, range: Range<u64>) {
        self.shared.file.forget_cached(range);
    }

    fn write_zeroes(&self, range: Range<u64>) -> io::Result<()> {
        self.shared.file.write_zeroes(range)
    }

    /// If no further ring can be made (for lack of memory), the batch is carried out by plain
    /// system calls.
    fn submit(&self, batch: Batch) -> InFlight {
        let Ok(ring) = self.shared.ring() else {
            return InFlight::finished(batch.run_on(&self.shared.file));
        };
        let mut flight = UringFlight::new(Arc::clone(&self.shared), ring, batch);
        flight.advance(Wait::No);
        InFlight::flying(Box::new(flight))
    }

    fn host_range(&self, range: Range<u64>) -> Option<HostRange<'_>> {
        self.shared.file.host_range(range)
    }
}

/// A request of a batch in flight.
struct Slot {
    request: Request,
    operation: Operation,
    /// The remaining parts of the request's buffers.
    rest: Rest,
    done_bytes: u64,
    result: Option<io::Result<()>>,
}

/// Addresses of the buffers of a request.
struct Rest(Vec<libc::iovec>);

// SAFETY: the addresses point into buffers that the same slot owns, and which may be sent
// between threads; only the kernel uses them.
unsafe impl Send for Rest {}

/// A batch in flight.
struct UringFlight {
    shared: Arc<Shared>,
    /// Present until the batch has ended.
    ring: Option<Ring>,
    slots: Vec<Slot>,
    /// The first request that was not begun yet.
    next: usize,
    /// The number of requests in the kernel or in the submission queue.
    in_flight: u32,
    /// Requests to be queued again: short transfers and interrupted requests.
    requeue: Vec<usize>,
    flushing: bool,
    failed: bool,
}

#[derive(Clone, Copy, PartialEq, Eq)]
enum Wait {
    No,
    ForOne,
}

impl UringFlight {
    fn new(shared: Arc<Shared>, ring: Ring, batch: Batch) -> Self {
        let slot = |request: Request| Slot {
            operation: request.operation(),
            request,
            rest: Rest(Vec::new()),
            done_bytes: 0,
            result: None,
        };
        let slots = batch.into_requests().into_iter().map(slot).collect();
        let ring = Some(ring);
        Self {
            shared,
            ring,
            slots,
            next: 0,
            in_flight: 0,
            requeue: Vec::new(),
            flushing: false,
            failed: false,
        }
    }

    fn is_over(&self) -> bool {
        self.in_flight == 0 && self.requeue.is_empty() && self.next == self.slots.len()
    }

    /// Queues the requests that may begin, submits them, and collects completions.
    fn advance(&mut self, wait: Wait) {
        self.queue_again();
        self.queue_new();
        if self.in_flight > 0 {
            if let Err(error) = self.enter(wait) {
                self.abort(&error);
            }
            self.reap();
        }
    }

    fn queue_again(&mut self) {
        while self.in_flight < DEPTH
            && let Some(index) = self.requeue.pop()
        {
            self.queue(index);
        }
    }

    fn queue_new(&mut self) {
        while self.next < self.slots.len() && self.in_flight < DEPTH && !self.flushing {
            let index = self.next;
            if matches!(self.slots[index].request, Request::Flush) {
                if self.in_flight > 0 || !self.requeue.is_empty() {
                    return;
                }
                if self.failed {
                    self.cancel_from(index);
                    return;
                }
                self.flushing = true;
            }
            self.next += 1;
            match self.prepare(index) {
                Ok(Prepared::Empty) => self.end(index, Ok(())),
                Ok(Prepared::Ready) => self.queue(index),
                Err(error) => self.end(index, Err(error)),
            }
        }
    }

    fn cancel_from(&mut self, index: usize) {
        for slot in &mut self.slots[index..] {
            slot.result = Some(Err(slot.operation.cancelled()));
        }
        self.next = self.slots.len();
    }

    /// Checks a request and notes the addresses of its buffers. From now on the slot is not moved
    /// and its buffers are not accessed until the request has ended.
    fn prepare(&mut self, index: usize) -> io::Result<Prepared> {
        let slot = &mut self.slots[index];
        self.shared.file.check(&slot.operation)?;
        let vector = |start: *const u8, len: usize| libc::iovec {
            iov_base: start.cast_mut().cast(),
            iov_len: len,
        };
        slot.rest.0 = match &mut slot.request {
            Request::Flush => return Ok(Prepared::Ready),
            Request::Read { bufs, .. } => crate::batch::slices_mut(bufs)?
                .iter_mut()
                .map(|buf| vector(buf.as_mut_ptr().cast_const(), buf.len()))
                .collect(),
            Request::Write { bufs, .. } => bufs
                .iter()
                .map(|buf| vector(buf.as_ptr(), buf.len()))
                .collect(),
        };
        slot.rest.0.retain(|vector| vector.iov_len > 0);
        Ok(if slot.rest.0.is_empty() {
            Prepared::Empty
        } else {
            Prepared::Ready
        })
    }

    /// Puts a prepared request, or the rest of it, into the submission queue.
    fn queue(&mut self, index: usize) {
        let slot = &self.slots[index];
        let vectors = slot.rest.0.as_ptr();
        let count = u32::try_from(slot.rest.0.len().min(MAX_BUFFERS)).unwrap_or(u32::MAX);
        let at = slot.operation.offset + slot.done_bytes;
        let memory = slot.rest.0.iter().map(|vector| Memory {
            address: vector.iov_base.addr(),
            len: vector.iov_len,
        });
        let fd = types::Fd(self.shared.file.fd_at(at, memory).as_raw_fd());
        let entry = match slot.request {
            Request::Read { .. } => opcode::Readv::new(fd, vectors, count).offset(at).build(),
            Request::Write { .. } => opcode::Writev::new(fd, vectors, count).offset(at).build(),
            Request::Flush => opcode::Fsync::new(fd)
                .flags(types::FsyncFlags::DATASYNC)
                .build(),
        };
        let entry = entry.user_data(to_u64(index));
        let Some(Ring(ring)) = &mut self.ring else {
            return;
        };
        // SAFETY: the vectors and their buffers belong to a slot of `self`, which neither moves
        // nor frees them before the completion was collected (`drop` waits, and if that is
        // impossible leaks them); `shared` keeps the file open.
        let pushed = unsafe { ring.submission().push(&entry) };
        pushed.expect("the queue holds all requests in flight");
        self.in_flight += 1;
    }

    /// Submits the queue to the kernel.
    fn enter(&mut self, wait: Wait) -> io::Result<()> {
        let Some(Ring(ring)) = &self.ring else {
            return Ok(());
        };
        let want = if wait == Wait::ForOne { 1 } else { 0 };
        match ring.submit_and_wait(want) {
            Ok(_) => Ok(()),
            Err(error) => match error.raw_os_error() {
                // Interrupted, or short of memory or queue space: the queue is kept, so the next
                // call retries.
                Some(libc::EINTR | libc::EAGAIN | libc::EBUSY) => Ok(()),
                _ => Err(error),
            },
        }
    }

    fn reap(&mut self) {
        while let Some((index, result)) = self.next_completion() {
            self.in_flight -= 1;
            self.completed(index, result);
        }
    }

    fn next_completion(&mut self) -> Option<(usize, i32)> {
        let Ring(ring) = self.ring.as_mut()?;
        let completion = ring.completion().next()?;
        let index = usize::try_from(completion.user_data()).unwrap_or(usize::MAX);
        Some((index, completion.result()))
    }

    /// Handles the completion of one entry of the queue.
    fn completed(&mut self, index: usize, result: i32) {
        let slot = &mut self.slots[index];
        let operation = slot.operation;
        if matches!(result, code if code == -libc::EINTR || code == -libc::EAGAIN) {
            self.requeue.push(index);
        } else if result < 0 {
            let error = io::Error::from_raw_os_error(result.saturating_neg());
            self.end(index, Err(operation.host(error)));
        } else if matches!(slot.request, Request::Flush) {
            self.end(index, Ok(()));
        } else if result == 0 {
            let error = operation.no_progress(slot.done_bytes);
            self.end(index, Err(error));
        } else {
            let got_bytes = u64::from(result.unsigned_abs());
            slot.done_bytes += got_bytes;
            slot.rest.advance(got_bytes);
            if slot.rest.0.is_empty() {
                self.end(index, Ok(()));
            } else {
                self.requeue.push(index);
            }
        }
    }

    fn end(&mut self, index: usize, result: io::Result<()>) {
        let is_flush = matches!(self.slots[index].request, Request::Flush);
        self.failed |= result.is_err();
        if is_flush {
            self.flushing = false;
            if result.is_err() {
                self.cancel_from(index + 1);
            }
        }
        self.slots[index].result = Some(result);
    }

    /// Ends the batch after a failure of the ring itself. The kernel may still access the buffers
    /// at any time, so they are leaked. Requests without a result get this error.
    fn abort(&mut self, error: &io::Error) {
        for slot in &mut self.slots {
            if slot.result.is_none() {
                let code = error.raw_os_error().unwrap_or(libc::EIO);
                slot.result = Some(Err(slot.operation.host(io::Error::from_raw_os_error(code))));
                let request = std::mem::replace(&mut slot.request, Request::Flush);
                std::mem::forget(request);
                std::mem::forget(std::mem::take(&mut slot.rest.0));
            }
        }
        self.ring = None;
        self.requeue.clear();
        self.in_flight = 0;
        self.next = self.slots.len();
    }

    fn finish(&mut self) -> Vec<Outcome> {
        while !self.is_over() {
            self.advance(Wait::ForOne);
        }
        let outcome = |slot: Slot| Outcome::new(slot.request, slot.result.unwrap_or(Ok(())));
        self.slots.drain(..).map(outcome).collect()
    }
}

enum Prepared {
    /// There are no bytes to transfer.
    Empty,
    Ready,
}

impl Rest {
    /// Removes `bytes` from the front.
    fn advance(&mut self, bytes: u64) {
        let mut left = usize::try_from(bytes).unwrap_or(usize::MAX);
        let mut ended = 0;
        for vector in &mut self.0 {
            if left < vector.iov_len {
                vector.iov_base = vector.iov_base.cast::<u8>().wrapping_add(left).cast();
                vector.iov_len -= left;
                break;
            }
            left -= vector.iov_len;
            ended += 1;
        }
        self.0.drain(..ended);
    }
}

impl Flight for UringFlight {
    fn poll(&mut self) -> Poll {
        if !self.is_over() {
            self.advance(Wait::No);
        }
        if self.is_over() {
            Poll::Ended
        } else {
            Poll::Running
        }
    }

    fn wait(mut self: Box<Self>) -> Vec<Outcome> {
        self.finish()
    }
}

impl Drop for UringFlight {
    fn drop(&mut self) {
        // No further request is begun, but those in the kernel must complete first.
        self.next = self.slots.len();
        self.requeue.clear();
        while self.in_flight > 0 {
            self.advance(Wait::ForOne);
            self.requeue.clear();
        }
        if let Some(ring) = self.ring.take() {
            self.shared.give_back(ring);
        }
    }
}

#[cfg(all(test, not(feature = "shuttle")))]
mod tests;
