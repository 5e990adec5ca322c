//! **Purpose.** The transport through ring queues (FUSE over io_uring): a worker commits a reply
//! and fetches the next request in one system call, on the processor of the requesting process.
//!
//! **Not here.** Requests that are not sent through rings: FORGET, INTERRUPT, and all requests
//! before every queue had an entry. They come through `/dev/fuse`, which a worker must keep
//! reading.
//!
//! **Model.** The kernel has a queue for each possible processor, and puts a request into the queue
//! of the processor that it comes from. A worker has a ring of its own and registers *entries* with
//! the kernel: memory for a request and its reply. Most workers have one entry, and several
//! workers, pinned to the processor, serve one queue: so a worker that waits for the disk does not
//! block other requests. The kernel uses the entry first that became free last, whose worker has a
//! warm cache. One worker serves the queues of all processors that are not online, which may come
//! online later.
//!
//! The kernel sends requests through rings as soon as every queue has an entry, and lets the
//! requesting processes wait until then. If it refuses an entry it sends all requests through
//! `/dev/fuse`; then the worker serves that.
//!
//! The payloads of a request and of its reply share the entry's memory. A short payload (names) is
//! copied out of it, and the reply made in place; a long one (file data) is used in place, and its
//! reply, which is short, is copied there afterwards.
//!
//! **Invariants.**
//! - The kernel accesses an entry only while it owns it: from REGISTER or COMMIT_AND_FETCH to the
//!   completion. At other times the worker owns it.
//! - A ring can only pass entries: it is created disabled, restricted to `URING_CMD` on
//!   `/dev/fuse`, and enabled, all before the first request.
//!
//! **Locking.** None: workers share only the server.
//!
//! **References.** `linux/fuse.h` (`FUSE_IO_URING_CMD_*`),
//! `Documentation/filesystems/fuse-io-uring.rst`.

use std::io::{self, IoSliceMut};
use std::os::fd::{AsFd, AsRawFd};

use fourscore_sync::thread;
use io_uring::register::Restriction;
use io_uring::squeue::{Entry128, Flags};
use io_uring::{IoUring, cqueue, opcode, types};
use rustix::io::Errno as HostErrno;
use zerocopy::{FromBytes, FromZeros, IntoBytes};

use crate::abi::{InHeader, OutHeader, UringCmdReq, UringReqHeader, uring};
use crate::processors::Processors;
use crate::reply::{Errno, Reply};
use crate::request::Request;
use crate::serve::{Answered, Farewell, Serve};

/// Workers of a queue: the number of requests from one processor that can wait for the disk.
const WORKERS_PER_QUEUE: usize = 4;
/// The most workers of all queues; with many processors each queue has fewer.
const MAX_WORKERS: usize = 128;
/// Payloads of up to this many bytes are copied; replies to longer ones have at most this many.
const SHORT_BYTES: usize = 1024;
/// The offset of `len` in a submission, which the crate `io_uring` does not expose.
const LEN_OFFSET: usize = 24;
const _: () = assert!(size_of::<Entry128>() == 128);

/// The reason why a worker ended.
#[derive(Debug)]
pub(crate) enum Ended {
    /// The file system was unmounted.
    Unmounted,
    /// The kernel refused an entry: requests come through `/dev/fuse`.
    Refused,
    /// The ring failed.
    Failed(io::Error),
}

/// A worker with its ring and entries.
pub(crate) struct RingWorker {
    ring: IoUring<Entry128, cqueue::Entry>,
    entries: Vec<Entry>,
    /// The processor to which it is pinned, if it serves one queue only.
    processor: Option<usize>,
    /// The copy of a short payload, while its request is answered.
    copied: Box<[u8]>,
    /// Replies to requests with long payloads.
    short: Reply,
}

/// An entry of a ring queue: memory for a request and its reply.
struct Entry {
    queue: u16,
    header: Box<UringReqHeader>,
    /// The payload, of the request and of the reply.
    reply: Reply,
    state: State,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum State {
    /// Registered with the kernel, and not completed yet.
    New,
    /// It has received a request.
    Known,
    /// Not registered with the kernel.
    Gone,
}

/// The action for a completion.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Next {
    Answer,
    Register,
    GiveUp,
}

/// Whether the kernel's module parameter enables rings; it may still refuse them.
pub(crate) fn are_allowed() -> bool {
    let switch = std::fs::read_to_string("/sys/module/fuse/parameters/enable_uring");
    switch.is_ok_and(|switch| switch.trim() == "Y")
}

/// Makes the workers of all queues, for payloads of `payload_bytes`. Their rings are ready for use:
/// no descriptor is opened or registered afterwards.
///
/// # Errors
/// Those of the kernel, if this process may not use io_uring.
pub(crate) fn workers(device: &impl AsFd, payload_bytes: usize) -> io::Result<Vec<RingWorker>> {
    let processors = Processors::of_host()?;
    let present = processors.present.len().max(1);
    let of_each = (MAX_WORKERS / present).clamp(1, WORKERS_PER_QUEUE);
    let mut workers = Vec::with_capacity(present * of_each + 1);
    for &processor in &processors.present {
        for _ in 0..of_each {
            let mut worker = RingWorker::new(device, &[processor], payload_bytes)?;
            worker.processor = Some(processor);
            workers.push(worker);
        }
    }
    let absent: Vec<usize> = processors.absent().collect();
    if !absent.is_empty() {
        workers.push(RingWorker::new(device, &absent, payload_bytes)?);
    }
    Ok(workers)
}

impl RingWorker {
    fn new(device: &impl AsFd, queues: &[usize], payload_bytes: usize) -> io::Result<Self> {
        let entries = queues.iter().map(|&queue| Entry::new(queue, payload_bytes));
        Ok(Self {
            ring: restricted_ring(device, queues.len())?,
            entries: entries.collect::<io::Result<_>>()?,
            processor: None,
            copied: vec![0; SHORT_BYTES].into(),
            short: Reply::new(SHORT_BYTES),
        })
    }

    /// Whether it serves a queue.
    #[cfg(test)]
    pub(crate) fn serves(&self, queue: u16) -> bool {
        self.entries.iter().any(|entry| entry.queue == queue)
    }

    /// Answers requests until the file system is unmounted or the kernel refuses the entries.
    pub(crate) fn serve(mut self, server: &impl Serve, farewell: Farewell<'_>) -> Ended {
        if let Some(processor) = self.processor
            && let Err(error) = crate::processors::pin_to(processor)
        {
            tracing::debug!(processor, %error, "a worker is not pinned");
        }
        for index in 0..self.entries.len() {
            if let Err(error) = self.register(index) {
                return Ended::Failed(error);
            }
        }
        let mut was_refused = false;
        while self.entries.iter().any(|entry| entry.state != State::Gone) {
            if let Err(error) = self.enter(1) {
                return Ended::Failed(error);
            }
            while let Some((index, result)) = self.next_completion() {
                let state = self.entries[index].state;
                let done = match next(state, result) {
                    Next::Answer => {
                        let answered = self.answer(index, server);
                        self.commit(index, answered, farewell)
                    }
                    Next::Register => self.register(index),
                    Next::GiveUp => {
                        was_refused |= !is_unmounted(result);
                        self.entries[index].state = State::Gone;
                        Ok(())
                    }
                };
                if let Err(error) = done {
                    return Ended::Failed(error);
                }
            }
        }
        match was_refused {
            true => Ended::Refused,
            false => Ended::Unmounted,
        }
    }

    /// Submits the submission queue, and waits for `want` completions.
    fn enter(&self, want: usize) -> io::Result<()> {
        match self.ring.submit_and_wait(want) {
            Ok(_) => Ok(()),
            Err(error) => match HostErrno::from_io_error(&error) {
                // Submissions that were not taken are still in the queue.
                Some(HostErrno::INTR | HostErrno::AGAIN | HostErrno::BUSY) => Ok(()),
                _ => Err(error),
            },
        }
    }

    fn next_completion(&mut self) -> Option<(usize, i32)> {
        let completion = self.ring.completion().next()?;
        let index = usize::try_from(completion.user_data()).unwrap_or(usize::MAX);
        Some((index, completion.result()))
    }

    /// Registers an entry with the kernel.
    fn register(&mut self, index: usize) -> io::Result<()> {
        let entry = &mut self.entries[index];
        entry.state = State::New;
        let areas = [
            IoSliceMut::new(entry.header.as_mut_bytes()),
            IoSliceMut::new(entry.reply.memory_mut()),
        ];
        let command = command(uring::REGISTER, entry.queue, 0);
        let mut command = command
            .addr(Some(areas.as_ptr().expose_provenance() as u64))
            .build();
        // SAFETY: a submission is plain memory with a u32 at this offset: the number of areas.
        unsafe {
            let len = (&raw mut command).cast::<u8>().add(LEN_OFFSET);
            len.cast::<u32>().write_unaligned(2);
        }
        self.push(command, index)?;
        // The kernel reads the list of areas only while it takes the submission.
        self.submit()
    }

    /// Commits the reply in an entry, and the entry with it: the last reply at once, others when
    /// the ring is entered next.
    fn commit(
        &mut self,
        index: usize,
        answered: Answered,
        farewell: Farewell<'_>,
    ) -> io::Result<()> {
        let entry = &self.entries[index];
        let commit_id = entry.header.ring_ent_in_out.commit_id;
        let command = command(uring::COMMIT_AND_FETCH, entry.queue, commit_id);
        self.push(command.build(), index)?;
        if let Answered::Farewell(ended) = answered {
            self.submit()?;
            farewell(ended);
        }
        Ok(())
    }

    /// Lets the kernel take the whole submission queue.
    fn submit(&mut self) -> io::Result<()> {
        while !self.ring.submission().is_empty() {
            self.enter(0)?;
        }
        Ok(())
    }

    fn push(&mut self, command: Entry128, index: usize) -> io::Result<()> {
        let command = command.user_data(index as u64);
        // SAFETY: the memory that the kernel writes through an entry is on the heap, belongs to
        // `self.entries`, of which none is removed, and outlives the ring (`Drop`). Nothing here
        // accesses it before the entry's completion has arrived.
        let pushed = unsafe { self.ring.submission().push(&command) };
        pushed.map_err(io::Error::other)
    }

    /// Answers the request in an entry, and puts the reply into it.
    fn answer(&mut self, index: usize, server: &impl Serve) -> Answered {
        let entry = &mut self.entries[index];
        entry.state = State::Known;
        let (header, memory) = (&mut *entry.header, &mut entry.reply);
        let len = header.ring_ent_in_out.payload_sz as usize;
        let (reply, answered) = match self.copied.get_mut(..len) {
            Some(payload) => {
                payload.copy_from_slice(memory.memory().get(..len).unwrap_or_default());
                let answered = respond(header, payload, server, memory);
                (&*memory, answered)
            }
            None => {
                let payload = memory.memory().get(..len).unwrap_or_default();
                let answered = respond(header, payload, server, &mut self.short);
                let body = self.short.body();
                memory.memory_mut()[..body.len()].copy_from_slice(body);
                (&self.short, answered)
            }
        };
        header.in_out[..size_of::<OutHeader>()].copy_from_slice(reply.header().as_bytes());
        header.ring_ent_in_out.payload_sz = u32::try_from(reply.len()).unwrap_or_default();
        answered
    }
}

impl Drop for RingWorker {
    fn drop(&mut self) {
        // The kernel may still write to registered entries: their memory must not be reused.
        if self.entries.iter().any(|entry| entry.state != State::Gone) {
            std::mem::forget(std::mem::take(&mut self.entries));
        }
    }
}

impl Entry {
    fn new(queue: usize, payload_bytes: usize) -> io::Result<Self> {
        let header = UringReqHeader::new_box_zeroed();
        Ok(Self {
            queue: u16::try_from(queue).map_err(|_| io::ErrorKind::Unsupported)?,
            header: header.map_err(|_| io::ErrorKind::OutOfMemory)?,
            reply: Reply::new(payload_bytes),
            state: State::Gone,
        })
    }
}

/// A ring that can only pass commands to `device`.
fn restricted_ring(device: &impl AsFd, entries: usize) -> io::Result<IoUring<Entry128>> {
    let entries = u32::try_from(entries).map_err(|_| io::ErrorKind::Unsupported)?;
    let mut builder = IoUring::<Entry128>::builder();
    // A worker polls for requests when it has answered one; it need not be interrupted.
    builder.setup_coop_taskrun().setup_r_disabled();
    let ring = builder.build(entries)?;
    let submitter = ring.submitter();
    submitter.register_files(&[device.as_fd().as_raw_fd()])?;
    let fixed = Flags::FIXED_FILE.bits();
    submitter.register_restrictions(&mut [
        Restriction::sqe_op(opcode::UringCmd80::CODE),
        Restriction::sqe_flags_allowed(fixed),
        Restriction::sqe_flags_required(fixed),
    ])?;
    submitter.register_enable_rings()?;
    Ok(ring)
}

/// A command about an entry of `queue`.
fn command(operation: u32, queue: u16, commit_id: u64) -> opcode::UringCmd80 {
    let request = UringCmdReq {
        commit_id,
        qid: queue,
        ..UringCmdReq::default()
    };
    let mut area = [0; 80];
    area[..size_of::<UringCmdReq>()].copy_from_slice(request.as_bytes());
    opcode::UringCmd80::new(types::Fixed(0), operation).cmd(area)
}

/// Whether a result means that the file system was unmounted.
fn is_unmounted(result: i32) -> bool {
    let error = HostErrno::from_raw_os_error(result.saturating_neg());
    let ends = [
        HostErrno::NOTCONN,
        HostErrno::CONNABORTED,
        HostErrno::NODEV,
        HostErrno::CANCELED,
    ];
    ends.contains(&error)
}

fn next(state: State, result: i32) -> Next {
    if result >= 0 {
        return Next::Answer;
    }
    let error = HostErrno::from_raw_os_error(result.saturating_neg());
    match state {
        _ if is_unmounted(result) => Next::GiveUp,
        State::New if matches!(error, HostErrno::AGAIN | HostErrno::INTR) => {
            thread::yield_now();
            Next::Register
        }
        State::New | State::Gone => {
            tracing::warn!(%error, "the kernel refuses an entry of a ring");
            Next::GiveUp
        }
        State::Known => {
            tracing::error!(%error, "a reply was refused");
            Next::Register
        }
    }
}

/// Makes the reply to the request of an entry. There always is a reply, because the entry is
/// committed with it.
fn respond(
    header: &UringReqHeader,
    payload: &[u8],
    server: &impl Serve,
    reply: &mut Reply,
) -> Answered {
    let Some(request) = Request::in_parts(&header.in_out, &header.op_in, payload) else {
        tracing::error!(len = payload.len(), "not a request");
        let header = InHeader::read_from_prefix(&header.in_out);
        reply.clear();
        reply.finish(
            header.map_or(0, |(header, _)| header.unique),
            Err(Errno::INVAL),
        );
        return Answered::WithReply;
    };
    let answered = server.answer(&request, reply);
    if let Answered::WithoutReply = answered {
        reply.finish(request.header.unique, Ok(()));
    }
    answered
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::abi::{OpenOut, WriteIn, opcode as asked};

    /// A server that replies with the number of bytes written, and their sum.
    struct Sum;

    impl Serve for Sum {
        fn answer(&self, request: &Request<'_>, reply: &mut Reply) -> Answered {
            reply.clear();
            let mut arguments = request.arguments();
            let result = arguments.take::<WriteIn>().and_then(|wanted| {
                let bytes = arguments.bytes(wanted.size)?;
                reply.push(&OpenOut {
                    fh: bytes.iter().map(|&byte| u64::from(byte)).sum(),
                    open_flags: wanted.size,
                    ..OpenOut::default()
                })
            });
            reply.finish(request.header.unique, result);
            Answered::WithReply
        }

        fn undo_lookups(&self, _reply: &mut Reply) {}
    }

    fn worker() -> io::Result<RingWorker> {
        let device = std::fs::File::open("/dev/null")?;
        RingWorker::new(&device, &[0], 1 << 20)
    }

    /// The result of the first and only submission.
    fn result_of(worker: &mut RingWorker, submission: &Entry128) -> i32 {
        // SAFETY: these submissions refer to no memory that is freed before they are completed.
        unsafe { worker.ring.submission().push(submission).expect("space") };
        worker.ring.submit_and_wait(1).expect("it runs");
        worker.next_completion().expect("completed").1
    }

    #[test]
    fn a_ring_can_do_nothing_but_pass_entries() {
        let mut worker = match worker() {
            Ok(worker) => worker,
            Err(error) => return fourscore_testkit::tools::skip(&format!("io_uring: {error}")),
        };
        let refused = -HostErrno::ACCESS.raw_os_error();
        let open = opcode::OpenAt::new(types::Fd(-100), c"/dev/null".as_ptr()).build();
        assert_eq!(result_of(&mut worker, &open.into()), refused);
        let connect = opcode::Connect::new(types::Fixed(0), std::ptr::null(), 0).build();
        assert_eq!(result_of(&mut worker, &connect.into()), refused);
        // Commands to other files than the device are refused too.
        let other = opcode::UringCmd80::new(types::Fd(0), uring::REGISTER).build();
        assert_eq!(result_of(&mut worker, &other), refused);
        let own = command(uring::REGISTER, 0, 0).build();
        assert_ne!(result_of(&mut worker, &own), refused);
        let registered = worker.ring.submitter().register_files(&[0]);
        assert_eq!(
            registered.map_err(|error| error.raw_os_error()),
            Err(Some(HostErrno::ACCESS.raw_os_error()))
        );
    }

    #[test]
    fn replies_are_where_the_kernel_expects_them() {
        let mut worker = match worker() {
            Ok(worker) => worker,
            Err(error) => return fourscore_testkit::tools::skip(&format!("io_uring: {error}")),
        };
        // Short payloads are copied out, long ones used in place.
        for len in [0, 1, SHORT_BYTES, SHORT_BYTES + 1, 1 << 20] {
            let size = u32::try_from(len).expect("short");
            let wanted = WriteIn {
                size,
                ..WriteIn::default()
            };
            let asked = InHeader {
                len: u32::try_from(size_of::<InHeader>() + size_of::<WriteIn>()).expect("short")
                    + size,
                opcode: asked::WRITE,
                unique: 0x1234_5678_9abc,
                ..InHeader::default()
            };
            let entry = &mut worker.entries[0];
            entry.header.in_out[..size_of::<InHeader>()].copy_from_slice(asked.as_bytes());
            entry.header.op_in[..size_of::<WriteIn>()].copy_from_slice(wanted.as_bytes());
            entry.header.ring_ent_in_out.payload_sz = size;
            entry.reply.memory_mut()[..len].fill(3);
            worker.answer(0, &Sum);
            let entry = &worker.entries[0];
            let (reply, _) = OutHeader::read_from_prefix(&entry.header.in_out).expect("whole");
            assert_eq!((reply.error, reply.unique), (0, asked.unique));
            let bytes = entry.header.ring_ent_in_out.payload_sz as usize;
            assert_eq!(bytes, size_of::<OpenOut>());
            let (said, _) = OpenOut::read_from_prefix(entry.reply.memory()).expect("whole");
            assert_eq!((said.fh, said.open_flags), (u64::from(size) * 3, size));
        }
        // Malformed requests have a reply too: an error.
        worker.entries[0].header.ring_ent_in_out.payload_sz = 7;
        worker.answer(0, &Sum);
        let entry = &worker.entries[0];
        let (reply, _) = OutHeader::read_from_prefix(&entry.header.in_out).expect("whole");
        assert_eq!(reply.error, -HostErrno::INVAL.raw_os_error());
        assert_eq!(entry.header.ring_ent_in_out.payload_sz, 0);
        worker.entries[0].state = State::Gone;
    }

    #[test]
    fn completions_lead_to_the_right_action() {
        let code = |error: HostErrno| -error.raw_os_error();
        for state in [State::New, State::Known] {
            assert_eq!(next(state, 0), Next::Answer);
            assert_eq!(next(state, code(HostErrno::NOTCONN)), Next::GiveUp);
            assert!(is_unmounted(code(HostErrno::NOTCONN)));
        }
        assert_eq!(next(State::New, code(HostErrno::AGAIN)), Next::Register);
        assert_eq!(next(State::New, code(HostErrno::NOMEM)), Next::GiveUp);
        assert!(!is_unmounted(code(HostErrno::NOMEM)));
        // A reply that the kernel could not use costs the entry, not the worker.
        assert_eq!(next(State::Known, code(HostErrno::INVAL)), Next::Register);
    }
}
