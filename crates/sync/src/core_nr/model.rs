//! **Purpose.** Two cores, between which every task wanders.

use std::cell::Cell;

/// Enough for two tasks to meet on one core, and for one task to meet both.
pub(crate) fn core_count() -> usize {
    2
}

shuttle::thread_local! {
    static QUESTIONS: Cell<usize> = Cell::new(0);
}

/// Depends only on the task and on how often it asked, so a schedule can be replayed.
pub(crate) fn current_index() -> usize {
    let asked = QUESTIONS.with(|questions| questions.replace(questions.get().wrapping_add(1)));
    usize::from(shuttle::current::me()).wrapping_add(asked / 2)
}
