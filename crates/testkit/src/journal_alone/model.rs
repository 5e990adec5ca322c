//! **Purpose.** The permitted contents of the blocks after a crash: they follow from the order of
//! the commits, the acknowledged ones, and the durable data.
//!
//! # Model
//! Every content that a block ever gets is a *version*, and each block has a list of *phases* in
//! commit order. Of several changes in a transaction the last one counts:
//!
//! ```text
//!   block 7:  metadata v3 | metadata v12 | free: data v15, v18 | metadata v20
//!   from tid: 0             4              5                     9
//! ```
//! After recovery there must be a transaction T, acknowledged ones included, such that each block
//! is as in its phase at T:
//! - metadata: exactly that version;
//! - free: if data was written there and was durable before the crash, each sector is of the last
//!   durable version or of a later one. Else anything.
//! - a *pointer* means that from one tid to another some metadata refers to a version of data,
//!   which was written before its transaction could commit: the data must be complete.
//!
//! **Invariants.** Data is written to a block only in a free phase whose transaction was
//! acknowledged, so that no crash separates phase and data.

use std::fmt::Write as _;

use anyhow::{Result, bail};
use fourscore_block::Event;
use fourscore_ondisk::Tid;
use fourscore_ondisk::jbd2::MAGIC;
use serde::{Deserialize, Serialize};

use crate::explore::rng::{Rng, mix};

/// The most transactions of a history; a set of them is one integer.
pub(super) const MOST_TRANSACTIONS: u32 = 120;
/// The size of a sector, which is old or new as a whole, in bytes.
const SECTOR_BYTES: usize = 512;

/// One of the blocks, from 0.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
pub(super) struct Slot(pub(super) usize);

/// The number of a content.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
pub(super) struct Version(pub(super) usize);

/// A note of the client in the history.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Note {
    /// The transaction and all before it are acknowledged.
    Acknowledged { after: u32 },
    /// Data was written.
    Data { slot: Slot, version: Version },
}

impl Note {
    const KIND: u64 = 1 << 60;
    const SLOT: u64 = 1 << 40;

    /// The note as the number that the history stores.
    pub(super) fn to_number(self) -> u64 {
        match self {
            Self::Acknowledged { after } => u64::from(after),
            Self::Data { slot, version } => {
                Self::KIND + slot.0 as u64 * Self::SLOT + version.0 as u64
            }
        }
    }

    fn from_number(number: u64) -> Self {
        let small = |number: u64| usize::try_from(number).unwrap_or(usize::MAX);
        match number.checked_sub(Self::KIND) {
            None => Self::Acknowledged {
                after: u32::try_from(number).unwrap_or(u32::MAX),
            },
            Some(rest) => Self::Data {
                slot: Slot(small(rest / Self::SLOT)),
                version: Version(small(rest % Self::SLOT)),
            },
        }
    }
}

/// The role of a block from a transaction on.
#[derive(Clone, Debug, Serialize, Deserialize)]
struct Phase {
    /// The first transaction, counted from the history's first.
    from: u32,
    state: State,
}

#[derive(Clone, Debug, Serialize, Deserialize)]
enum State {
    Metadata(Version),
    /// Free, with the data that was written meanwhile.
    Free(Vec<Version>),
}

/// Metadata that refers to data.
#[derive(Clone, Debug, Serialize, Deserialize)]
struct Pointer {
    slot: Slot,
    version: Version,
    from: u32,
    /// The transaction that removed the reference.
    until: u32,
}

/// The phases of all blocks.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub(super) struct Model {
    first_tid: u32,
    block_bytes: usize,
    /// By version.
    contents: Vec<Vec<u8>>,
    lines: Vec<Vec<Phase>>,
    pointers: Vec<Pointer>,
    last: u32,
}

/// What is certain at a cut.
#[derive(Clone, Debug, Default)]
pub(super) struct Known {
    /// All transactions below this one, counted from the first, were acknowledged.
    acknowledged: u32,
    /// The last durable data of each block that had any.
    durable: Vec<Option<Version>>,
}

/// A set of moments: bit n says that the transactions before the n-th may be the prefix.
type Moments = u128;

/// The moments from `from` up to, not including, `until`.
fn moments(from: u32, until: u32) -> Moments {
    let below = |end: u32| 1_u128.checked_shl(end).map_or(u128::MAX, |bit| bit - 1);
    below(until) & !below(from)
}

impl Model {
    /// Blocks of `block_bytes` of which the first `metadata` hold metadata and the others up to
    /// `slots` are free. `first_tid` is the first transaction that will commit.
    #[must_use]
    pub(super) fn new(first_tid: Tid, block_bytes: usize, metadata: usize, slots: usize) -> Self {
        let mut model = Self {
            first_tid: first_tid.0,
            block_bytes,
            contents: Vec::new(),
            lines: Vec::new(),
            pointers: Vec::new(),
            last: 0,
        };
        for slot in 0..slots {
            let state = if slot < metadata {
                State::Metadata(model.new_version(Slot(slot)))
            } else {
                State::Free(Vec::new())
            };
            model.lines.push(vec![Phase { from: 0, state }]);
        }
        model
    }

    /// Blocks with these contents, one after the other, all of them metadata.
    #[must_use]
    pub(super) fn found(first_tid: Tid, block_bytes: usize, bytes: &[u8]) -> Self {
        let slots = bytes.len() / block_bytes;
        let mut model = Self::new(first_tid, block_bytes, slots, slots);
        model.contents = bytes.chunks(block_bytes).map(Vec::from).collect();
        model
    }

    /// Skips the first `transactions`, which change nothing.
    pub(super) fn begin_later(&mut self, transactions: u32) {
        self.first_tid = self.first_tid.wrapping_add(transactions);
    }

    /// The place of a transaction in the history: the number of transactions up to it.
    #[must_use]
    pub(super) fn place(&self, tid: Tid) -> u32 {
        tid.0.wrapping_sub(self.first_tid).wrapping_add(1)
    }

    /// Makes a content for a block. Some begin like a block of the journal.
    pub(super) fn new_version(&mut self, slot: Slot) -> Version {
        let version = Version(self.contents.len());
        let salt = u64::from(self.first_tid) << 32;
        let mut filler = Rng::new(mix(salt ^ (version.0 as u64) << 8 ^ slot.0 as u64));
        let mut bytes = vec![0; self.block_bytes];
        for word in bytes.chunks_mut(8) {
            word.copy_from_slice(&filler.bits().to_le_bytes()[..word.len()]);
        }
        // Every third content looks like a descriptor, commit, superblock or revoke block.
        if version.0.is_multiple_of(3) {
            let kind = u32::try_from(version.0 / 3 % 5 + 1).unwrap_or(1);
            let tid = self.first_tid.wrapping_add(self.last);
            for (index, word) in [MAGIC, kind, tid].into_iter().enumerate() {
                bytes[4 * index..4 * index + 4].copy_from_slice(&word.to_be_bytes());
            }
        }
        self.contents.push(bytes);
        version
    }

    /// The bytes of a version.
    #[must_use]
    pub(super) fn content(&self, version: Version) -> &[u8] {
        &self.contents[version.0]
    }

    /// The initial version of a block, if it is known.
    #[must_use]
    pub(super) fn initial(&self, slot: Slot) -> Option<&[u8]> {
        match self.lines[slot.0].first()?.state {
            State::Metadata(version) => Some(self.content(version)),
            State::Free(_) => None,
        }
    }

    fn enter(&mut self, slot: Slot, tid: Tid, state: State) {
        let from = self.place(tid);
        self.last = self.last.max(from);
        let line = &mut self.lines[slot.0];
        let newest = line.last().map_or(0, |phase| phase.from);
        assert!(
            newest <= from,
            "{slot:?} was changed in transaction {newest}, and then in {from}"
        );
        match line.last_mut() {
            Some(phase) if phase.from == from => phase.state = state,
            _ => line.push(Phase { from, state }),
        }
    }

    /// Notes that a handle of `tid` wrote `version` to the block.
    pub(super) fn wrote(&mut self, slot: Slot, tid: Tid, version: Version) {
        self.enter(slot, tid, State::Metadata(version));
    }

    /// Notes that a handle of `tid` freed the block.
    pub(super) fn freed(&mut self, slot: Slot, tid: Tid) {
        self.enter(slot, tid, State::Free(Vec::new()));
    }

    /// Notes that `version` will be written to the free block as data, outside the journal.
    ///
    /// # Panics
    /// If the block is not free, which is a fault of the client.
    pub(super) fn writes_data(&mut self, slot: Slot, version: Version) {
        match self.lines[slot.0].last_mut() {
            Some(Phase {
                state: State::Free(data),
                ..
            }) => data.push(version),
            other => panic!("data for {slot:?}, which is {other:?}"),
        }
    }

    /// Notes that a handle of `tid` made metadata refer to the data.
    pub(super) fn named(&mut self, slot: Slot, version: Version, tid: Tid) {
        let from = self.place(tid);
        self.pointers.push(Pointer {
            slot,
            version,
            from,
            until: u32::MAX,
        });
    }

    /// Notes that a handle of `tid` removed that reference.
    pub(super) fn unnamed(&mut self, slot: Slot, tid: Tid) {
        let until = self.place(tid);
        let pointer = self.pointers.iter_mut().rev();
        if let Some(pointer) = pointer.into_iter().find(|pointer| pointer.slot == slot) {
            pointer.until = until;
        }
    }

    /// The number of transactions that changed something.
    #[must_use]
    pub(super) fn transactions(&self) -> u32 {
        self.last
    }

    /// The number of blocks.
    #[must_use]
    pub(super) fn slots(&self) -> usize {
        self.lines.len()
    }

    /// What is certain after the first `cut` of the `events`.
    #[must_use]
    pub(super) fn known(&self, events: &[Event], cut: usize) -> Known {
        let mut known = Known {
            acknowledged: 0,
            durable: vec![None; self.lines.len()],
        };
        let events = &events[..cut];
        let flushed = events.iter().map(|event| match event {
            Event::Flush { covers } => *covers,
            _ => 0,
        });
        let flushed = flushed.max().unwrap_or(0);
        for (index, event) in events.iter().enumerate() {
            let Event::Note(number) = event else {
                continue;
            };
            match Note::from_number(*number) {
                Note::Acknowledged { after } => {
                    known.acknowledged = known.acknowledged.max(after);
                }
                Note::Data { slot, version } if index < flushed => {
                    known.durable[slot.0] = Some(version);
                }
                Note::Data { .. } => {}
            }
        }
        known
    }

    /// Checks the blocks after recovery, `bytes` one after the other.
    ///
    /// # Errors
    /// No prefix of the commits that holds the acknowledged ones explains them.
    pub(super) fn check(&self, known: &Known, bytes: &[u8]) -> Result<()> {
        let mut possible = moments(known.acknowledged, self.last + 1);
        let found: Vec<_> = bytes.chunks(self.block_bytes).collect();
        for (slot, bytes) in found.iter().enumerate() {
            possible &= self.moments_of(Slot(slot), bytes, known);
        }
        for pointer in &self.pointers {
            let named = moments(pointer.from, pointer.until);
            if possible & named != 0 && *found[pointer.slot.0] != *self.content(pointer.version) {
                possible &= !named;
            }
        }
        if possible == 0 {
            bail!("{}", self.explain(known, &found));
        }
        Ok(())
    }

    /// The moments at which the block may have had these bytes.
    fn moments_of(&self, slot: Slot, bytes: &[u8], known: &Known) -> Moments {
        let line = &self.lines[slot.0];
        let mut possible = 0;
        for (index, phase) in line.iter().enumerate() {
            let until = line.get(index + 1).map_or(self.last + 1, |next| next.from);
            let fits = match &phase.state {
                State::Metadata(version) => *self.content(*version) == *bytes,
                State::Free(data) => self.data_fits(data, known.durable[slot.0], bytes),
            };
            if fits {
                possible |= moments(phase.from, until);
            }
        }
        possible
    }

    /// The version with these bytes.
    fn version_of(&self, bytes: &[u8]) -> Option<Version> {
        let is_this = |content: &Vec<u8>| *content == bytes;
        self.contents.iter().position(is_this).map(Version)
    }

    /// Whether a free block may look like this, with `durable` the last durable data of the
    /// block, in this phase or another.
    fn data_fits(&self, data: &[Version], durable: Option<Version>, bytes: &[u8]) -> bool {
        let Some(oldest) = data.iter().position(|&version| Some(version) == durable) else {
            return true;
        };
        let sectors = bytes.chunks(SECTOR_BYTES).enumerate();
        sectors.into_iter().all(|(index, sector)| {
            let at = index * SECTOR_BYTES;
            data[oldest..]
                .iter()
                .any(|&version| self.content(version).get(at..at + sector.len()) == Some(sector))
        })
    }

    /// Explains that no moment fits, block by block.
    fn explain(&self, known: &Known, found: &[&[u8]]) -> String {
        let mut text = format!(
            "no prefix of the {} commits with the {} acknowledged ones explains the blocks",
            self.last, known.acknowledged
        );
        for (slot, bytes) in found.iter().enumerate() {
            let possible = self.moments_of(Slot(slot), bytes, known);
            let all = moments(0, self.last + 1);
            if possible == all {
                continue;
            }
            let what = match self.version_of(bytes) {
                Some(Version(version)) => format!("version {version}"),
                None => "no version".to_owned(),
            };
            let _ = write!(
                text,
                "\n  block {slot} holds {what}: after {}",
                list(possible)
            );
        }
        for pointer in &self.pointers {
            if *found[pointer.slot.0] != *self.content(pointer.version) {
                let named = moments(pointer.from, pointer.until.min(self.last + 1));
                let Pointer { slot, version, .. } = pointer;
                let _ = write!(
                    text,
                    "\n  block {} lacks data version {}, named after {}",
                    slot.0,
                    version.0,
                    list(named)
                );
            }
        }
        text
    }
}

/// The moments as `3..7, 9`.
fn list(set: Moments) -> String {
    let is_in = |moment: u32| set & moments(moment, moment + 1) != 0;
    let mut runs: Vec<(u32, u32)> = Vec::new();
    for moment in (0..u128::BITS).filter(|&moment| is_in(moment)) {
        match runs.last_mut() {
            Some(run) if run.1 + 1 == moment => run.1 = moment,
            _ => runs.push((moment, moment)),
        }
    }
    let runs: Vec<_> = runs
        .iter()
        .map(|&(first, last)| match first == last {
            true => format!("{first}"),
            false => format!("{first}..={last}"),
        })
        .collect();
    if runs.is_empty() {
        "none".to_owned()
    } else {
        runs.join(", ")
    }
}

#[cfg(test)]
mod tests;
