//! **Purpose.** The time the processors spent on programs other than the benchmark, from `/proc`.

use anyhow::Result;

/// What the processors have done since the machine started, in ticks.
pub(super) struct Processors {
    /// All time of all processors, idle or not.
    all: f64,
    /// Not idle, for any program; other virtual machines on the host included (`steal`).
    busy: f64,
    /// For this process and the children that it has waited for.
    own: f64,
}

impl Processors {
    /// Reads `/proc/stat` and `/proc/self/stat`.
    pub(super) fn read() -> Result<Self> {
        let numbers = |text: &str, skip: usize, take: usize| -> Vec<f64> {
            let words = text.split_whitespace().skip(skip).take(take);
            words.filter_map(|word| word.parse().ok()).collect()
        };
        let stat = std::fs::read_to_string("/proc/stat")?;
        // user, nice, system, idle, iowait, irq, softirq, steal
        let all = numbers(stat.lines().next().unwrap_or_default(), 1, 8);
        let idle: f64 = all.iter().skip(3).take(2).sum();
        let own = std::fs::read_to_string("/proc/self/stat")?;
        // The name may have blanks in it; utime, stime, cutime and cstime follow 11 fields behind
        // it.
        let behind_name = own.rsplit_once(')').map_or("", |(_, rest)| rest);
        let all: f64 = all.iter().sum();
        Ok(Self {
            all,
            busy: all - idle,
            own: numbers(behind_name, 11, 4).iter().sum(),
        })
    }

    /// The share of the processors, 0 to 1, that other programs took since `before`.
    pub(super) fn others_since(&self, before: &Self) -> f64 {
        let busy = self.busy - before.busy;
        (busy - (self.own - before.own)).max(0.0) / (self.all - before.all).max(1.0)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn others_take_what_is_busy_and_not_own() {
        let at = |all, busy, own| Processors { all, busy, own };
        let share = at(300.0, 150.0, 60.0).others_since(&at(100.0, 50.0, 10.0));
        assert_eq!(share, 0.25);
        let before = Processors::read().unwrap();
        let after = Processors::read().unwrap();
        assert!(before.all > 0.0 && after.busy >= before.busy && after.own >= before.own);
    }
}
