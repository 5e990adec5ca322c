//! **Purpose.** Runs of the experiments on the block allocator, as text and as parts of a report.

use std::collections::BTreeMap;
use std::fmt::Write as _;

use fourscore_lab::ThreadCount;
use fourscore_lab::alloc::{AllocOutcome, Measured, Scenario};
use fourscore_mballoc::criteria::Criterion;
use fourscore_mballoc::stats::{Count, CriterionCount};
use serde_json::{Map, json};

use crate::lab::report::{Cell, SideReport};
use crate::mb_stats::mb_stats_to_json;

/// Bytes of the mean free extent before and after a run, in KiB.
fn mean_free_kib(scenario: &Scenario, outcome: &AllocOutcome) -> Option<[u64; 2]> {
    let kib = |clusters: u64| clusters << scenario.s_log_block_size;
    let (before, after) = (outcome.before.as_ref()?, outcome.after.as_ref()?);
    Some([kib(before.mean()), kib(after.mean())])
}

/// What all sides did with one number of threads.
pub(super) fn run_text(scenario: &Scenario, threads: ThreadCount, measured: &[Measured]) -> String {
    let mut text = format!("\nthreads {threads}\n");
    let base = measured
        .first()
        .map_or(0.0, Measured::operations_per_second);
    for side in measured {
        let (outcome, rate) = (&side.outcome, side.operations_per_second());
        let (least, most) = side.range();
        let tally = &outcome.tally;
        let hits = Criterion::ALL
            .iter()
            .map(|&criterion| tally[(criterion, CriterionCount::Hits)]);
        let hits: Vec<_> = hits.map(|hits| hits.to_string()).collect();
        let each = |count: u64| count as f64 / outcome.operations.max(1) as f64;
        // Writing into a String cannot fail.
        let _ = write!(
            text,
            "  {:14} {rate:.0} operations/s ({least:.0} to {most:.0}), {:.2} of the first\n    \
             hits of the criteria {}; at goals {}, at stream goals {}, of the goal length {}\n    \
             groups considered {:.2}, extents scanned {:.2} for each operation; {} in all\n    \
             states tested {:.2}, locked {:.2}, descriptors {:.2} for each operation\n    \
             busy groups skipped {}, breaks {}, lost {}; extents of files {}\n",
            side.variant.name,
            rate / base.max(1e-9),
            hits.join(" / "),
            tally[Count::GoalHits],
            tally[Count::StreamGoalHits],
            tally[Count::LenGoalHits],
            each(tally.groups_considered()),
            each(tally.extents_scanned()),
            tally.extents_scanned(),
            each(tally[Count::PrefetchTests]),
            each(tally[Count::PrefetchLockedTests]),
            each(tally[Count::PrefetchDescriptors]),
            tally[Count::BusyGroups],
            tally[Count::Breaks],
            tally[Count::Lost],
            outcome.extents,
        );
        if let Some([before, after]) = mean_free_kib(scenario, outcome) {
            let _ = writeln!(
                text,
                "    mean free extent {before} KiB before, {after} KiB after"
            );
        }
        if let Some(profile) = &outcome.profile {
            text.push_str(&profile.to_string());
        }
    }
    text
}

/// The same as a part of the report.
pub(super) fn cell(scenario: &Scenario, threads: ThreadCount, measured: &[Measured]) -> Cell {
    let sides = measured.iter().map(|side| side_report(scenario, side));
    Cell::new(None, threads.get(), sides.collect())
}

fn side_report(scenario: &Scenario, side: &Measured) -> SideReport {
    let outcome = &side.outcome;
    let mut details = Map::new();
    let mean = mean_free_kib(scenario, outcome);
    details.insert("mean_free_kib".to_owned(), json!(mean));
    details.insert("outcome".to_owned(), outcome.to_json());
    let counters = mb_stats_to_json(&outcome.tally.to_string());
    details.insert("mb_stats".to_owned(), counters);
    SideReport {
        side: side.variant.name.to_owned(),
        about: side.variant.about.to_owned(),
        operations_per_second: side.operations_per_second(),
        samples: side.samples.clone(),
        ratio_to_first: 0.0,
        facts: facts(mean, outcome),
        profile: outcome.profile.clone(),
        details,
    }
}

/// What the tables of a page have.
fn facts(mean_free_kib: Option<[u64; 2]>, outcome: &AllocOutcome) -> BTreeMap<String, f64> {
    let tally = &outcome.tally;
    let each = |count: u64| count as f64 / outcome.operations.max(1) as f64;
    let mut facts = BTreeMap::from([
        ("extents scanned in all", tally.extents_scanned() as f64),
        ("extents scanned, each", each(tally.extents_scanned())),
        ("groups considered, each", each(tally.groups_considered())),
        ("states tested, each", each(tally[Count::PrefetchTests])),
        (
            "states locked, each",
            each(tally[Count::PrefetchLockedTests]),
        ),
        ("descriptors, each", each(tally[Count::PrefetchDescriptors])),
        ("busy groups skipped", tally[Count::BusyGroups] as f64),
    ]);
    if let Some([before, after]) = mean_free_kib {
        facts.insert("mean free extent before, KiB", before as f64);
        facts.insert("mean free extent after, KiB", after as f64);
    }
    let named = facts
        .into_iter()
        .map(|(name, value)| (name.to_owned(), value));
    let hits = Criterion::ALL.iter().map(|&criterion| {
        let hits = tally[(criterion, CriterionCount::Hits)];
        let name = criterion.stats_name().trim_end_matches("_stats");
        (format!("hits of {name}"), hits as f64)
    });
    named.chain(hits).collect()
}
