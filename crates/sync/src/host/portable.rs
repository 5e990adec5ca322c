//! **Purpose.** A core number for every thread, on systems other than Linux.
//!
//! **Model.** Threads are numbered in the order in which they first ask. Up to as many threads as
//! there are cores, each has per-core values of its own; further ones share them in turn. A number
//! never changes, while threads are moved between cores, so a value that one thread has to itself
//! may still move between the caches of two cores. Nothing but speed depends on the number.

use std::sync::atomic::{AtomicUsize, Ordering};

static NEXT: AtomicUsize = AtomicUsize::new(0);

std::thread_local! {
    static NUMBER: usize = NEXT.fetch_add(1, Ordering::Relaxed);
}

/// The number of this thread, not yet checked against the count of cores.
#[cfg_attr(feature = "shuttle", expect(dead_code, reason = "a model has its own"))]
#[inline]
pub(crate) fn current_index() -> usize {
    NUMBER.with(|number| *number)
}

/// As [`crate::thread::own_working_directory`]; always fails.
pub(crate) fn own_working_directory() -> std::io::Result<()> {
    Err(std::io::ErrorKind::Unsupported.into())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_thread_keeps_its_number_and_no_other_has_it() {
        let number = || {
            let first = current_index();
            assert_eq!(current_index(), first);
            first
        };
        let other = std::thread::spawn(number).join().expect("no panic");
        assert_ne!(number(), other);
    }

    #[test]
    fn a_directory_per_thread_is_refused() {
        let error = own_working_directory().expect_err("std has no such call");
        assert_eq!(error.kind(), std::io::ErrorKind::Unsupported);
    }
}
