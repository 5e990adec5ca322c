//! **Purpose.** Medians, extremes, spread and ratios of a handful of samples.
//!
//! **Model.** The median of an even number of samples is the mean of the middle two, rounded
//! down to a whole unit; the spread is (max - min) / median. Means are not offered: one round
//! disturbed by another process would move them.

use serde::Serialize;

/// Statistics of the samples of one quantity (nanoseconds or bytes).
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Summary {
    /// The middle sample.
    pub median: u64,
    /// The smallest sample.
    pub min: u64,
    /// The largest sample.
    pub max: u64,
    /// (max - min) / median; 0 where the median is 0.
    pub spread: f64,
    /// All samples in the order in which they were taken.
    pub samples: Vec<u64>,
}

impl Summary {
    /// Sums up `samples`; `None` when there are none.
    #[must_use]
    pub fn of(samples: &[u64]) -> Option<Self> {
        let mut sorted = samples.to_vec();
        sorted.sort_unstable();
        let (&min, &max) = (sorted.first()?, sorted.last()?);
        let (low, high) = middle(&sorted)?;
        let median = low + (high - low) / 2;
        let spread = if median == 0 {
            0.0
        } else {
            (max - min) as f64 / median as f64
        };
        Some(Self {
            median,
            min,
            max,
            spread,
            samples: samples.to_vec(),
        })
    }
}

/// The ratio of two sides, taken within each round.
#[derive(Clone, Copy, Debug, PartialEq, Serialize)]
pub struct Ratio {
    /// The median of the rounds' ratios.
    pub median: f64,
    /// The smallest ratio of a round.
    pub min: f64,
    /// The largest ratio of a round.
    pub max: f64,
}

impl Ratio {
    /// The ratios `numerators[i] / denominators[i]`; `None` when there are no pairs, the numbers
    /// of rounds differ, or a denominator is not positive.
    #[must_use]
    pub fn pairwise(numerators: &[f64], denominators: &[f64]) -> Option<Self> {
        if numerators.len() != denominators.len() || denominators.iter().any(|&d| d <= 0.0) {
            return None;
        }
        let mut ratios: Vec<f64> = numerators
            .iter()
            .zip(denominators)
            .map(|(n, d)| n / d)
            .collect();
        ratios.sort_unstable_by(f64::total_cmp);
        let (low, high) = middle(&ratios)?;
        Some(Self {
            median: f64::midpoint(low, high),
            min: *ratios.first()?,
            max: *ratios.last()?,
        })
    }
}

/// The one or two values in the middle of a sorted slice (the same value twice if it is one).
fn middle<T: Copy>(sorted: &[T]) -> Option<(T, T)> {
    let high = *sorted.get(sorted.len() / 2)?;
    let low = *sorted.get(sorted.len().checked_sub(1)? / 2)?;
    Some((low, high))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn odd_and_even_medians() {
        let odd = Summary::of(&[30, 10, 20]).expect("three samples");
        assert_eq!((odd.median, odd.min, odd.max), (20, 10, 30));
        assert!((odd.spread - 1.0).abs() < f64::EPSILON);
        assert_eq!(odd.samples, [30, 10, 20]);
        let even = Summary::of(&[1, 9, 4, 7]).expect("four samples");
        assert_eq!(even.median, 5);
        assert_eq!(
            Summary::of(&[u64::MAX, u64::MAX]).map(|s| s.median),
            Some(u64::MAX)
        );
    }

    #[test]
    fn nothing_and_zero() {
        assert_eq!(Summary::of(&[]), None);
        let zero = Summary::of(&[0, 0]).expect("two samples");
        assert_eq!(zero.spread, 0.0);
    }

    #[test]
    fn ratios_are_taken_within_rounds() {
        // The second round is twice as slow on both sides: the ratio must not see it.
        let ratio = Ratio::pairwise(&[10.0, 20.0, 10.0], &[5.0, 10.0, 4.0]).expect("three rounds");
        assert_eq!((ratio.median, ratio.min, ratio.max), (2.0, 2.0, 2.5));
        assert_eq!(Ratio::pairwise(&[], &[]), None);
        assert_eq!(Ratio::pairwise(&[1.0], &[0.0]), None);
        assert_eq!(Ratio::pairwise(&[1.0], &[1.0, 2.0]), None);
    }
}
