//! **Purpose.** The queue of tasks for the scanning threads.
//!
//! **Model.** The queue is a stack: subdirectories are read first, so that it stays short. The scan
//! is finished when the stack is empty and no thread works on a task, since a task may add others.

use fourscore_sync::{Condvar, Mutex};

/// Tasks of type `T`.
pub(super) struct Tasks<T> {
    state: Mutex<State<T>>,
    changed: Condvar,
}

struct State<T> {
    pending: Vec<T>,
    running: usize,
    stopped: bool,
}

impl<T> Tasks<T> {
    pub(super) fn new(first: T) -> Self {
        Self {
            state: Mutex::new(State {
                pending: vec![first],
                running: 0,
                stopped: false,
            }),
            changed: Condvar::new(),
        }
    }

    /// Returns the next task, which [`Tasks::done`] must follow. Waits while another thread may add
    /// tasks; returns `None` when all are finished.
    pub(super) fn next(&self) -> Option<T> {
        let mut state = self.state.lock();
        loop {
            if state.stopped {
                return None;
            }
            if let Some(task) = state.pending.pop() {
                state.running += 1;
                return Some(task);
            }
            if state.running == 0 {
                return None;
            }
            self.changed.wait(&mut state);
        }
    }

    /// Marks a task as finished.
    pub(super) fn done(&self) {
        let mut state = self.state.lock();
        state.running -= 1;
        if state.running == 0 {
            self.changed.notify_all();
        }
    }

    pub(super) fn add(&self, tasks: impl IntoIterator<Item = T>) {
        let mut state = self.state.lock();
        let before = state.pending.len();
        state.pending.extend(tasks);
        match state.pending.len() - before {
            0 => {}
            1 => {
                self.changed.notify_one();
            }
            _ => {
                self.changed.notify_all();
            }
        }
    }

    /// Makes [`Tasks::next`] return `None` for all threads.
    pub(super) fn stop(&self) {
        self.state.lock().stopped = true;
        self.changed.notify_all();
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use fourscore_sync::thread;

    /// Each task adds two smaller ones; the threads finish all of them.
    #[test]
    fn every_task_is_returned_once() {
        let tasks = Tasks::new(12u32);
        let done = Mutex::new(0);
        let run = || {
            while let Some(size) = tasks.next() {
                if size > 0 {
                    tasks.add([size - 1, size - 1]);
                }
                *done.lock() += 1;
                tasks.done();
            }
        };
        thread::scope(|scope| {
            for _ in 0..3 {
                scope.spawn(run);
            }
        });
        assert_eq!(*done.lock(), (1 << 13) - 1);
    }

    #[test]
    fn no_task_is_returned_after_a_stop() {
        let tasks = Tasks::new(0);
        assert_eq!(tasks.next(), Some(0));
        tasks.add([1, 2]);
        tasks.stop();
        assert_eq!(tasks.next(), None);
    }
}
