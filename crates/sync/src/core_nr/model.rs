//! **Purpose.** Core numbers of the `shuttle` build: two cores, between which every task moves.

use std::cell::Cell;

/// Enough for two tasks to meet on one core, and for one task to meet both.
pub(crate) fn core_count() -> usize {
    2
}

shuttle::thread_local! {
    static QUERIES: Cell<usize> = Cell::new(0);
}

/// Depends only on the task and the number of its queries, so a schedule can be replayed.
pub(crate) fn current_index() -> usize {
    let queries = QUERIES.with(|queries| queries.replace(queries.get().wrapping_add(1)));
    usize::from(shuttle::current::me()).wrapping_add(queries / 2)
}
