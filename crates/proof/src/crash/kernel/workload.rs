//! **Purpose.** Derives a workload for the kernel from a seed: that of our own file system, as far
//! as the results can be compared.

use fourscore_testkit::explore::rng::mix;

use crate::crash::workload::{LogKind, Mode, Step, Workload};

/// The workload of a seed: that of [`Workload::of`] with one thread and a journal. Half of all have
/// fast commits, a quarter has `data=journal`.
#[must_use]
pub fn of_seed(seed: u64) -> Workload {
    let mut workload = Workload::of(seed);
    // With more threads, commits happen within calls, which Linux does in several transactions.
    workload.threads.truncate(1);
    workload.shape.trees = 1;
    (workload.mode, workload.shape.log) = match mix(seed) % 4 {
        0 => (Mode::Journal, LogKind::Journal),
        1 => (Mode::Ordered, LogKind::Journal),
        // With `data=journal` all commits are full ones.
        _ => (Mode::Ordered, LogKind::FastCommit),
    };
    if workload.shape.log == LogKind::FastCommit {
        // So are the commits of sync.
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
