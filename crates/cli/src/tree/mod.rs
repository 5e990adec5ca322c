//! **Purpose.** A tree walked by many threads, its output handed on in order.
//!
//! | module | responsibility |
//! |---|---|
//! | [`listing`] | the entries of one directory in the order of their paths |
//!
//! **Model.** A task (a directory, or a part of a big one) is run by any thread and leaves an
//! [`Output`]: bytes, and between them children (further tasks, whose output belongs there) and
//! specials (things that only the receiver of the output can do). The calling thread is the
//! receiver: it goes through the outputs depth first and waits only for a task that another
//! thread is running right now; one that nobody has begun it runs itself.
//!
//! ```text
//! task /   -> "a\n" [child /a] "b\n"
//! task /a  -> "x\n"                       received: a x b
//! ```
//!
//! **Invariants.** The receiver always makes progress, because it can run every task it needs;
//! so the helpers may stop for as long as more than [`AHEAD_BYTES`] wait for it, and the memory
//! stays bounded however big the tree is.
//!
//! Tasks that the receiver is about to need are left to it: a helper that took the very next one
//! would make it wait. When it has to wait all the same it runs another task meanwhile.
//!
//! **Locking.** Each thread has a queue of its own, newest task last. A thread takes its own newest
//! task; of the receiver's queue a helper takes one [`LEAD_TASKS`] before the end, of another
//! helper's the oldest. A node's lock comes before a queue's, both are held for a few instructions.
//! Shared lines are written once per task and not per object: `sleepers` when a helper runs dry,
//! `ahead` for every 64 KiB of output.

pub(crate) mod listing;

use std::collections::VecDeque;

use fourscore_sync::atomic::{AtomicBool, AtomicI64, AtomicUsize, Ordering, fence};
use fourscore_sync::{Arc, CachePadded, Condvar, Mutex, thread};

/// How far the helpers may run ahead of the receiver.
const AHEAD_BYTES: i64 = 64 << 20;
/// How much output a helper collects before it adds it to the shared count.
const PUBLISH_BYTES: i64 = 64 << 10;
/// How many of its next tasks are left to the receiver.
const LEAD_TASKS: usize = 4;
/// The receiver's queue.
const RECEIVER: usize = 0;
/// What an output counts for besides its bytes.
const OUTPUT_OVERHEAD_BYTES: i64 = 256;

/// What is done at each task.
pub(crate) trait Walker: Sync + Sized {
    /// A piece of work.
    type Task: Send;
    /// Something only the receiver can do.
    type Special: Send;
    /// Buffers of one thread, reused from task to task.
    type Scratch: Default;

    /// Does `task`. Failures are the walker's business: it tells them and goes on.
    fn run(&self, task: Self::Task, scratch: &mut Self::Scratch, out: &mut Output<Self>);
}

/// What a task left behind.
pub(crate) struct Output<W: Walker> {
    /// Bytes for the receiver.
    pub(crate) bytes: Vec<u8>,
    /// What comes after the bytes up to a position.
    parts: Vec<(usize, Part<W>)>,
}

enum Part<W: Walker> {
    Child(Arc<Node<W>>),
    Special(W::Special),
}

/// What the receiver is handed.
pub(crate) enum Received<'a, S> {
    /// Output bytes.
    Bytes(&'a [u8]),
    /// A special in its place.
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

    /// Puts the output of `task` here.
    pub(crate) fn child(&mut self, task: W::Task) {
        let state = Mutex::new(State::Waiting(task));
        let node = Arc::new(Node { state });
        self.parts.push((self.bytes.len(), Part::Child(node)));
    }

    /// Puts `special` here.
    pub(crate) fn special(&mut self, special: W::Special) {
        self.parts.push((self.bytes.len(), Part::Special(special)));
    }

    fn weight(&self) -> i64 {
        // A vector is never longer than `isize::MAX`.
        i64::try_from(self.bytes.len()).unwrap_or(i64::MAX >> 1) + OUTPUT_OVERHEAD_BYTES
    }
}

/// Walks from `root` on `threads` threads in all (the caller is one of them) and hands the
/// output to `receive` in order. Ends early with the first error of `receive`.
pub(crate) fn walk<W: Walker, E>(
    walker: &W,
    root: W::Task,
    threads: usize,
    receive: impl FnMut(Received<'_, W::Special>) -> Result<(), E>,
) -> Result<(), E> {
    let crew = Crew::new(walker, threads.saturating_sub(1));
    thread::scope(|scope| {
        for nr in 1..crew.queues.len() {
            let crew = &crew;
            scope.spawn(move || crew.help(nr));
        }
        // Dropped at the end of the closure, also when `receive` panics: the scope would wait
        // for helpers that nobody stops otherwise.
        let _stop = StopOnDrop(&crew);
        let state = Mutex::new(State::Waiting(root));
        crew.receive_all(&Node { state }, receive)
    })
}

/// Tasks that somebody may begin.
type Queue<W> = VecDeque<Arc<Node<W>>>;

/// The threads of one walk.
struct Crew<'w, W: Walker> {
    walker: &'w W,
    /// The receiver's first, then one for each helper.
    queues: Vec<CachePadded<Mutex<Queue<W>>>>,
    /// Bytes that were made and not yet received; helpers add theirs late, so that it may be
    /// negative for a while.
    ahead: CachePadded<AtomicI64>,
    /// Helpers that sleep or are about to.
    sleepers: CachePadded<AtomicUsize>,
    sleep: Mutex<()>,
    wake: Condvar,
    /// Where the receiver waits for a running task, with the lock of that task's node.
    finished: Condvar,
    stop: AtomicBool,
}

/// A task being run. When it is dropped its output is there, also after a panic of the walker:
/// the receiver would wait for it for ever.
struct Running<'r, 'w, W: Walker> {
    crew: &'r Crew<'w, W>,
    node: &'r Node<W>,
    output: Output<W>,
}

impl<W: Walker> Drop for Running<'_, '_, W> {
    fn drop(&mut self) {
        let output = std::mem::replace(&mut self.output, Output::new());
        *self.node.state.lock() = State::Done(output);
        self.crew.finished.notify_one();
    }
}

struct StopOnDrop<'c, 'w, W: Walker>(&'c Crew<'w, W>);

impl<W: Walker> Drop for StopOnDrop<'_, '_, W> {
    fn drop(&mut self) {
        self.0.stop.store(true, Ordering::Release);
        self.0.wake_helpers();
    }
}

impl<'w, W: Walker> Crew<'w, W> {
    fn new(walker: &'w W, helpers: usize) -> Self {
        Self {
            walker,
            queues: (0..=helpers).map(|_| CachePadded::default()).collect(),
            ahead: CachePadded::default(),
            sleepers: CachePadded::default(),
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

    /// The life of helper number `nr`.
    fn help(&self, nr: usize) {
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
                None => self.doze(),
            }
        }
    }

    /// A task to begin, unless the helpers are too far ahead.
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
                    let near = queue.len().saturating_sub(1 + LEAD_TASKS);
                    queue.remove(near)
                } else {
                    queue.pop_front()
                }
            })
    }

    /// Sleeps until there is work again. The fence pairs with the one in [`Crew::offer`]: either
    /// this thread sees the new task, or the other sees this sleeper.
    fn doze(&self) {
        let mut sleep = self.sleep.lock();
        self.sleepers.fetch_add(1, Ordering::SeqCst);
        fence(Ordering::SeqCst);
        let nothing = self.ahead.load(Ordering::Relaxed) > AHEAD_BYTES
            || self.queues.iter().all(|queue| queue.lock().is_empty());
        if nothing && !self.stop.load(Ordering::Acquire) {
            self.wake.wait(&mut sleep);
        }
        self.sleepers.fetch_sub(1, Ordering::SeqCst);
    }

    /// Runs the task of `node` if nobody has begun it; returns the weight of its output.
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
            crew: self,
            node,
            output: Output::new(),
        };
        self.walker.run(task, scratch, &mut running.output);
        self.offer(nr, &running.output);
        running.output.weight()
    }

    /// Puts the children of `output` into queue `nr`, the first one last, so that it is next.
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
        // One task is for this thread itself.
        if waiting > 1 && self.sleepers.load(Ordering::SeqCst) > 0 {
            self.wake_helpers();
        }
    }

    /// The receiver: goes through all outputs in order.
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
                abandon(above);
                return Err(error);
            }
            match part {
                Some(Part::Special(special)) => {
                    if let Err(error) = receive(Received::Special(special)) {
                        above.push(position);
                        abandon(above);
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

    /// The output of `node`: run here, or waited for.
    fn take(&self, node: &Node<W>, scratch: &mut W::Scratch) -> Output<W> {
        self.forget(node);
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

    /// Takes `node` out of the receiver's queue, where it is the last one unless a helper has
    /// taken it.
    fn forget(&self, node: &Node<W>) {
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

    /// Runs a task on the receiving thread, whose output counts at once.
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

/// How far the receiver is in one output.
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

/// Drops outputs whose tree may be as deep as an image can make it, without recursion.
fn abandon<W: Walker>(positions: Vec<Position<W>>) {
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
