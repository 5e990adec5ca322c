//! **Purpose.** How evenly threads with the same workload make progress.

use serde::Serialize;

/// The slowest and the fastest thread, and Jain's index over all.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize)]
pub struct Fairness {
    /// Operations per second of the slowest thread.
    pub min: f64,
    /// Operations per second of the fastest thread.
    pub max: f64,
    /// (sum of rates)^2 / (threads * sum of squares): 1 if all rates are equal, 1 / threads if
    /// one thread does everything.
    pub jain: f64,
}

impl Fairness {
    /// The fairness of these rates; all zero where there are none.
    #[must_use]
    pub fn of(rates: &[f64]) -> Self {
        let sum: f64 = rates.iter().sum();
        let squares: f64 = rates.iter().map(|rate| rate * rate).sum();
        if squares <= 0.0 {
            return Self::default();
        }
        Self {
            min: rates.iter().copied().fold(f64::INFINITY, f64::min),
            max: rates.iter().copied().fold(0.0, f64::max),
            jain: sum * sum / (rates.len() as f64 * squares),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn jains_index_goes_from_one_to_one_in_n() {
        assert_eq!(Fairness::of(&[]), Fairness::default());
        let even = Fairness::of(&[5.0, 5.0]);
        assert_eq!((even.min, even.max, even.jain), (5.0, 5.0, 1.0));
        let one = Fairness::of(&[0.0, 0.0, 0.0, 8.0]);
        assert_eq!((one.min, one.max, one.jain), (0.0, 8.0, 0.25));
    }
}
