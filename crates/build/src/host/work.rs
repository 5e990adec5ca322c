//! **Purpose.** What is to be looked at next, for all threads.
//!
//! **Model.** A stack: deep directories first, so that few tasks wait. The work is over when there
//! are no tasks and nobody works on one that could bring more.

use fourscore_sync::{Condvar, Mutex};

/// Tasks of any kind.
pub(super) struct Work<T> {
    state: Mutex<State<T>>,
    changed: Condvar,
}

struct State<T> {
    waiting: Vec<T>,
    under_way: usize,
    stopped: bool,
}

impl<T> Work<T> {
    pub(super) fn new(first: T) -> Self {
        Self {
            state: Mutex::new(State {
                waiting: vec![first],
                under_way: 0,
                stopped: false,
            }),
            changed: Condvar::new(),
        }
    }

    /// The next task, which [`Work::done`] must follow; waits for one, and ends with the work.
    pub(super) fn next(&self) -> Option<T> {
        let mut state = self.state.lock();
        loop {
            if state.stopped {
                return None;
            }
            if let Some(task) = state.waiting.pop() {
                state.under_way += 1;
                return Some(task);
            }
            if state.under_way == 0 {
                return None;
            }
            self.changed.wait(&mut state);
        }
    }

    /// Says that a task is done.
    pub(super) fn done(&self) {
        let mut state = self.state.lock();
        state.under_way -= 1;
        if state.under_way == 0 {
            self.changed.notify_all();
        }
    }

    pub(super) fn add(&self, tasks: impl IntoIterator<Item = T>) {
        let mut state = self.state.lock();
        let before = state.waiting.len();
        state.waiting.extend(tasks);
        match state.waiting.len() - before {
            0 => {}
            1 => {
                self.changed.notify_one();
            }
            _ => {
                self.changed.notify_all();
            }
        }
    }

    /// Ends the work for all.
    pub(super) fn stop(&self) {
        self.state.lock().stopped = true;
        self.changed.notify_all();
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use fourscore_sync::thread;

    /// Each task brings two smaller ones; all of them are done, by whatever thread.
    #[test]
    fn all_tasks_are_done_once() {
        let work = Work::new(12u32);
        let done = Mutex::new(0);
        let run = || {
            while let Some(size) = work.next() {
                if size > 0 {
                    work.add([size - 1, size - 1]);
                }
                *done.lock() += 1;
                work.done();
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
    fn a_stop_ends_it() {
        let work = Work::new(0);
        assert_eq!(work.next(), Some(0));
        work.add([1, 2]);
        work.stop();
        assert_eq!(work.next(), None);
    }
}
