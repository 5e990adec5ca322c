//! **Purpose.** Buckets: immutable lists of entries, of which writers make changed copies.

use fourscore_sync::Arc;
use fourscore_sync::atomic::{AtomicBool, Ordering};

/// A key and its value.
#[derive(Debug)]
pub(crate) struct Entry<K, V> {
    pub(crate) key: K,
    pub(crate) value: Arc<V>,
    pub(crate) weight_bytes: usize,
    /// Whether there was a hit since the clock hand visited the entry.
    referenced: AtomicBool,
}

impl<K, V> Entry<K, V> {
    /// A new entry is not referenced: only a second use distinguishes it from the entries of a
    /// scan.
    pub(crate) fn new(key: K, value: Arc<V>, weight_bytes: usize) -> Self {
        Self {
            key,
            value,
            weight_bytes,
            referenced: AtomicBool::new(false),
        }
    }

    /// Notes a hit. Writes only when the flag is clear, so that the entry's cache line stays shared
    /// by all cores that read it.
    #[inline]
    pub(crate) fn reference(&self) {
        if !self.referenced.load(Ordering::Relaxed) {
            self.referenced.store(true, Ordering::Relaxed);
        }
    }

    /// Clears the flag, and returns whether there was a hit since the last call.
    pub(crate) fn take_reference(&self) -> bool {
        let referenced = self.referenced.load(Ordering::Relaxed);
        if referenced {
            self.referenced.store(false, Ordering::Relaxed);
        }
        referenced
    }
}

impl<K: Clone, V> Entry<K, V> {
    /// Copies the entry for another bucket. A hit noted on the original from now on is lost.
    fn copy(&self) -> Self {
        Self {
            key: self.key.clone(),
            value: Arc::clone(&self.value),
            weight_bytes: self.weight_bytes,
            referenced: AtomicBool::new(self.referenced.load(Ordering::Relaxed)),
        }
    }
}

/// A bucket of at least one entry. The first lies in the bucket itself: since there is about one
/// bucket for each entry of a full cache, most hits follow one pointer from the table to the key.
#[derive(Debug)]
pub(crate) struct Bucket<K, V> {
    first: Entry<K, V>,
    others: Box<[Entry<K, V>]>,
}

impl<K, V> Bucket<K, V> {
    pub(crate) fn iter(&self) -> impl Iterator<Item = &Entry<K, V>> {
        std::iter::once(&self.first).chain(&self.others)
    }
}

impl<K, V> Bucket<K, V> {
    /// The first entry.
    pub(crate) fn into_first(self) -> Entry<K, V> {
        self.first
    }
}

impl<K: Clone + Eq, V> Bucket<K, V> {
    #[inline]
    pub(crate) fn find(&self, key: &K) -> Option<&Entry<K, V>> {
        if self.first.key == *key {
            return Some(&self.first);
        }
        self.others.iter().find(|entry| entry.key == *key)
    }

    /// Makes a bucket of `entry` and, after it, the entries of `old`.
    pub(crate) fn with(old: Option<&Self>, entry: Entry<K, V>) -> Box<Self> {
        let others = old.map_or_else(Box::default, |old| old.iter().map(Entry::copy).collect());
        Box::new(Self {
            first: entry,
            others,
        })
    }

    /// Copies the entries for which `keep` holds; `None` if there are none.
    pub(crate) fn filtered(&self, keep: impl Fn(&Entry<K, V>) -> bool) -> Option<Box<Self>> {
        let mut kept = self.iter().filter(|entry| keep(entry));
        let first = kept.next()?.copy();
        let others = kept.map(Entry::copy).collect();
        Some(Box::new(Self { first, others }))
    }
}
