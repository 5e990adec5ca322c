//! **Purpose.** The parameters of a history, drawn from its seed.

use std::time::Duration;

use fourscore_block::{DeviceOp, Rule};
use fourscore_journal::{Background, Batching, Credits, JournalOptions, NewChecksums};
use fourscore_ondisk::{BlockSize, Tid};

use super::place::{Format, Place, SLOTS};
use crate::explore::rng::{Rng, mix};

/// The injected fault, if there is one.
#[cfg(feature = "sabotage")]
pub type Breaking = Option<fourscore_journal::Sabotage>;
/// The injected fault: none in a build without the feature `sabotage`.
#[cfg(not(feature = "sabotage"))]
pub type Breaking = Option<std::convert::Infallible>;

/// How the recording ends.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Ending {
    /// The journal is closed and leaves an empty log.
    Closed,
    /// The journal is dropped without closing.
    Dropped,
}

/// A permanent fault of the journal's device.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Fault {
    /// The n-th write fails, after some of its sectors.
    Write { nth: u64, sectors: usize },
    /// The n-th flush fails.
    Flush { nth: u64 },
}

impl Fault {
    pub(super) fn rule(self) -> Rule {
        match self {
            Self::Write { nth, sectors } => Rule::nth(DeviceOp::Write, nth)
                .and_after()
                .short(sectors * 512),
            Self::Flush { nth } => Rule::nth(DeviceOp::Flush, nth).and_after(),
        }
    }
}

/// The parameters of a history.
#[derive(Clone, Debug)]
pub(super) struct Setup {
    pub(super) format: Format,
    pub(super) upgrade: NewChecksums,
    pub(super) threads: usize,
    pub(super) operations: usize,
    pub(super) block_size: BlockSize,
    pub(super) journal_blocks: u32,
    /// Slots that are never freed.
    pub(super) shared: usize,
    /// Slots that hold metadata at the beginning.
    pub(super) metadata: usize,
    pub(super) first_tid: Tid,
    pub(super) cache_bytes: usize,
    pub(super) has_hook: bool,
    pub(super) flush_yields: u32,
    pub(super) batching: Batching,
    pub(super) fault: Option<Fault>,
    /// Transactions that change nothing, before all others.
    pub(super) warm_up: u32,
    pub(super) ending: Ending,
}

impl Setup {
    /// The parameters for a seed. Later generations continue on the device of a crashed one, with
    /// other threads.
    pub(super) fn of(seed: u64, generation: u32) -> Self {
        let mut device = Rng::new(mix(seed));
        let format = *device.pick(&[
            Format::Plain,
            Format::V1,
            Format::V2,
            Format::V3,
            Format::V3,
            Format::V3,
        ]);
        let upgrade = if format == Format::V3 || device.happens(1, 4) && format == Format::Plain {
            NewChecksums::V3
        } else {
            NewChecksums::None
        };
        let bits = *device.pick(&[0, 0, 0, 2]);
        let journal_blocks = *device.pick(&[33, 41, 64, 100]);
        let near_the_end = device.happens(1, 2);
        let first_tid = if near_the_end { u32::MAX - 20 } else { 1 };

        let mut rng = Rng::new(mix(seed ^ u64::from(generation + 1) << 48));
        let threads = *rng.pick(&[1, 1, 2, 2, 8]);
        Self {
            format,
            upgrade,
            threads,
            operations: 96 / threads,
            block_size: BlockSize::from_log(bits).expect("1 or 4 KiB"),
            journal_blocks,
            shared: 6,
            metadata: 12,
            first_tid: Tid(first_tid),
            cache_bytes: *rng.pick(&[4 << 10, 1 << 20]),
            has_hook: rng.happens(1, 2),
            flush_yields: *rng.pick(&[0, 0, 20]),
            batching: *rng.pick(&[Batching::Off, Batching::Off, Batching::Adaptive]),
            fault: Self::fault(&mut rng),
            warm_up: 0,
            ending: *rng.pick(&[Ending::Closed, Ending::Dropped, Ending::Dropped]),
        }
    }

    /// Draws a fault for one of four histories.
    fn fault(rng: &mut Rng) -> Option<Fault> {
        let nth = 1 + rng.bits() % 60;
        let sectors = rng.below(4);
        *rng.pick(&[
            None,
            None,
            None,
            None,
            None,
            None,
            Some(Fault::Write { nth, sectors }),
            Some(Fault::Flush { nth: 1 + nth / 3 }),
        ])
    }

    pub(super) fn place(&self) -> Place {
        Place::new(self.block_size, SLOTS, self.journal_blocks)
    }

    /// The journal's options. A history of one thread has no background work, so it is
    /// reproducible.
    pub(super) fn options(&self, breaking: Breaking) -> JournalOptions {
        let background = match self.threads {
            1 => Background::None,
            _ => Background::Threads {
                interval: Duration::from_millis(2),
            },
        };
        #[cfg(not(feature = "sabotage"))]
        let _ = breaking;
        JournalOptions {
            background,
            batching: if self.threads == 1 {
                Batching::Off
            } else {
                self.batching
            },
            checksums: self.upgrade,
            seal_credits: Credits(u32::from(self.has_hook)),
            #[cfg(feature = "sabotage")]
            sabotage: breaking,
            ..JournalOptions::default()
        }
    }
}
