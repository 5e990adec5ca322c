//! **Purpose.** Statistics of commits, for users and benchmarks.

use std::collections::VecDeque;
use std::time::Duration;

/// The number of latest seals whose durations are kept.
const REMEMBERED: usize = 4096;

/// Statistics of a journal since it was opened.
#[derive(Clone, Debug, Default)]
pub struct JournalStats {
    /// Committed transactions.
    pub commits: u64,
    /// Blocks of the log written for them.
    pub log_blocks: u64,
    /// New blocks that they wrote to their home locations in place of the log.
    pub new_blocks: u64,
    /// Fast commits.
    pub fast_commits: u64,
    /// Blocks of the fast-commit area written for them.
    pub fast_commit_blocks: u64,
    /// The time that they took in all.
    pub fast_commit_time: Duration,
    /// How often a full commit was made, or waited for, where a thread wanted a fast one.
    pub full_in_place_of_fast: u64,
    /// How often a thread has waited for a commit of either kind.
    pub waits: u64,
    /// Blocks of the log that are in use now.
    pub used_blocks: u32,
    /// How often the gate was closed.
    pub seals: u64,
    /// How long the gate was closed, the last 4 096 times, oldest first.
    pub gate_closed: Vec<Duration>,
}

/// The running counts; updated once per commit.
#[derive(Debug, Default)]
pub(crate) struct Tally {
    commits: u64,
    log_blocks: u64,
    new_blocks: u64,
    fast_commits: u64,
    fast_commit_blocks: u64,
    fast_commit_time: Duration,
    full_in_place_of_fast: u64,
    seals: u64,
    gate_closed: VecDeque<Duration>,
}

impl Tally {
    pub(crate) fn note_gate_closed(&mut self, time: Duration) {
        self.seals += 1;
        if self.gate_closed.len() == REMEMBERED {
            self.gate_closed.pop_front();
        }
        self.gate_closed.push_back(time);
    }

    pub(crate) fn note_commit(&mut self, log_blocks: u32, new_blocks: u64) {
        self.commits += 1;
        self.new_blocks += new_blocks;
        self.log_blocks += u64::from(log_blocks);
    }

    pub(crate) fn note_fast_commit(&mut self, blocks: u32, time: Duration) {
        self.fast_commits += 1;
        self.fast_commit_blocks += u64::from(blocks);
        self.fast_commit_time += time;
    }

    pub(crate) fn note_full_in_place_of_fast(&mut self) {
        self.full_in_place_of_fast += 1;
    }

    pub(crate) fn stats(&self, waits: u64, used_blocks: u32) -> JournalStats {
        JournalStats {
            commits: self.commits,
            log_blocks: self.log_blocks,
            new_blocks: self.new_blocks,
            fast_commits: self.fast_commits,
            fast_commit_blocks: self.fast_commit_blocks,
            fast_commit_time: self.fast_commit_time,
            full_in_place_of_fast: self.full_in_place_of_fast,
            waits,
            used_blocks,
            seals: self.seals,
            gate_closed: self.gate_closed.iter().copied().collect(),
        }
    }
}
