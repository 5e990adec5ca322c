//! **Purpose.** Many requests handed to a device together, and what became of them.
//!
//! **Model.** A [`Batch`] owns its buffers. Between two flushes its requests are unordered and
//! may all be in flight at once; a flush is a barrier:
//!
//! ```text
//!   read a   write b   write c  |flush|  write d  |flush|
//!   \______ in any order _____/          after b and c are durable
//! ```
//!
//! **Invariants.** A flush begins when every request before it in the batch has ended, and what
//! comes after it begins when it has succeeded. Once a request before a flush has failed, that
//! flush and everything after it is not begun and reported as cancelled, and so is everything
//! after a flush that failed itself: a commit record is never written over missing blocks.
//! Outcomes come in the order of the requests.
//!
//! **Crash safety.** Dropping an [`InFlight`] does not cancel anything: it waits, since the
//! device may still be working on the memory that the batch owns. Requests behind a flush that
//! had not ended by then may never begin.

use std::fmt;
use std::io::{self, ErrorKind, IoSlice, IoSliceMut};

use crate::device::{BlockDevice, to_u64, total_bytes};
use crate::error::{Asked, DeviceOp};
use crate::io_buf::IoBuf;

/// One thing to do.
#[derive(Debug)]
pub(crate) enum Request {
    Read { offset: u64, bufs: Vec<IoBuf> },
    Write { offset: u64, bufs: Vec<IoBuf> },
    Flush,
}

impl Request {
    /// What its errors speak of.
    pub(crate) fn asked(&self) -> Asked {
        match self {
            Self::Read { offset, bufs } => Asked::new(DeviceOp::Read, *offset, total_bytes(bufs)),
            Self::Write { offset, bufs } => Asked::new(DeviceOp::Write, *offset, total_bytes(bufs)),
            Self::Flush => Asked::flush(),
        }
    }

    /// The buffers, given back to the caller with the outcome.
    pub(crate) fn into_bufs(self) -> Vec<IoBuf> {
        match self {
            Self::Read { bufs, .. } | Self::Write { bufs, .. } => bufs,
            Self::Flush => Vec::new(),
        }
    }

    fn run_on<D: BlockDevice + ?Sized>(&mut self, device: &D) -> io::Result<()> {
        match self {
            Self::Read { offset, bufs } => {
                let mut slices = slices_mut(bufs)?;
                device.read_vectored_at(&mut slices, *offset)
            }
            Self::Write { offset, bufs } => device.write_vectored_at(&slices(bufs), *offset),
            Self::Flush => device.flush(),
        }
    }
}

/// The buffers of a read; an error of kind `InvalidInput` if one is shared.
pub(crate) fn slices_mut(bufs: &mut [IoBuf]) -> io::Result<Vec<IoSliceMut<'_>>> {
    let shared = || io::Error::new(ErrorKind::InvalidInput, "read into shared memory");
    bufs.iter_mut()
        .map(|buf| buf.as_mut_slice().map(IoSliceMut::new).ok_or_else(shared))
        .collect()
}

/// The buffers of a write.
pub(crate) fn slices(bufs: &[IoBuf]) -> Vec<IoSlice<'_>> {
    bufs.iter().map(|buf| IoSlice::new(buf)).collect()
}

/// Requests to be started together.
#[derive(Debug, Default)]
pub struct Batch {
    requests: Vec<Request>,
}

impl Batch {
    /// No requests yet.
    #[must_use]
    pub fn new() -> Self {
        Self::default()
    }

    /// Room for `requests` requests.
    #[must_use]
    pub fn with_capacity(requests: usize) -> Self {
        Self {
            requests: Vec::with_capacity(requests),
        }
    }

    /// Adds a read that fills `bufs` one after the other from byte `offset`. Shared buffers are
    /// refused when the request is carried out.
    pub fn read(&mut self, bufs: Vec<IoBuf>, offset: u64) -> &mut Self {
        self.requests.push(Request::Read { offset, bufs });
        self
    }

    /// Adds a write of `bufs` one after the other at byte `offset`.
    pub fn write(&mut self, bufs: Vec<IoBuf>, offset: u64) -> &mut Self {
        self.requests.push(Request::Write { offset, bufs });
        self
    }

    /// Adds a barrier that makes durable every write before it.
    pub fn flush(&mut self) -> &mut Self {
        self.requests.push(Request::Flush);
        self
    }

    /// How many requests there are.
    #[must_use]
    pub fn len(&self) -> usize {
        self.requests.len()
    }

    /// Whether there is nothing to do.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.requests.is_empty()
    }

    pub(crate) fn requests(&self) -> &[Request] {
        &self.requests
    }

    /// Adds `by_bytes` to every offset; the caller has checked that none overflows.
    pub(crate) fn move_by(&mut self, by_bytes: u64) {
        for request in &mut self.requests {
            if let Request::Read { offset, .. } | Request::Write { offset, .. } = request {
                *offset += by_bytes;
            }
        }
    }

    pub(crate) fn into_requests(self) -> Vec<Request> {
        self.requests
    }

    /// Carries the requests out one after the other on this thread.
    pub(crate) fn run_on<D: BlockDevice + ?Sized>(self, device: &D) -> Vec<Outcome> {
        let mut failed = false;
        let mut cancelling = false;
        let run_one = |mut request: Request| {
            let is_flush = matches!(request, Request::Flush);
            cancelling |= failed && is_flush;
            let result = if cancelling {
                Err(request.asked().cancelled())
            } else {
                request.run_on(device)
            };
            failed |= result.is_err();
            cancelling |= failed && is_flush;
            Outcome::new(request, result)
        };
        self.requests.into_iter().map(run_one).collect()
    }
}

/// What became of one request, with the buffers that it owned.
#[derive(Debug)]
pub struct Outcome {
    /// The buffers, in the order they were given. Those of a failed read hold anything.
    pub bufs: Vec<IoBuf>,
    /// Whether every byte was transferred.
    pub result: io::Result<()>,
}

impl Outcome {
    pub(crate) fn new(request: Request, result: io::Result<()>) -> Self {
        Self {
            bufs: request.into_bufs(),
            result,
        }
    }

    /// How many bytes were transferred: all, or with an error none that can be relied on.
    #[must_use]
    pub fn len_bytes(&self) -> u64 {
        match self.result {
            Ok(()) => self.bufs.iter().fold(0, |sum, buf| sum + to_u64(buf.len())),
            Err(_) => 0,
        }
    }
}

/// What a backend does for a batch that it has in flight.
pub trait Flight: Send {
    /// Takes note of what has ended, starts what was waiting for it, and says whether all has
    /// ended. Never blocks.
    fn poll(&mut self) -> Poll;

    /// Blocks until all has ended.
    fn wait(self: Box<Self>) -> Vec<Outcome>;
}

/// Whether a batch has ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Poll {
    /// Every request has an outcome.
    Ended,
    /// Something is still in flight or waiting for a barrier.
    Running,
}

/// A batch that was started. Requests behind a flush may only be started by calls of
/// [`InFlight::poll`] and [`InFlight::wait`], so a caller that depends on them calls one.
#[must_use = "a batch has failed or not only once it was waited for"]
pub struct InFlight(State);

enum State {
    Finished(Vec<Outcome>),
    Flying(Box<dyn Flight>),
}

impl InFlight {
    /// A batch that ended before the call that started it returned.
    pub fn finished(outcomes: Vec<Outcome>) -> Self {
        Self(State::Finished(outcomes))
    }

    /// A batch that a backend has in flight.
    pub fn flying(flight: Box<dyn Flight>) -> Self {
        Self(State::Flying(flight))
    }

    /// Moves the batch on without blocking, and says whether it has ended.
    pub fn poll(&mut self) -> Poll {
        match &mut self.0 {
            State::Finished(_) => Poll::Ended,
            State::Flying(flight) => flight.poll(),
        }
    }

    /// Blocks until all requests have ended; their outcomes are in the order of the batch.
    #[must_use]
    pub fn wait(self) -> Vec<Outcome> {
        match self.0 {
            State::Finished(outcomes) => outcomes,
            State::Flying(flight) => flight.wait(),
        }
    }

    /// Blocks until all requests have ended, and gives the first error if there is one, else
    /// the buffers of all requests in order.
    pub fn wait_all_ok(self) -> io::Result<Vec<Vec<IoBuf>>> {
        self.wait()
            .into_iter()
            .map(|outcome| outcome.result.map(|()| outcome.bufs))
            .collect()
    }
}

impl fmt::Debug for InFlight {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self.0 {
            State::Finished(_) => "InFlight(finished)",
            State::Flying(_) => "InFlight(flying)",
        })
    }
}
