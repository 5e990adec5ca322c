//! **Purpose.** Tests of the sections of a profile that the allocator enters.

use std::time::Duration;

use fourscore_sync::profile::{self, Sampling, Section};

use super::*;

/// The one test of the crate that marks operations: the sums are those of the process.
#[test]
fn a_wait_for_the_lock_of_a_group_is_a_section() {
    const HELD: Duration = Duration::from_millis(50);
    let bench = Bench::new(1, 1024);
    let run = bench.use_up(&exact(8), Tid(1));
    profile::start(Sampling::All);
    let before = profile::sums();
    let [began, waits] = [AtomicBool::new(false), AtomicBool::new(false)];
    thread::scope(|scope| {
        let (bench, began, waits) = (&bench, &began, &waits);
        scope.spawn(move || {
            let lock = bench.allocator.table().lock(GroupNr(0), Patience::Wait);
            began.store(true, Ordering::Release);
            while !waits.load(Ordering::Acquire) {
                thread::yield_now();
            }
            thread::sleep(HELD);
            drop(lock);
        });
        scope.spawn(move || {
            while !began.load(Ordering::Acquire) {
                thread::yield_now();
            }
            let _operation = profile::operation();
            waits.store(true, Ordering::Release);
            bench.free(run, Tid(1));
            bench.use_up(&exact(8), Tid(1));
        });
    });
    profile::stop();
    let totals = profile::sums().since(&before).totals();
    let wait = totals.of(Section::GroupLockWait);
    assert!(wait.time >= HELD / 2, "{totals:?}");
    // The bitmap's section is around it, and does not have the wait.
    let bitmap = totals.of(Section::Bitmap);
    assert!(bitmap.entered >= 3 && bitmap.time < HELD / 2, "{totals:?}");
    assert!(totals.of(Section::GroupChoice).entered >= 1, "{totals:?}");
    assert!(
        !totals.of(Section::GroupChoice).time.is_zero(),
        "{totals:?}"
    );
}
