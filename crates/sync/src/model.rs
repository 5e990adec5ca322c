//! **Purpose.** Runs a test under many schedules of its threads (feature `shuttle`).
//!
//! A failing run prints its schedule; `replay` runs that one again.

use shuttle::scheduler::{PctScheduler, RandomScheduler};
use shuttle::{Config, Runner};

pub use shuttle::{check_dfs, check_random, replay};

/// The stack size of a task that runs operations of a whole file system, in bytes; shuttle's
/// default is too small for that.
const STACK_BYTES: usize = 1 << 20;

/// Runs `test` under `schedules` random schedules, and again under as many PCT schedules
/// (probabilistic concurrency testing). Those change the running task only three times, at steps
/// drawn beforehand, which finds rare orders that a random choice at each step hardly ever
/// produces.
///
/// # Panics
/// If the test panics or deadlocks under any of them.
pub fn check(schedules: usize, test: impl Fn() + Clone + Send + Sync + 'static) {
    Runner::new(RandomScheduler::new(schedules), whole_config()).run(test.clone());
    Runner::new(PctScheduler::new(3, schedules), whole_config()).run(test);
}

/// Runs `test` under `schedules` PCT schedules only, with a larger stack: for tests of a whole file
/// system. Such a test takes so many steps that random schedules find nothing.
///
/// # Panics
/// As [`check`].
pub fn check_whole(schedules: usize, test: impl Fn() + Send + Sync + 'static) {
    Runner::new(PctScheduler::new(3, schedules), whole_config()).run(test);
}

/// Runs `act` once under one schedule: for the preparation of a test.
pub fn once(act: impl Fn() + Send + Sync + 'static) {
    Runner::new(RandomScheduler::new(1), whole_config()).run(act);
}

fn whole_config() -> Config {
    let mut config = Config::new();
    config.stack_size = STACK_BYTES;
    config
}
