//! **Purpose.** Walks a tree with many threads and passes the output on in order.
//!
//! | module | responsibility |
//! |---|---|
//! | [`listing`] | the entries of one directory in the order of their paths |
//!
//! **Model.** A task (a directory, or a part of a large one) runs on any thread and produces an
//! [`Output`]: bytes, and between them children (further tasks, whose output belongs there) and
//! specials (actions that only the receiver of the output can take). The calling thread is the
//! receiver: it visits the outputs depth first. It waits only for a task that another thread is
//! running; a task that has not begun it runs itself. The other threads are the helpers.
//!
//! ```text
//! task /   -> "a\n" [child /a] "b\n"
//! task /a  -> "x\n"                       received: a x b
//! ```
//!
//! **Invariants.** The receiver always makes progress, because it can run every task it needs. So
//! the helpers may stop while more than [`AHEAD_BYTES`] of output wait for the receiver, which
//! bounds the memory for a tree of any size.
//!
//! The tasks that the receiver needs next are left to it: a helper that took the next one would
//! make it wait. While the receiver has to wait for a task, it runs another one.
//!
//! **Locking.** Each thread has its own queue, newest task last. A thread takes its own newest
//! task. From the receiver's queue a helper takes the task [`LEAD_TASKS`] before the end, from
//! another helper's queue the oldest. Lock order: a node's lock before a queue's; both are held for
//! a few instructions. Shared cache lines are written per task and not per object: `idle` when a
//! helper finds no task, `ahead` for every 64 KiB of output.

pub(crate) mod listing;

use std::collections::VecDeque;

use fourscore_sync::atomic::{AtomicBool, AtomicI64, AtomicUsize, Ordering, fence};
use fourscore_sync::{Arc, CachePadded, Condvar, Mutex, thread};

/// Output that may wait for the receiver.
const AHEAD_BYTES: i64 = 64 << 20;
/// Output of a helper that it adds to the shared count at once.
const PUBLISH_BYTES: i64 = 64 << 10;
/// Tasks that are left to the receiver, since it needs them next.
const LEAD_TASKS: usize = 4;
/// Index of the receiver's queue.
const RECEIVER: usize = 0;
/// Memory of an output besides its bytes.
const OUTPUT_OVERHEAD_BYTES: i64 = 256;

/// The work at each task.
pub(crate) trait Walker: Sync + Sized {
    /// A piece of work.
    type Task: Send;
    /// An action that only the receiver can take.
    type Special: Send;
    /// Buffers of one thread, reused for each task.
    type Scratch: Default;

    /// Runs `task`. The walker reports failures itself and continues.
    fn run(&self, task: Self::Task, scratch: &mut Self::Scratch, out: &mut Output<Self>);
}

/// The output of a task.
pub(crate) struct Output<W: Walker> {
    /// Bytes for the receiver.
    pub(crate) bytes: Vec<u8>,
    /// Parts with their positions: each comes after the bytes up to it.
    parts: Vec<(usize, Part<W>)>,
}

enum Part<W: Walker> {
    Child(Arc<Node<W>>),
    Special(W::Special),
}

/// What the receiver gets.
pub(crate) enum Received<'a, S> {
    /// Output bytes.
    Bytes(&'a [u8]),
    /// A special.
    Special(S),
}

struct Node<W: Walker> {
    state: Mutex<State<W>>,
}

enum State<W: Walker> {
    Waiting(W::Task),
    Running,
    Done(Output<W>),
    Taken,
}

impl<W: Walker> Output<W> {
    fn new() -> Self {
        Self {
            bytes: Vec::new(),
            parts: Vec::new(),
        }
    }

    /// Inserts the output of `task` at this position.
    pub(crate) fn child(&mut self, task: W::Task) {
        let state = Mutex::new(State::Waiting(task));
        let node = Arc::new(Node { state });
        self.parts.push((self.bytes.len(), Part::Child(node)));
    }

    /// Inserts `special` at this position.
    pub(crate) fn special(&mut self, special: W::Special) {
        self.parts.push((self.bytes.len(), Part::Special(special)));
    }

    fn weight(&self) -> i64 {
        // A vector is never longer than `isize::MAX`.
        i64::try_from(self.bytes.len()).unwrap_or(i64::MAX >> 1) + OUTPUT_OVERHEAD_BYTES
    }
}

/// Walks from `root` on `threads` threads, one of which is the caller, and passes the output to
/// `receive` in order. Ends early with the first error of `receive`.
pub(crate) fn walk<W: Walker, E>(
    walker: &W,
    root: W::Task,
    threads: usize,
    receive: impl FnMut(Received<'_, W::Special>) -> Result<(), E>,
) -> Result<(), E> {
    let pool = Pool::new(walker, threads.saturating_sub(1));
    thread::scope(|scope| {
        for nr in 1..pool.queues.len() {
            let pool = &pool;
            scope.spawn(move || pool.run_helper(nr));
        }
        // Dropped at the end of the closure, also if `receive` panics: the scope waits for the
        // helpers, which have to be stopped.
        let _stop = StopOnDrop(&pool);
        let state = Mutex::new(State::Waiting(root));
        pool.receive_all(&Node { state }, receive)
    })
}

/// Tasks that have not begun.
type Queue<W> = VecDeque<Arc<Node<W>>>;

/// State that the threads of a walk share.
struct Pool<'w, W: Walker> {
    walker: &'w W,
    /// The receiver's queue, then one for each helper.
    queues: Vec<CachePadded<Mutex<Queue<W>>>>,
    /// Bytes of output that are not received yet. Helpers add theirs late, so that the number may
    /// be negative for a while.
    ahead: CachePadded<AtomicI64>,
    /// Helpers that wait for work or are about to.
    idle: CachePadded<AtomicUsize>,
    sleep: Mutex<()>,
    wake: Condvar,
    /// The receiver waits here for a running task, with the lock of that task's node.
    finished: Condvar,
    stop: AtomicBool,
}

/// A running task. Dropping this publishes its output, also after a panic of the walker: the
/// receiver would wait for it forever.
struct Running<'r, 'w, W: Walker> {
    pool: &'r Pool<'w, W>,
    node: &'r Node<W>,
    output: Output<W>,
}

impl<W: Walker> Drop for Running<'_, '_, W> {
    fn drop(&mut self) {
        let output = std::mem::replace(&mut self.output, Output::new());
        *self.node.state.lock() = State::Done(output);
        self.pool.finished.notify_one();
    }
}

struct StopOnDrop<'c, 'w, W: Walker>(&'c Pool<'w, W>);

impl<W: Walker> Drop for StopOnDrop<'_, '_, W> {
    fn drop(&mut self) {
        self.0.stop.store(true, Ordering::Release);
        self.0.wake_helpers();
    }
}

impl<'w, W: Walker> Pool<'w, W> {
    fn new(walker: &'w W, helpers: usize) -> Self {
        Self {
            walker,
            queues: (0..=helpers).map(|_| CachePadded::default()).collect(),
            ahead: CachePadded::default(),
            idle: CachePadded::default(),
            sleep: Mutex::default(),
            wake: Condvar::new(),
            finished: Condvar::new(),
            stop: AtomicBool::new(false),
        }
    }

    fn wake_helpers(&self) {
        let _sleep = self.sleep.lock();
        self.wake.notify_all();
    }

    /// The body of helper `nr`.
    fn run_helper(&self, nr: usize) {
        let mut scratch = W::Scratch::default();
        let mut unpublished = 0;
        while !self.stop.load(Ordering::Acquire) {
            match self.next_task(nr) {
                Some(node) => {
                    unpublished += self.run(&node, nr, &mut scratch);
                    if unpublished >= PUBLISH_BYTES {
                        self.ahead.fetch_add(unpublished, Ordering::Relaxed);
                        unpublished = 0;
                    }
                }
                None => self.wait_for_work(),
            }
        }
    }

    /// A task to run, unless too much output waits for the receiver.
    fn next_task(&self, nr: usize) -> Option<Arc<Node<W>>> {
        if self.ahead.load(Ordering::Relaxed) > AHEAD_BYTES {
            return None;
        }
        if let Some(node) = self.queues.get(nr)?.lock().pop_back() {
            return Some(node);
        }
        let others = (1..self.queues.len()).map(|step| (nr + step) % self.queues.len());
        others
            .filter_map(|other| Some((other, self.queues.get(other)?)))
            .find_map(|(other, queue)| {
                let mut queue = queue.lock();
                if other == RECEIVER {
                    let nearest = queue.len().saturating_sub(1 + LEAD_TASKS);
                    queue.remove(nearest)
                } else {
                    queue.pop_front()
                }
            })
    }

    /// Waits until there is work. The fence pairs with the one in [`Pool::offer`]: either this
    /// thread sees the new task, or the other thread sees that this one is idle.
    fn wait_for_work(&self) {
        let mut sleep = self.sleep.lock();
        self.idle.fetch_add(1, Ordering::SeqCst);
        fence(Ordering::SeqCst);
        let nothing = self.ahead.load(Ordering::Relaxed) > AHEAD_BYTES
            || self.queues.iter().all(|queue| queue.lock().is_empty());
        if nothing && !self.stop.load(Ordering::Acquire) {
            self.wake.wait(&mut sleep);
        }
        self.idle.fetch_sub(1, Ordering::SeqCst);
    }

    /// Runs the task of `node` unless it has begun. Returns the weight of its output, or 0.
    fn run(&self, node: &Node<W>, nr: usize, scratch: &mut W::Scratch) -> i64 {
        let task = {
            let mut state = node.state.lock();
            match std::mem::replace(&mut *state, State::Running) {
                State::Waiting(task) => task,
                other => {
                    *state = other;
                    return 0;
                }
            }
        };
        let mut running = Running {
            pool: self,
            node,
            output: Output::new(),
        };
        self.walker.run(task, scratch, &mut running.output);
        self.offer(nr, &running.output);
        running.output.weight()
    }

    /// Puts the children of `output` into queue `nr`, the first child last, so that it is taken
    /// next.
    fn offer(&self, nr: usize, output: &Output<W>) {
        let Some(queue) = self.queues.get(nr) else {
            return;
        };
        let mut children = output
            .parts
            .iter()
            .rev()
            .filter_map(|(_, part)| match part {
                Part::Child(node) => Some(Arc::clone(node)),
                Part::Special(_) => None,
            });
        let Some(first) = children.next() else {
            return;
        };
        let waiting = {
            let mut queue = queue.lock();
            queue.push_back(first);
            queue.extend(children);
            queue.len()
        };
        fence(Ordering::SeqCst);
        // This thread takes one of them itself.
        if waiting > 1 && self.idle.load(Ordering::SeqCst) > 0 {
            self.wake_helpers();
        }
    }

    /// The receiver: visits all outputs in order.
    fn receive_all<E>(
        &self,
        root: &Node<W>,
        mut receive: impl FnMut(Received<'_, W::Special>) -> Result<(), E>,
    ) -> Result<(), E> {
        let mut scratch = W::Scratch::default();
        let mut position = Position::of(self.take(root, &mut scratch));
        let mut above = Vec::new();
        loop {
            let (from, to, part) = position.next_part();
            if let Some(bytes) = position.output.bytes.get(from..to)
                && !bytes.is_empty()
                && let Err(error) = receive(Received::Bytes(bytes))
            {
                above.push(position);
                drop_all(above);
                return Err(error);
            }
            match part {
                Some(Part::Special(special)) => {
                    if let Err(error) = receive(Received::Special(special)) {
                        above.push(position);
                        drop_all(above);
                        return Err(error);
                    }
                }
                Some(Part::Child(node)) => {
                    let output = self.take(&node, &mut scratch);
                    above.push(std::mem::replace(&mut position, Position::of(output)));
                }
                None => {
                    self.received(position.weight);
                    match above.pop() {
                        Some(parent) => position = parent,
                        None => return Ok(()),
                    }
                }
            }
        }
    }

    /// Returns the output of `node`: runs it here, or waits for it.
    fn take(&self, node: &Node<W>, scratch: &mut W::Scratch) -> Output<W> {
        self.unqueue(node);
        self.run_for_receiver(node, scratch);
        loop {
            let mut state = node.state.lock();
            match std::mem::replace(&mut *state, State::Taken) {
                State::Done(output) => return output,
                running => *state = running,
            }
            let queue = self.queues.get(RECEIVER);
            let queue = queue.filter(|_| self.ahead.load(Ordering::Relaxed) <= AHEAD_BYTES);
            match queue.and_then(|queue| queue.lock().pop_back()) {
                Some(other) => {
                    drop(state);
                    self.run_for_receiver(&other, scratch);
                }
                None => self.finished.wait(&mut state),
            }
        }
    }

    /// Removes `node` from the receiver's queue, where it is the last one unless a helper has taken
    /// it.
    fn unqueue(&self, node: &Node<W>) {
        if let Some(queue) = self.queues.get(RECEIVER) {
            let mut queue = queue.lock();
            if queue
                .back()
                .is_some_and(|last| std::ptr::eq(&raw const **last, node))
            {
                queue.pop_back();
            }
        }
    }

    /// Runs a task on the receiving thread. Its output is added to the shared count at once.
    fn run_for_receiver(&self, node: &Node<W>, scratch: &mut W::Scratch) {
        let weight = self.run(node, RECEIVER, scratch);
        if weight > 0 {
            self.ahead.fetch_add(weight, Ordering::Relaxed);
        }
    }

    fn received(&self, weight: i64) {
        let before = self.ahead.fetch_sub(weight, Ordering::Relaxed);
        if before > AHEAD_BYTES && before - weight <= AHEAD_BYTES {
            self.wake_helpers();
        }
    }
}

/// The position of the receiver in one output.
struct Position<W: Walker> {
    output: Output<W>,
    parts: std::vec::IntoIter<(usize, Part<W>)>,
    at: usize,
    weight: i64,
}

impl<W: Walker> Position<W> {
    fn of(mut output: Output<W>) -> Self {
        let weight = output.weight();
        let parts = std::mem::take(&mut output.parts).into_iter();
        Self {
            output,
            parts,
            at: 0,
            weight,
        }
    }

    /// The range of bytes up to the next part, and that part.
    fn next_part(&mut self) -> (usize, usize, Option<Part<W>>) {
        let from = self.at;
        match self.parts.next() {
            Some((to, part)) => {
                self.at = to;
                (from, to, Some(part))
            }
            None => {
                self.at = self.output.bytes.len();
                (from, self.at, None)
            }
        }
    }
}

/// Drops outputs without recursion, since the tree of an image may be deeper than the stack.
fn drop_all<W: Walker>(positions: Vec<Position<W>>) {
    let child = |(_, part)| match part {
        Part::Child(node) => Some(node),
        Part::Special(_) => None,
    };
    let mut nodes: Vec<Arc<Node<W>>> = positions
        .into_iter()
        .flat_map(|position| position.parts)
        .filter_map(child)
        .collect();
    while let Some(node) = nodes.pop() {
        if let State::Done(output) = std::mem::replace(&mut *node.state.lock(), State::Taken) {
            nodes.extend(output.parts.into_iter().filter_map(child));
        }
    }
}

#[cfg(test)]
mod tests;
