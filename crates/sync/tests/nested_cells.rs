//! A cell inside a retired value is retired in turn.
//!
//! This test has a process of its own. The inner cell is retired by the thread that drops the outer
//! one, into a batch of that thread. In a process with other tests, that thread may be one of
//! theirs, which may end with a batch that is not full and that no thread flushes. The model of the
//! feature `shuttle` has no batches; its test is among the unit tests.

#![cfg(not(feature = "shuttle"))]

use fourscore_sync::epoch::{EpochCell, flush, pin};
use std::sync::Arc;

#[test]
fn cells_inside_retired_values_are_retired_in_turn() {
    let value = Arc::new(9);
    let inner = EpochCell::new(Some(Box::new(Arc::clone(&value))));
    let outer = EpochCell::new(Some(Box::new(inner)));
    {
        let guard = pin();
        let inner = outer.load(&guard).expect("the inner cell");
        outer.store(None);
        assert_eq!(inner.load(&guard).map(|value| **value), Some(9));
    }
    // The first flush drops the outer value, and the second the inner one.
    flush();
    flush();
    assert_eq!(Arc::strong_count(&value), 1);
}
