//! **Purpose.** What is promised of the speed of attributes in blocks, and whether it is kept.

use fourscore_lab::Ratio;

use super::{
    Contender, DISTINCT, Figures, KERNEL, KERNEL_OFF, LOADS, Load, MANY_THREADS, Measured, OURS,
    OURS_OFF, SAME, TEN, THOUSAND, run_of,
};

/// A promise, the figures that are held against it, and whether they keep it.
pub(super) struct Promise {
    pub(super) what: String,
    pub(super) figure: String,
    pub(super) met: bool,
}

impl Promise {
    /// A promise that no ratio is below `least`.
    fn at_least(what: &str, least: f64, ratios: &[Option<Ratio>]) -> Self {
        let figures: Vec<String> = ratios.iter().copied().map(in_words).collect();
        let is_met = |ratio: &Option<Ratio>| ratio.is_some_and(|found| found.median >= least);
        Self {
            what: what.to_owned(),
            figure: figures.join("; "),
            met: !ratios.is_empty() && ratios.iter().all(is_met),
        }
    }

    pub(super) fn to_markdown(&self) -> String {
        let Self { what, figure, met } = self;
        let met = if *met { "yes" } else { "**no**" };
        format!("| {what} | {figure} | {met} |\n")
    }
}

pub(super) fn in_words(ratio: Option<Ratio>) -> String {
    match ratio {
        Some(Ratio { median, min, max }) => format!("{median:.2} ({min:.2} to {max:.2})"),
        None => "-".to_owned(),
    }
}

impl Figures {
    /// One side beside another one in the comparison with the kernel, with one and two threads.
    fn beside(&self, load: Load, ours: Contender, theirs: Contender) -> [Option<Ratio>; 2] {
        let position = LOADS.iter().position(|&(_, found)| found == load);
        let measured = position.and_then(|at| self.beside_the_kernel.get(at));
        [1, 2].map(|threads| pair(measured?, load, threads, [ours, theirs]))
    }

    /// The promises.
    pub(super) fn promises(&self) -> Vec<Promise> {
        let (same, distinct) = (&self.same, &self.distinct);
        let at_the_limit = [1, 2].map(|threads| {
            let (ten, thousand) = (run_of(OURS, TEN, threads), run_of(OURS, THOUSAND, threads));
            self.few.ratio(ten, thousand)
        });
        let bypass = [1, 2].map(|threads| pair(&self.bypass, DISTINCT, threads, [OURS, OURS_OFF]));
        let of = Promise::at_least;
        vec![
            of(
                "identical values, 1 and 2 threads: at least 1.5 times the kernel's ext4",
                1.5,
                &self.beside(SAME, OURS, KERNEL),
            ),
            of(
                "distinct values, 1 and 2 threads: at least 6 times the kernel's ext4",
                6.0,
                &self.beside(DISTINCT, OURS, KERNEL),
            ),
            of(
                "distinct values, 1 and 2 threads: at least 2.5 times the kernel's ext4 with no_mbcache",
                2.5,
                &self.beside(DISTINCT, OURS, KERNEL_OFF),
            ),
            of(
                "distinct values, 1 and 2 threads: at least 0.97 times fourscore with no_mbcache",
                0.97,
                &bypass,
            ),
            of(
                "10 values, 1 and 2 threads: at least 0.95 times 1000 values",
                0.95,
                &at_the_limit,
            ),
            of(
                "identical values: two threads at least 1.5 times one",
                1.5,
                &[scaled(same, SAME, 2, 1)],
            ),
            of(
                "identical and distinct values: 64 threads at least 0.95 times two",
                0.95,
                &[
                    scaled(same, SAME, MANY_THREADS, 2),
                    scaled(distinct, DISTINCT, MANY_THREADS, 2),
                ],
            ),
        ]
    }
}

fn pair(
    measured: &Measured,
    load: Load,
    threads: usize,
    [ours, theirs]: [Contender; 2],
) -> Option<Ratio> {
    measured.ratio(run_of(ours, load, threads), run_of(theirs, load, threads))
}

/// Numbers of threads of one side.
fn scaled(measured: &Measured, load: Load, threads: usize, base: usize) -> Option<Ratio> {
    measured.ratio(run_of(OURS, load, threads), run_of(OURS, load, base))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn ratio(median: f64) -> Option<Ratio> {
        Some(Ratio {
            median,
            min: median - 0.1,
            max: median + 0.1,
        })
    }

    #[test]
    fn a_promise_is_met_if_all_its_ratios_are_large_enough() {
        let row = |ratios: &[Option<Ratio>]| Promise::at_least("fast", 1.5, ratios).to_markdown();
        assert_eq!(
            row(&[ratio(1.5), ratio(2.0)]),
            "| fast | 1.50 (1.40 to 1.60); 2.00 (1.90 to 2.10) | yes |\n"
        );
        assert!(row(&[ratio(1.4), ratio(2.0)]).contains("**no**"));
        assert!(row(&[ratio(2.0), None]).contains("**no**"));
        assert!(row(&[]).contains("**no**"));
    }
}
