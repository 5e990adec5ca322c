//! **Purpose.** Where the time of a run went: the sums of a profile ([`fourscore_sync::profile`])
//! as shares of the time of the threads.
//!
//! **Model.** The driver marks each step of a workload as an operation, so preparing and cleaning
//! up are not in the profile. Times of work are estimated from a sample, so a share is that of the
//! time in the profile, and a time is the share of the time of the threads, which is known. Hence
//! no sum of sections exceeds that time, and all rows add up to it.

use std::fmt;
use std::time::Duration;

use fourscore_sync::profile::{self, Section, Sums, Totals};
use serde::{Deserialize, Serialize};

/// The rows of a profile, in order.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Profile {
    /// The time of all threads in seconds.
    pub thread_seconds: f64,
    /// Operations, estimated.
    pub operations: u64,
    /// Operations that were measured.
    pub measured: u64,
    /// The sections, then the time of operations in none of them, then that between operations.
    pub rows: Vec<Row>,
}

/// A section, or time in none.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Row {
    /// Its name.
    pub name: String,
    /// Its share of the time of the threads, 0 to 1.
    pub share: f64,
    /// Its time in all threads together, in seconds.
    pub seconds: f64,
    /// Its time for each operation, in nanoseconds.
    pub nanoseconds_per_operation: f64,
    /// How often an operation enters it; `None` for time in no section.
    pub entered_per_operation: Option<f64>,
}

/// The name of the row for the time of operations in no section.
pub const REST: &str = "in no section";
/// The name of the row for the time between operations.
pub const OUTSIDE: &str = "outside";

/// The sums when a run began, if a profile is on.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Profiled(Option<Sums>);

impl Profiled {
    /// Begins a run.
    pub(crate) fn begin() -> Self {
        Self(profile::is_on().then(profile::sums))
    }

    /// Ends the run. `thread_time` is the time of all of its threads together.
    pub(crate) fn end(self, thread_time: Duration) -> Option<Profile> {
        let before = self.0?;
        let totals = profile::sums().since(&before).totals();
        Some(Profile::of(&totals, thread_time))
    }
}

impl Profile {
    /// The profile with these sums of threads that ran for `thread_time` together.
    #[must_use]
    pub fn of(totals: &Totals, thread_time: Duration) -> Self {
        let all = totals.all().as_secs_f64().max(1e-12);
        let operations = totals.operations.max(1) as f64;
        let row = |name: &str, time: Duration, entered: Option<u64>| {
            let share = time.as_secs_f64() / all;
            let seconds = share * thread_time.as_secs_f64();
            Row {
                name: name.to_owned(),
                share,
                seconds,
                nanoseconds_per_operation: time.as_secs_f64() * 1e9 / operations,
                entered_per_operation: entered.map(|entered| entered as f64 / operations),
            }
        };
        let sections = Section::ALL.map(|section| {
            let sum = totals.of(section);
            row(section.name(), sum.time, Some(sum.entered))
        });
        let none = [
            row(REST, totals.rest, None),
            row(OUTSIDE, totals.outside, None),
        ];
        Self {
            thread_seconds: thread_time.as_secs_f64(),
            operations: totals.operations,
            measured: totals.measured,
            rows: sections.into_iter().chain(none).collect(),
        }
    }

    /// The row with this name.
    #[must_use]
    pub fn row(&self, name: &str) -> Option<&Row> {
        self.rows.iter().find(|row| row.name == name)
    }

    /// How many operations one that was measured stands for.
    #[must_use]
    pub fn one_of(&self) -> f64 {
        self.operations as f64 / self.measured.max(1) as f64
    }
}

/// The rows as a table with a line of its own for what they are, indented by two.
impl fmt::Display for Profile {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        writeln!(
            f,
            "  time of the threads, {:.3} s; one of {:.0} operations was measured",
            self.thread_seconds,
            self.one_of()
        )?;
        writeln!(
            f,
            "    {:15} {:>7} {:>9} {:>13} {:>12}",
            "section", "share", "s", "ns/operation", "entered/op."
        )?;
        for row in &self.rows {
            let entered = row.entered_per_operation;
            let entered = entered.map_or("-".to_owned(), |entered| format!("{entered:.2}"));
            writeln!(
                f,
                "    {:15} {:>5.1} % {:>9.3} {:>13.0} {entered:>12}",
                row.name,
                row.share * 100.0,
                row.seconds,
                row.nanoseconds_per_operation,
            )?;
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use fourscore_sync::profile::SectionTime;

    #[test]
    fn rows_add_up_to_the_time_of_the_threads() {
        let millis = Duration::from_millis;
        let mut totals = Totals {
            rest: millis(20),
            outside: millis(10),
            operations: 1000,
            measured: 10,
            ..Totals::default()
        };
        totals.sections[Section::Device as usize] = SectionTime {
            time: millis(70),
            entered: 2500,
        };
        // The sample saw 100 ms of threads that ran for 200 ms.
        let profile = Profile::of(&totals, millis(200));
        assert_eq!(profile.rows.len(), Section::ALL.len() + 2);
        let device = profile.row("device").expect("a row");
        assert!((device.share - 0.7).abs() < 1e-9 && (device.seconds - 0.14).abs() < 1e-9);
        assert_eq!(device.entered_per_operation, Some(2.5));
        assert!((device.nanoseconds_per_operation - 70_000.0).abs() < 1.0);
        let sum: f64 = profile.rows.iter().map(|row| row.seconds).sum();
        assert!((sum - 0.2).abs() < 1e-9, "{profile}");
        let text = profile.to_string();
        assert!(
            text.contains("one of 100 operations was measured"),
            "{text}"
        );
        assert!(
            text.contains("    device           70.0 %     0.140         70000         2.50\n"),
            "{text}"
        );
        assert!(text.contains("    outside          10.0 %"), "{text}");
    }

    #[test]
    fn an_empty_profile_has_shares_of_nothing() {
        let profile = Profile::of(&Totals::default(), Duration::ZERO);
        assert!(profile.rows.iter().all(|row| row.share == 0.0), "{profile}");
    }
}
