//! **Purpose.** Running a test in many orders of its threads' steps (feature `shuttle`).
//!
//! A failing run prints its schedule; `replay` runs that one again.

use shuttle::scheduler::{PctScheduler, RandomScheduler};
use shuttle::{Config, Runner};

pub use shuttle::{check_dfs, check_random, replay};

/// What a task of a whole file system needs for its stack, in bytes: shuttle's own default is for
/// less.
const STACK_BYTES: usize = 1 << 20;

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

/// The same for tests that call much at once, such as those of a whole file system. They take so
/// many steps that a step-by-step draw finds nothing, so only the second kind of schedules is run.
///
/// # Panics
/// As [`check`].
pub fn check_whole(schedules: usize, test: impl Fn() + Send + Sync + 'static) {
    Runner::new(PctScheduler::new(3, schedules), whole()).run(test);
}

/// Runs `act` once, in an order of its own: for what a test is prepared with.
pub fn once(act: impl Fn() + Send + Sync + 'static) {
    Runner::new(RandomScheduler::new(1), whole()).run(act);
}

fn whole() -> Config {
    let mut config = Config::new();
    config.stack_size = STACK_BYTES;
    config
}
