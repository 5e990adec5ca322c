//! **Purpose.** What a seed decides where the kernel does the work: the workload of the same seed,
//! as far as it can be compared.

use fourscore_testkit::explore::rng::mix;

use crate::crash::workload::{LogWish, Mode, Step, Workload};

/// The workload of a seed: that of [`Workload::of`], by one thread, with a journal. Half of all
/// have fast commits, a quarter has journaled content.
#[must_use]
pub fn of_seed(seed: u64) -> Workload {
    let mut workload = Workload::of(seed);
    // With more threads commits fall into the middle of calls, which Linux does in several steps.
    workload.threads.truncate(1);
    workload.shape.trees = 1;
    (workload.mode, workload.shape.log) = match mix(seed) % 4 {
        0 => (Mode::Journal, LogWish::Journal),
        1 => (Mode::Ordered, LogWish::Journal),
        // Where content is journaled all commits are of the usual kind.
        _ => (Mode::Ordered, LogWish::FastCommit),
    };
    if workload.shape.log == LogWish::FastCommit {
        // So are those of sync.
        for step in workload.threads.iter_mut().flatten() {
            if *step == Step::Sync {
                *step = Step::Fsync;
            }
        }
    }
    workload
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use super::*;

    #[test]
    fn all_modes_and_logs_take_turns() {
        let forms: BTreeSet<_> = (0..200)
            .map(|seed| {
                let workload = of_seed(seed);
                assert_eq!(workload.threads.len(), workload.shape.trees);
                let kind = seed % Workload::TURN;
                format!("{kind} {:?} {:?}", workload.mode, workload.shape.log)
            })
            .collect();
        assert_eq!(forms.len(), 15, "{forms:?}");
    }
}
