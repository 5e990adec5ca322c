//! **Purpose.** Requests through rings of io_uring: a worker hands in a reply and gets the next
//! request in one system call, on the processor of whoever asks.
//!
//! **Not here.** What a ring does not carry: FORGET, INTERRUPT, and whatever the kernel asked
//! before all queues had an entry. That comes through `/dev/fuse`, of which somebody must go on
//! reading.
//!
//! **Model.** The kernel has a queue for each possible processor, and puts a request into the queue
//! of the processor that it comes from. A worker has a ring of its own and gives the kernel an
//! *entry*: memory for a request and its reply. Workers have one entry each, and there are several
//! to a queue, pinned to its processor: so one that waits for the disk keeps nobody else waiting,
//! and of those that wait for requests the last one to come is asked first, whose caches are warm.
//! The queues of processors that are not there share one worker, since one may come up later.
//!
//! The kernel sends requests this way as soon as every queue has an entry, and makes their senders
//! wait until then. If it refuses an entry it sends everything through `/dev/fuse`: the worker
//! serves there then.
//!
//! A request's payload and its reply's share the entry's memory. A short payload (names) is copied
//! out of it, and the reply made in place; a long one (content) is used where it is, and its reply,
//! which is short, is copied there.
//!
//! **Invariants.**
//! - The kernel reads and writes an entry only while it has it: from REGISTER or COMMIT_AND_FETCH
//!   to the completion. Between those it is the worker's.
//! - A ring does nothing but to pass entries: it is made disabled, restricted to `URING_CMD` on
//!   `/dev/fuse`, and enabled, all before the first request.
//!
//! **Locking.** None: a worker shares nothing but the server.
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

/// Workers of a queue: so many requests from one processor may wait for the disk at a time.
const WORKERS_PER_QUEUE: usize = 4;
/// Where that would be more than this in all, queues have fewer.
const MOST_WORKERS: usize = 128;
/// Payloads of up to so many bytes are copied, and replies to longer ones are no longer than this.
const SHORT_BYTES: usize = 1024;
/// Where `len` is in a submission: the crate for io_uring has no word for it.
const LEN_OFFSET: usize = 24;
const _: () = assert!(size_of::<Entry128>() == 128);

/// How a worker's service ended.
#[derive(Debug)]
pub(crate) enum Ended {
    /// The file system was unmounted.
    Unmounted,
    /// The kernel takes no entry: it asks through `/dev/fuse`.
    Refused,
    /// The ring failed.
    Failed(io::Error),
}

/// A ring, and the entries that go through it.
pub(crate) struct RingWorker {
    ring: IoUring<Entry128, cqueue::Entry>,
    entries: Vec<Entry>,
    /// Where it runs, if it serves the queue of one processor only.
    processor: Option<usize>,
    /// Short payloads, while their requests are answered.
    copied: Box<[u8]>,
    /// Replies to requests with long payloads.
    short: Reply,
}

/// What goes back and forth between the kernel and a worker.
struct Entry {
    queue: u16,
    header: Box<UringReqHeader>,
    /// Its memory is that of payloads, both ways.
    reply: Reply,
    state: State,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum State {
    /// Given to the kernel, and nothing was heard of it.
    New,
    /// Requests have come in it.
    Known,
    /// The kernel does not have it any more.
    Gone,
}

/// What is to be done about a completion.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Next {
    Answer,
    Register,
    GiveUp,
}

/// Whether the kernel would take rings, as far as can be seen before it is asked.
pub(crate) fn are_allowed() -> bool {
    let switch = std::fs::read_to_string("/sys/module/fuse/parameters/enable_uring");
    switch.is_ok_and(|switch| switch.trim() == "Y")
}

/// The workers of all queues, for payloads of `payload_bytes`. The rings are ready for use: nothing
/// is opened or registered afterwards.
///
/// # Errors
/// The kernel's, where it has no io_uring for this process.
pub(crate) fn workers(device: &impl AsFd, payload_bytes: usize) -> io::Result<Vec<RingWorker>> {
    let processors = Processors::of_host()?;
    let present = processors.present.len().max(1);
    let of_each = (MOST_WORKERS / present).clamp(1, WORKERS_PER_QUEUE);
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

    /// Whether it serves the queue of a processor.
    #[cfg(test)]
    pub(crate) fn serves(&self, queue: u16) -> bool {
        self.entries.iter().any(|entry| entry.queue == queue)
    }

    /// Answers requests until there are none.
    pub(crate) fn serve(mut self, server: &impl Serve, farewell: Farewell<'_>) -> Ended {
        if let Some(processor) = self.processor
            && let Err(error) = crate::processors::stay_on(processor)
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
                        was_refused |= !is_the_end(result);
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

    /// Tells the kernel what is in the submission queue, and waits for so many completions.
    fn enter(&self, want: usize) -> io::Result<()> {
        match self.ring.submit_and_wait(want) {
            Ok(_) => Ok(()),
            Err(error) => match HostErrno::from_io_error(&error) {
                // What was not taken is still in the queue.
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

    /// Gives an entry to the kernel.
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
        // SAFETY: a submission is plain memory, and has a u32 there: how many areas there are.
        unsafe {
            let len = (&raw mut command).cast::<u8>().add(LEN_OFFSET);
            len.cast::<u32>().write_unaligned(2);
        }
        self.push(command, index)?;
        // The kernel looks at the list of areas only while it takes the submission.
        self.hand_in()
    }

    /// Hands in the reply that an entry has, and with it the entry: the last reply at once, others
    /// when the ring is entered next.
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
            self.hand_in()?;
            farewell(ended);
        }
        Ok(())
    }

    /// Has the kernel take everything that is in the submission queue.
    fn hand_in(&mut self) -> io::Result<()> {
        while !self.ring.submission().is_empty() {
            self.enter(0)?;
        }
        Ok(())
    }

    fn push(&mut self, command: Entry128, index: usize) -> io::Result<()> {
        let command = command.user_data(index as u64);
        // SAFETY: the memory that the kernel writes through an entry is on the heap, belongs to
        // `self.entries`, of which none is removed, and outlives the ring (`Drop`). Nothing here
        // touches it before the entry's completion is in.
        let pushed = unsafe { self.ring.submission().push(&command) };
        pushed.map_err(io::Error::other)
    }

    /// Answers the request that has come in an entry: the reply is there then.
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
        // What the kernel still has is not given to anybody else.
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

/// A ring that passes commands to `device`, and does nothing else.
fn restricted_ring(device: &impl AsFd, entries: usize) -> io::Result<IoUring<Entry128>> {
    let entries = u32::try_from(entries).map_err(|_| io::ErrorKind::Unsupported)?;
    let mut builder = IoUring::<Entry128>::builder();
    // A worker looks for requests when it has answered one; it need not be interrupted for them.
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

/// Whether a result says that the file system was unmounted.
fn is_the_end(result: i32) -> bool {
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
        _ if is_the_end(result) => Next::GiveUp,
        State::New if matches!(error, HostErrno::AGAIN | HostErrno::INTR) => {
            thread::yield_now();
            Next::Register
        }
        State::New | State::Gone => {
            tracing::warn!(%error, "the kernel takes no entry of a ring");
            Next::GiveUp
        }
        State::Known => {
            tracing::error!(%error, "a reply was refused");
            Next::Register
        }
    }
}

/// Makes the reply to the request of an entry. There is one in any case, since the entry goes back
/// with it.
fn respond(
    header: &UringReqHeader,
    payload: &[u8],
    server: &impl Serve,
    reply: &mut Reply,
) -> Answered {
    let Some(request) = Request::in_parts(&header.in_out, &header.op_in, payload) else {
        tracing::error!(len = payload.len(), "not a request");
        let asked = InHeader::read_from_prefix(&header.in_out);
        reply.clear();
        reply.finish(
            asked.map_or(0, |(asked, _)| asked.unique),
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

    /// Says how many bytes it was given, and their sum.
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

        fn take_back(&self, _reply: &mut Reply) {}
    }

    fn worker() -> io::Result<RingWorker> {
        let device = std::fs::File::open("/dev/null")?;
        RingWorker::new(&device, &[0], 1 << 20)
    }

    /// What the first and only submission comes to.
    fn result_of(worker: &mut RingWorker, submission: &Entry128) -> i32 {
        // SAFETY: these submissions name no memory that goes before they are completed.
        unsafe { worker.ring.submission().push(submission).expect("room") };
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
        // Of other files than the device, not even commands.
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
    fn replies_are_where_the_kernel_looks_for_them() {
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
        // What is no request has a reply too: an error.
        worker.entries[0].header.ring_ent_in_out.payload_sz = 7;
        worker.answer(0, &Sum);
        let entry = &worker.entries[0];
        let (reply, _) = OutHeader::read_from_prefix(&entry.header.in_out).expect("whole");
        assert_eq!(reply.error, -HostErrno::INVAL.raw_os_error());
        assert_eq!(entry.header.ring_ent_in_out.payload_sz, 0);
        worker.entries[0].state = State::Gone;
    }

    #[test]
    fn what_a_completion_says_is_heeded() {
        let code = |error: HostErrno| -error.raw_os_error();
        for state in [State::New, State::Known] {
            assert_eq!(next(state, 0), Next::Answer);
            assert_eq!(next(state, code(HostErrno::NOTCONN)), Next::GiveUp);
            assert!(is_the_end(code(HostErrno::NOTCONN)));
        }
        assert_eq!(next(State::New, code(HostErrno::AGAIN)), Next::Register);
        assert_eq!(next(State::New, code(HostErrno::NOMEM)), Next::GiveUp);
        assert!(!is_the_end(code(HostErrno::NOMEM)));
        // A reply that the kernel could not use costs the entry, not the worker.
        assert_eq!(next(State::Known, code(HostErrno::INVAL)), Next::Register);
    }
}
