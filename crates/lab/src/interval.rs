//! **Purpose.** The ratio of two sets of samples with a confidence interval: what two measurements
//! of the same thing say about a difference.
//!
//! **Model.** No distribution is assumed. The ratio is the median of the ratios of all pairs
//! (Hodges and Lehmann), and the interval is what the rank-sum test (Mann and Whitney) does not
//! refuse, with exact probabilities. Few samples allow no high confidence, however close they are:
//! three and three allow 90 %, four and four 97 %.

use serde::Serialize;

/// The confidence that is aimed at.
pub const CONFIDENCE: f64 = 0.95;

/// Samples of a side that count; later ones add next to nothing.
const MOST_SAMPLES: usize = 64;

/// A ratio and its interval.
#[derive(Clone, Copy, Debug, PartialEq, Serialize)]
pub struct RatioInterval {
    /// The median of the ratios of all pairs.
    pub ratio: f64,
    /// The lower bound.
    pub low: f64,
    /// The upper bound.
    pub high: f64,
    /// The probability with which such an interval covers the ratio: at least [`CONFIDENCE`], or
    /// the most that so few samples allow.
    pub confidence: f64,
}

impl RatioInterval {
    /// The ratio of `samples` to `base`; `None` if one is empty or has a sample that is not
    /// positive.
    #[must_use]
    pub fn of(samples: &[f64], base: &[f64]) -> Option<Self> {
        let samples = &samples[..samples.len().min(MOST_SAMPLES)];
        let base = &base[..base.len().min(MOST_SAMPLES)];
        let is_positive = |&sample: &f64| sample > 0.0 && sample.is_finite();
        if !samples.iter().chain(base).all(is_positive) {
            return None;
        }
        let ratios = samples
            .iter()
            .flat_map(|sample| base.iter().map(move |base| sample / base));
        let mut ratios: Vec<f64> = ratios.collect();
        ratios.sort_unstable_by(f64::total_cmp);
        let last = ratios.len().checked_sub(1)?;
        let (cut, confidence) = cut(samples.len(), base.len());
        Some(Self {
            ratio: f64::midpoint(ratios[last / 2], ratios[last - last / 2]),
            low: ratios[cut],
            high: ratios[last - cut],
            confidence,
        })
    }

    /// Whether the confidence is the one aimed at.
    #[must_use]
    pub fn is_confident(&self) -> bool {
        self.confidence >= CONFIDENCE
    }
}

/// How many of the sorted ratios lie outside of the interval on each side, and the confidence.
fn cut(samples: usize, base: usize) -> (usize, f64) {
    let counts = rank_sums(samples, base);
    let all: f64 = counts.iter().sum();
    let mut below = 0.0;
    let mut found = (0, 1.0 - 2.0 * counts[0] / all);
    for (rank, count) in counts.iter().enumerate() {
        below += count;
        let confidence = 1.0 - 2.0 * below / all;
        if confidence < CONFIDENCE {
            break;
        }
        found = (rank, confidence);
    }
    found
}

/// In how many orders of `a` and `b` samples the statistic of Mann and Whitney is 0, 1, ...
fn rank_sums(a: usize, b: usize) -> Vec<f64> {
    // counts[m] for m of the b samples, as one after the other of the a samples is added.
    let mut counts: Vec<Vec<f64>> = vec![vec![1.0]; b + 1];
    for n in 1..=a {
        for m in 0..=b {
            let mut next = vec![0.0; n * m + 1];
            // The largest is one of the a samples, and above m others; or it is not.
            for (sum, count) in counts[m].iter().enumerate() {
                next[sum + m] += count;
            }
            if let Some(fewer) = m.checked_sub(1) {
                for (sum, count) in counts[fewer].iter().enumerate() {
                    next[sum] += count;
                }
            }
            counts[m] = next;
        }
    }
    counts.pop().unwrap_or_default()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_numbers_of_orders_are_those_of_the_tables() {
        assert_eq!(rank_sums(2, 2), [1.0, 1.0, 2.0, 1.0, 1.0]);
        assert_eq!(rank_sums(3, 1), [1.0; 4]);
        let five: f64 = rank_sums(5, 5).iter().sum();
        assert_eq!(five, 252.0);
        // The table of critical values for 5 % on two sides: 0 for 4 and 4, 2 for 5 and 5, 23 for
        // 10 and 10.
        let critical = [(4, 0), (5, 2), (10, 23)].map(|(n, _)| (n, cut(n, n).0));
        assert_eq!(critical, [(4, 0), (5, 2), (10, 23)]);
    }

    #[test]
    fn few_samples_allow_little_confidence() {
        let three = RatioInterval::of(&[2.0, 2.1, 2.2], &[1.0, 1.0, 1.0]).expect("samples");
        assert!((three.confidence - 0.9).abs() < 1e-9 && !three.is_confident());
        assert_eq!((three.low, three.ratio, three.high), (2.0, 2.1, 2.2));
        let one = RatioInterval::of(&[2.0], &[1.0]).expect("samples");
        assert!(one.confidence.abs() < 1e-9);
        let four = RatioInterval::of(&[2.0, 2.1, 2.2, 2.3], &[1.0; 4]).expect("samples");
        assert!(four.is_confident());
        assert!(RatioInterval::of(&[], &[1.0]).is_none());
        assert!(RatioInterval::of(&[1.0], &[0.0]).is_none());
    }

    #[test]
    fn the_interval_covers_the_ratio_as_often_as_it_says() {
        // A fixed stream of numbers (the constants of MMIX).
        let mut state = 1_u64;
        let mut random = || {
            state = state
                .wrapping_mul(6_364_136_223_846_793_005)
                .wrapping_add(1);
            (state >> 11) as f64 / (1_u64 << 53) as f64
        };
        let mut covered = 0;
        for _ in 0..1000 {
            let base: Vec<f64> = (0..6).map(|_| 1.0 + random()).collect();
            let samples: Vec<f64> = (0..6).map(|_| 3.0 * (1.0 + random())).collect();
            let found = RatioInterval::of(&samples, &base).expect("samples");
            covered += u32::from(found.low <= 3.0 && 3.0 <= found.high);
        }
        assert!((940..=995).contains(&covered), "{covered}");
    }
}
