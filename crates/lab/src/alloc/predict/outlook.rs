//! **Purpose.** Predicted cells beside published ones: whether the change is a gain, how large, and
//! how many cells agree.
//!
//! **Model.** The *gain* of a cell is its patched rate by its base rate. A gain within 5 % of 1 is
//! none: publications differ by as much where nothing was changed. A cell agrees in direction if
//! predicted and published gains are both above, both below, or both none; it agrees in size if one
//! is at most 1.5 times the other. Rows on which a model was fitted are shown and not counted.

use std::fmt::Write;
use std::io;

use crate::alloc::bench::AllocBench;
use crate::alloc::catalogue::Switch;
use crate::alloc::predict::machines::Load;
use crate::alloc::predict::tables::{Row, Switches, Table};
use crate::alloc::predict::{HALVES_WITHIN, Predicted, Rest, Setup};
use crate::alloc::workloads::Fallocate3;
use crate::comparison::ThreadCount;
use crate::workload::{Fallocate2, Workload};

/// Gains by less than this are none.
const NONE_WITHIN: f64 = 0.05;
/// Gains by this factor apart agree in size.
const SIZE_WITHIN: f64 = 1.5;

/// Steps per second of all threads, as predicted.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Rates {
    /// Before the change.
    pub base: f64,
    /// With it.
    pub patched: f64,
    /// With the defaults of this allocator.
    pub ours: f64,
}

/// A predicted cell.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Cell {
    /// What was published.
    pub published: Row,
    /// What is predicted.
    pub predicted: Rates,
    /// By how much the halves of the runs for base and patched differ in rate; the larger figure.
    pub uneven_by: f64,
    /// Whether the machine's model was fitted on it.
    pub is_fitted: bool,
}

/// The direction of a gain.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Direction {
    /// The change makes it faster.
    Gain,
    /// It makes no difference.
    None,
    /// It makes it slower.
    Loss,
}

impl Direction {
    /// The direction of a gain.
    #[must_use]
    pub fn of(gain: f64) -> Self {
        if gain > 1.0 + NONE_WITHIN {
            Self::Gain
        } else if gain < 1.0 - NONE_WITHIN {
            Self::Loss
        } else {
            Self::None
        }
    }
}

impl Cell {
    /// The published gain.
    #[must_use]
    pub fn published_gain(&self) -> f64 {
        self.published.patched / self.published.base
    }

    /// The predicted gain.
    #[must_use]
    pub fn predicted_gain(&self) -> f64 {
        self.predicted.patched / self.predicted.base
    }

    /// Whether both gains have the same direction.
    #[must_use]
    pub fn agrees_in_direction(&self) -> bool {
        Direction::of(self.published_gain()) == Direction::of(self.predicted_gain())
    }

    /// Whether the halves of both runs are alike, so that longer runs were not called for.
    #[must_use]
    pub fn is_steady(&self) -> bool {
        self.uneven_by < HALVES_WITHIN
    }

    /// Whether one gain is at most 1.5 times the other.
    #[must_use]
    pub fn agrees_in_size(&self) -> bool {
        let ratio = self.published_gain() / self.predicted_gain();
        ratio.max(1.0 / ratio) <= SIZE_WITHIN
    }
}

/// How many cells agree, and how many are steady, of those that no model was fitted on.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Agreement {
    /// Cells.
    pub cells: usize,
    /// Those that agree in direction.
    pub direction: usize,
    /// Those that agree in size.
    pub size: usize,
    /// Those whose runs have halves that are alike.
    pub steady: usize,
    /// Those that are steady and agree in direction.
    pub steady_direction: usize,
}

impl Agreement {
    /// Counts cells.
    #[must_use]
    pub fn of<'c>(cells: impl IntoIterator<Item = &'c Cell>) -> Self {
        let mut sum = Self::default();
        for cell in cells.into_iter().filter(|cell| !cell.is_fitted) {
            sum.cells += 1;
            sum.direction += usize::from(cell.agrees_in_direction());
            sum.size += usize::from(cell.agrees_in_size());
            sum.steady += usize::from(cell.is_steady());
            sum.steady_direction += usize::from(cell.is_steady() && cell.agrees_in_direction());
        }
        sum
    }
}

impl Table {
    /// Predicts the cell of a row.
    ///
    /// # Errors
    /// A file system cannot be set up, or the first failure of a worker.
    pub fn predict(&self, row: &Row) -> io::Result<Cell> {
        let rest = self.machine.rest(self.load);
        let rest = rest.ok_or(io::ErrorKind::Unsupported)?;
        let rate = |switches, as_ext4| self.rate(row.threads, switches, as_ext4, rest);
        let base = rate(self.base, true)?;
        let patched = rate(self.patched, true)?;
        let uneven_by = |run: Predicted| (run.halves - 1.0).abs();
        Ok(Cell {
            published: *row,
            predicted: Rates {
                base: base.per_second,
                patched: patched.per_second,
                ours: rate(&[], false)?.per_second,
            },
            uneven_by: uneven_by(base).max(uneven_by(patched)),
            is_fitted: self.fitted == Some(row.threads),
        })
    }

    /// Predicts the patched rate of the row that the model is fitted on, with other surroundings.
    ///
    /// # Errors
    /// As [`Table::predict`].
    pub fn patched_with(&self, threads: usize, work: u64) -> io::Result<f64> {
        let rest = self.machine.rest_with(self.load, work);
        Ok(self.rate(threads, self.patched, true, rest)?.per_second)
    }

    fn rate(
        &self,
        threads: usize,
        switches: &Switches,
        laid_out_as_ext4: bool,
        rest: Rest,
    ) -> io::Result<Predicted> {
        let mut bench = AllocBench::on(self.scenario);
        for (name, value) in switches {
            Switch::set(&mut bench, name, value).map_err(io::Error::other)?;
        }
        let (workload, step_bytes): (&dyn Workload, u64) = match self.load {
            Load::Fallocate2 => (&Fallocate2, 8192),
            Load::Fallocate3 => (&Fallocate3, Fallocate3::BYTES),
        };
        let used = u64::from(self.scenario.used_per_mille);
        let free_bytes = self.scenario.bytes / 1000 * (1000 - used);
        let setup = Setup {
            bench: &bench,
            workload,
            machine: self.machine.costs,
            rest: Rest {
                alone: rest.alone / self.shrink,
                extent: rest.extent / self.shrink,
                handles_per_write: self.shrink,
                locked: rest.locked / self.shrink,
                locked_words: rest.locked_words / usize::try_from(self.shrink).unwrap_or(1),
                ..rest
            },
            threads: ThreadCount::new(threads),
            length: self.steps.length(free_bytes / step_bytes, threads),
            commit_every: bench
                .commit_every
                .div_f64((self.shrink * self.shrink) as f64),
            laid_out_as_ext4,
        };
        let run = setup.predict()?;
        Ok(Predicted {
            per_second: run.per_second / self.shrink as f64,
            ..run
        })
    }

    /// The cells of the table in Markdown.
    #[must_use]
    pub fn to_markdown(&self, cells: &[Cell]) -> String {
        let mut text = format!(
            "\n### {}: {}, {}\n\n\
             | threads | published base | patched | gain | predicted base | patched | gain | \
             halves differ, % | direction | size | ours, predicted |\n\
             |---:|---:|---:|---:|---:|---:|---:|---:|---|---|---:|\n",
            self.source, self.machine.name, self.what
        );
        for cell in cells {
            let verdict = |agrees: bool| match (cell.is_fitted, agrees) {
                (true, _) => "fitted",
                (false, true) => "yes",
                (false, false) => "**no**",
            };
            // Writing to a string cannot fail.
            let _ = writeln!(
                text,
                "| {} | {:.0} | {:.0} | {:.2} | {:.0} | {:.0} | {:.2} | {:.0} | {} | {} | {:.0} |",
                cell.published.threads,
                cell.published.base,
                cell.published.patched,
                cell.published_gain(),
                cell.predicted.base,
                cell.predicted.patched,
                cell.predicted_gain(),
                100.0 * cell.uneven_by,
                verdict(cell.agrees_in_direction()),
                verdict(cell.agrees_in_size()),
                cell.predicted.ours,
            );
        }
        text
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn cell(published: f64, predicted: f64) -> Cell {
        Cell {
            published: Row {
                threads: 8,
                base: 1000.0,
                patched: 1000.0 * published,
            },
            predicted: Rates {
                base: 20.0,
                patched: 20.0 * predicted,
                ours: 50.0,
            },
            uneven_by: 0.0,
            is_fitted: false,
        }
    }

    #[test]
    fn directions_agree_within_the_band_of_none() {
        for (published, predicted, agrees) in [
            (1.3, 1.06, true),
            (1.3, 1.04, false),
            (1.01, 0.97, true),
            (0.9, 1.1, false),
            (0.9, 0.8, true),
        ] {
            let cell = cell(published, predicted);
            assert_eq!(
                cell.agrees_in_direction(),
                agrees,
                "{published} {predicted}"
            );
        }
    }

    #[test]
    fn sizes_agree_by_a_factor_and_fitted_rows_do_not_count() {
        let cells = [
            cell(3.0, 2.1),
            cell(3.0, 1.9),
            cell(1.0, 1.4),
            cell(1.0, 1.6),
        ];
        let agreement = Agreement::of(&cells);
        assert_eq!((agreement.cells, agreement.size), (4, 2));
        assert_eq!(agreement.direction, 2);
        let fitted = cells.map(|cell| Cell {
            is_fitted: true,
            ..cell
        });
        assert_eq!(Agreement::of(&fitted), Agreement::default());
    }
}
