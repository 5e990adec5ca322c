//! **Purpose.** Batches: requests that are submitted to a device together, and their outcomes.
//!
//! **Model.** A [`Batch`] owns its buffers. Between two flushes its requests are unordered and may
//! all be in flight at once; a flush is a barrier:
//!
//! ```text
//!   read a   write b   write c  |flush|  write d  |flush|
//!   \______ in any order _____/          after b and c are durable
//! ```
//!
//! **Invariants.** A flush begins when every request before it in the batch has ended, and the
//! requests after it begin when it has succeeded. If a request before a flush fails, the flush and
//! all requests after it are not begun and are reported as cancelled. The same holds for all
//! requests after a flush that fails itself. So a commit block is never written while blocks of its
//! transaction are missing. Outcomes are in the order of the requests.
//!
//! **Crash safety.** Dropping an [`InFlight`] does not cancel its requests: the drop waits, since
//! the device may still access memory that the batch owns. Requests after a flush that had not
//! ended by then may never begin.

use std::fmt;
use std::io::{self, ErrorKind, IoSlice, IoSliceMut};

use fourscore_sync::profile::{self, Section};

use crate::device::{BlockDevice, to_u64, total_bytes};
use crate::error::{DeviceOp, Operation};
use crate::io_buf::IoBuf;

/// A request of a batch.
#[derive(Debug)]
pub(crate) enum Request {
    Read { offset: u64, bufs: Vec<IoBuf> },
    Write { offset: u64, bufs: Vec<IoBuf> },
    Flush,
}

impl Request {
    /// The operation that its errors describe.
    pub(crate) fn operation(&self) -> Operation {
        match self {
            Self::Read { offset, bufs } => {
                Operation::new(DeviceOp::Read, *offset, total_bytes(bufs))
            }
            Self::Write { offset, bufs } => {
                Operation::new(DeviceOp::Write, *offset, total_bytes(bufs))
            }
            Self::Flush => Operation::flush(),
        }
    }

    /// The buffers, which the caller gets back with the outcome.
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
    let shared = || io::Error::new(ErrorKind::InvalidInput, "a read into shared memory");
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
    /// An empty batch.
    #[must_use]
    pub fn new() -> Self {
        Self::default()
    }

    /// An empty batch with memory for `requests` requests.
    #[must_use]
    pub fn with_capacity(requests: usize) -> Self {
        Self {
            requests: Vec::with_capacity(requests),
        }
    }

    /// Adds a read that fills `bufs` one after the other from byte `offset`. If a buffer is shared,
    /// the request fails with kind `InvalidInput`.
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

    /// The number of requests.
    #[must_use]
    pub fn len(&self) -> usize {
        self.requests.len()
    }

    /// Whether there are no requests.
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
                Err(request.operation().cancelled())
            } else {
                request.run_on(device)
            };
            failed |= result.is_err();
            cancelling |= failed && is_flush;
            Outcome::new(request, result)
        };
        self.into_requests().into_iter().map(run_one).collect()
    }
}

/// The result of one request, with the buffers that it owned.
#[derive(Debug)]
pub struct Outcome {
    /// The buffers, in the order of the request. Those of a failed read have undefined contents.
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

    /// The number of bytes transferred: all, or 0 for a failed request.
    #[must_use]
    pub fn len_bytes(&self) -> u64 {
        match self.result {
            Ok(()) => self.bufs.iter().fold(0, |sum, buf| sum + to_u64(buf.len())),
            Err(_) => 0,
        }
    }
}

/// A batch that a backend has in flight.
pub trait Flight: Send {
    /// Collects requests that have ended, starts those that waited for them, and returns whether
    /// the batch has ended. Never blocks.
    fn poll(&mut self) -> Poll;

    /// Blocks until all requests have ended.
    fn wait(self: Box<Self>) -> Vec<Outcome>;
}

/// Whether a batch has ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Poll {
    /// Every request has an outcome.
    Ended,
    /// A request is still in flight or waits for a flush.
    Running,
}

/// A batch that was started. Requests after a flush may be started only by calls of
/// [`InFlight::poll`] and [`InFlight::wait`], so a caller that depends on them must call one.
#[must_use = "errors of a batch are known only after waiting for it"]
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

    /// Advances the batch without blocking, and returns whether it has ended.
    pub fn poll(&mut self) -> Poll {
        match &mut self.0 {
            State::Finished(_) => Poll::Ended,
            State::Flying(flight) => flight.poll(),
        }
    }

    /// Blocks until all requests have ended; their outcomes are in the order of the batch.
    #[must_use]
    pub fn wait(self) -> Vec<Outcome> {
        let _section = profile::enter(Section::Device);
        match self.0 {
            State::Finished(outcomes) => outcomes,
            State::Flying(flight) => flight.wait(),
        }
    }

    /// Blocks until all requests have ended. Returns the first error if there is one, else the
    /// buffers of all requests in order.
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
