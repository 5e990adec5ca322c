//! **Purpose.** Running a test in many orders of its threads' steps (feature `shuttle`).
//!
//! A failing run prints its schedule; `replay` runs that one again.

pub use shuttle::{check_dfs, check_random, replay};

/// Runs `test` under `schedules` random schedules, and again under as many that change the running
/// task only three times at places drawn beforehand, which finds the rare orders that a
/// step-by-step draw hardly ever meets.
///
/// # Panics
/// If the test panics or deadlocks under any of them.
pub fn check(schedules: usize, test: impl Fn() + Clone + Send + Sync + 'static) {
    shuttle::check_random(test.clone(), schedules);
    shuttle::check_pct(test, schedules, 3);
}
