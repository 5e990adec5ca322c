//! **Purpose.** One loader for each key: the others wait for what it brings.
//!
//! **Locking.** A flight is listed in its shard while its loader runs. Its own lock is held only
//! to look at or set the outcome; waiting holds no other lock.

use fourscore_sync::{Arc, Condvar, Mutex};

/// A load under way.
#[derive(Debug)]
pub(crate) struct Flight<K, V> {
    pub(crate) key: K,
    outcome: Mutex<Outcome<V>>,
    landed: Condvar,
}

#[derive(Debug)]
enum Outcome<V> {
    Pending,
    Value(Arc<V>),
    /// The loader failed or panicked; whoever still wants the value loads it itself.
    Nothing,
}

impl<K, V> Flight<K, V> {
    pub(crate) fn new(key: K) -> Self {
        Self {
            key,
            outcome: Mutex::new(Outcome::Pending),
            landed: Condvar::new(),
        }
    }

    /// Waits for the loader. Nothing if it brought nothing.
    pub(crate) fn wait(&self) -> Option<Arc<V>> {
        let mut outcome = self.outcome.lock();
        loop {
            match &*outcome {
                Outcome::Pending => self.landed.wait(&mut outcome),
                Outcome::Value(value) => return Some(Arc::clone(value)),
                Outcome::Nothing => return None,
            }
        }
    }

    /// Hands the value, or the news that there is none, to everybody who waits.
    pub(crate) fn land(&self, value: Option<Arc<V>>) {
        *self.outcome.lock() = value.map_or(Outcome::Nothing, Outcome::Value);
        self.landed.notify_all();
    }
}
