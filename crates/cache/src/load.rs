//! **Purpose.** Pending loads: at most one thread loads a key, and the others wait for its outcome.
//!
//! **Locking.** A pending load is in the list of its shard while its loader runs. Its own lock is
//! held only to read or set the outcome; waiting holds no other lock.

use fourscore_sync::{Arc, Condvar, Mutex};

/// A load that has not ended yet.
#[derive(Debug)]
pub(crate) struct PendingLoad<K, V> {
    pub(crate) key: K,
    outcome: Mutex<Outcome<V>>,
    ended: Condvar,
}

#[derive(Debug)]
enum Outcome<V> {
    Pending,
    Value(Arc<V>),
    /// The loader failed or panicked; each waiter that still wants the value loads it itself.
    Failed,
}

impl<K, V> PendingLoad<K, V> {
    pub(crate) fn new(key: K) -> Self {
        Self {
            key,
            outcome: Mutex::new(Outcome::Pending),
            ended: Condvar::new(),
        }
    }

    /// Waits for the loader and returns its value; `None` if the load failed.
    pub(crate) fn wait(&self) -> Option<Arc<V>> {
        let mut outcome = self.outcome.lock();
        loop {
            match &*outcome {
                Outcome::Pending => self.ended.wait(&mut outcome),
                Outcome::Value(value) => return Some(Arc::clone(value)),
                Outcome::Failed => return None,
            }
        }
    }

    /// Ends the load with a value, or with `None` as failed, and wakes all waiters.
    pub(crate) fn end(&self, value: Option<Arc<V>>) {
        *self.outcome.lock() = value.map_or(Outcome::Failed, Outcome::Value);
        self.ended.notify_all();
    }
}
