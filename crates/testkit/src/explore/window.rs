//! **Purpose.** The possible states of the device after a crash at one cut: the open writes, and
//! the ways in which they survive.
//!
//! **Model.** A write is a row of *units*, the sectors it touches. A survival holds for each unit
//! whether it arrived. Random survivals take units together as writes, blocks or sectors, so that
//! whole writes are lost as well as single sectors.
//!
//! ```text
//!   write 1         write 2 (FUA)   write 3
//!   |s|s|s|s|       always there    |s|s|s|s|s|s|      s = a sector: there or not
//!   | b | b |                       | b | b | b |      b = a block
//! ```
//!
//! **Invariants.** Writes are applied in the order in which they completed, so a device never holds
//! an older sector where a newer one arrived; the older one is visible only if the newer one is
//! lost. A cache, of the host or of the drive, holds sectors as a whole: a sector that a write
//! covers in part arrives with all earlier writes to it. So each sector of a state is what that
//! sector was at some moment.

use std::collections::HashSet;
use std::fmt::Write as _;
use std::hash::{DefaultHasher, Hash, Hasher};
use std::io;
use std::ops::Range;

use fourscore_block::{BlockDevice, Durable, Event};

use super::disk::CrashDisk;
use super::rng::Rng;

/// The size of a sector, which a device writes completely or not at all, in bytes.
const SECTOR_BYTES: u64 = 512;
/// All subsets are tried of windows with at most this number of blocks.
const EXHAUSTIVE_BLOCKS: usize = 7;
/// The number of tries for a new survival before a window counts as exhausted.
const ATTEMPTS: usize = 8;

/// Whether each unit of a window arrived.
pub(super) type Survival = Vec<bool>;

/// The writes that a crash at a cut leaves open.
pub(super) struct Window<'a> {
    writes: Vec<OpenWrite<'a>>,
    units: usize,
    blocks: Vec<Range<usize>>,
    sectors: Vec<Range<usize>>,
    /// Units that certainly arrived: a durable write covers the same sectors.
    certain: Vec<usize>,
}

/// A write after the last durable state.
struct OpenWrite<'a> {
    event: usize,
    offset: u64,
    /// `None` for zeroes.
    bytes: Option<&'a [u8]>,
    len_bytes: u64,
    /// Its units; empty if it was durable at once.
    units: Range<usize>,
    /// Its units that arrive together.
    tied: Range<usize>,
    /// Its units that cover a sector in part, each with the previous unit in the same sector.
    brings: Vec<(usize, usize)>,
}

impl<'a> Window<'a> {
    /// The window of a crash after the first `cut` events, of which the first `durable` are
    /// durable. A write at `cut` is in flight: parts of it may have arrived.
    pub(super) fn new(events: &'a [Event], durable: usize, cut: usize, block_bytes: u64) -> Self {
        let mut window = Self {
            writes: Vec::new(),
            units: 0,
            blocks: Vec::new(),
            sectors: Vec::new(),
            certain: Vec::new(),
        };
        for (index, event) in events.iter().enumerate().take(cut + 1).skip(durable) {
            let (offset, bytes, len_bytes, at_once) = match event {
                Event::Write {
                    offset,
                    bytes,
                    durable,
                } => {
                    let at_once = *durable == Durable::AtOnce;
                    (*offset, Some(&**bytes), bytes.len() as u64, at_once)
                }
                Event::WriteZeroes(range) | Event::Discard(range) => {
                    (range.start, None, range.end - range.start, false)
                }
                Event::Flush { .. } | Event::Note(_) => continue,
            };
            let first_unit = window.units;
            if index == cut || !at_once {
                window.add_units(offset..offset + len_bytes, block_bytes);
            }
            let mut write = OpenWrite {
                event: index,
                offset,
                bytes,
                len_bytes,
                units: first_unit..window.units,
                tied: 0..0,
                brings: Vec::new(),
            };
            for sector in write.partial_sectors() {
                match (write.unit(sector), window.newest_unit(sector)) {
                    (Some(unit), Some(under)) => write.brings.push((unit, under)),
                    (None, Some(under)) => window.certain.push(under),
                    (_, None) => {}
                }
            }
            window.writes.push(write);
        }
        window
    }

    /// The unit of the last write to a sector; `None` if that write was durable at once.
    fn newest_unit(&self, sector: u64) -> Option<usize> {
        let mut writes = self.writes.iter().rev();
        let last = writes.find(|write| write.sectors().contains(&sector))?;
        last.unit(sector)
    }

    /// Makes the sectors of each write that lie in `range` arrive together.
    pub(super) fn tie(&mut self, range: Range<u64>) {
        for write in &mut self.writes {
            let first = write.offset / SECTOR_BYTES;
            let unit = |byte: u64| {
                let sector = (byte / SECTOR_BYTES).saturating_sub(first);
                let unit = usize::try_from(sector).unwrap_or(usize::MAX);
                write.units.start + unit.min(write.units.len())
            };
            write.tied = unit(range.start)..unit(range.end);
        }
    }

    /// Makes a survival possible: tied units arrive as their first one does, and a sector arrives
    /// with all earlier writes to it.
    fn possible(&self, mut survival: Survival) -> Survival {
        for write in &self.writes {
            if let Some(&kept) = survival[write.tied.clone()].first() {
                survival[write.tied.clone()].fill(kept);
            }
        }
        for &unit in &self.certain {
            survival[unit] = true;
        }
        // In descending order: a unit that is added may add earlier ones.
        for write in self.writes.iter().rev() {
            if survival[write.tied.clone()].contains(&true) {
                survival[write.tied.clone()].fill(true);
            }
            for &(unit, under) in &write.brings {
                survival[under] |= survival[unit];
            }
        }
        survival
    }

    fn add_units(&mut self, range: Range<u64>, block_bytes: u64) {
        let mut block = None;
        for sector in range.start / SECTOR_BYTES..range.end.div_ceil(SECTOR_BYTES) {
            let of = sector * SECTOR_BYTES / block_bytes;
            match self.blocks.last_mut() {
                Some(last) if block == Some(of) => last.end += 1,
                _ => self.blocks.push(self.units..self.units + 1),
            }
            block = Some(of);
            self.sectors.push(self.units..self.units + 1);
            self.units += 1;
        }
    }

    /// The survivals to try, none twice: all subsets of the blocks where these are few, and about
    /// `samples` random ones. Without open units there is one.
    pub(super) fn survivals(&self, samples: usize, rng: &mut Rng) -> Vec<Survival> {
        let mut found = Found::default();
        found.add(vec![true; self.units]);
        found.add(self.possible(vec![false; self.units]));
        let under_way = self.writes.last().map_or(0..0, |last| last.units.clone());
        for kept in [true, false] {
            let mut survival = vec![!kept; self.units];
            survival[under_way.clone()].fill(kept);
            found.add(self.possible(survival));
        }
        if self.blocks.len() <= EXHAUSTIVE_BLOCKS {
            for subset in 0..1_usize << self.blocks.len() {
                let mut survival = vec![false; self.units];
                for (index, block) in self.blocks.iter().enumerate() {
                    survival[block.clone()].fill(subset >> index & 1 == 1);
                }
                found.add(self.possible(survival));
            }
        }
        let writes: Vec<_> = self
            .writes
            .iter()
            .map(|write| write.units.clone())
            .filter(|units| !units.is_empty())
            .collect();
        let mut left = samples * ATTEMPTS;
        let enough = found.survivals.len() + samples;
        while !self.sectors.is_empty() && left > 0 && found.survivals.len() < enough {
            let grain = *rng.pick(&[&writes, &self.blocks, &self.blocks, &self.sectors]);
            found.add(self.possible(self.sample(grain, rng)));
            left -= 1;
        }
        found.survivals
    }

    /// A random survival that keeps or loses each part as a whole.
    fn sample(&self, parts: &[Range<usize>], rng: &mut Rng) -> Survival {
        let mut survival = vec![false; self.units];
        let few = 1 + rng.below(2);
        match rng.below(4) {
            // Independently, with a random density.
            0 => {
                let likely = 1 + rng.below(15);
                for part in parts {
                    survival[part.clone()].fill(rng.happens(likely, 16));
                }
            }
            // Nearly all parts.
            1 => {
                survival.fill(true);
                for _ in 0..few {
                    survival[rng.pick(parts).clone()].fill(false);
                }
            }
            // Nearly no part.
            2 => {
                for _ in 0..few {
                    survival[rng.pick(parts).clone()].fill(true);
                }
            }
            // A prefix, with a few later parts.
            _ => {
                let upto = rng.below(parts.len() + 1);
                for part in &parts[..upto] {
                    survival[part.clone()].fill(true);
                }
                for _ in 0..few {
                    survival[rng.pick(parts).clone()].fill(true);
                }
            }
        }
        survival
    }

    /// The number of open units.
    pub(super) fn units(&self) -> usize {
        self.units
    }

    /// Writes the surviving units to the disk.
    pub(super) fn apply(&self, survival: &[bool], disk: &CrashDisk) -> io::Result<()> {
        for write in &self.writes {
            if write.units.is_empty() {
                write.apply(write.offset..write.end(), disk)?;
                continue;
            }
            let mut at = write.offset;
            for run in survival[write.units.clone()].chunk_by(|one, two| one == two) {
                let first = at / SECTOR_BYTES;
                let end = ((first + run.len() as u64) * SECTOR_BYTES).min(write.end());
                if run[0] {
                    write.apply(at..end, disk)?;
                }
                at = end;
            }
        }
        Ok(())
    }

    /// Minimises a failing survival: adds every unit that keeps it failing.
    pub(super) fn simplify(
        &self,
        mut survival: Survival,
        mut fails: impl FnMut(&[bool]) -> bool,
    ) -> Survival {
        let writes: Vec<_> = self
            .writes
            .iter()
            .map(|write| write.units.clone())
            .collect();
        for part in writes.iter().chain(&self.blocks).chain(&self.sectors) {
            if survival[part.clone()].contains(&false) {
                let mut more = survival.clone();
                more[part.clone()].fill(true);
                let more = self.possible(more);
                if fails(&more) {
                    survival = more;
                }
            }
        }
        survival
    }

    /// One line for each open write: its place and the units that arrived.
    pub(super) fn describe(&self, survival: &[bool]) -> String {
        let mut text = String::new();
        for write in &self.writes {
            let units = &survival[write.units.clone()];
            let fate = match (units.contains(&true), units.contains(&false)) {
                (false, false) => "durable at once".to_owned(),
                (true, false) => "kept".to_owned(),
                (false, true) => "LOST".to_owned(),
                (true, true) => {
                    let sectors = units.iter().map(|&kept| if kept { '1' } else { '0' });
                    format!("TORN, sectors {}", sectors.collect::<String>())
                }
            };
            let _ = writeln!(
                text,
                "  event {}: {} bytes at byte {}: {fate}",
                write.event, write.len_bytes, write.offset
            );
        }
        text
    }
}

impl OpenWrite<'_> {
    fn end(&self) -> u64 {
        self.offset + self.len_bytes
    }

    /// The sectors that it touches.
    fn sectors(&self) -> Range<u64> {
        self.offset / SECTOR_BYTES..self.end().div_ceil(SECTOR_BYTES)
    }

    /// The sectors that it covers in part: the first, the last, or both.
    fn partial_sectors(&self) -> impl Iterator<Item = u64> + use<> {
        let (start, end) = (self.offset, self.end());
        let cut = [start, end].map(|byte| !byte.is_multiple_of(SECTOR_BYTES));
        let first = cut[0].then_some(start / SECTOR_BYTES);
        let last = cut[1].then_some(end / SECTOR_BYTES);
        first.into_iter().chain(last.filter(move |_| last != first))
    }

    /// Its unit in one of its sectors; `None` if it was durable at once.
    fn unit(&self, sector: u64) -> Option<usize> {
        let nth = usize::try_from(sector - self.sectors().start).ok()?;
        self.units.clone().nth(nth)
    }

    /// Writes the part of this write that lies in `range`.
    fn apply(&self, range: Range<u64>, disk: &CrashDisk) -> io::Result<()> {
        let within = |at: u64| usize::try_from(at - self.offset).unwrap_or(usize::MAX);
        match self.bytes {
            Some(bytes) => {
                disk.write_at(&bytes[within(range.start)..within(range.end)], range.start)
            }
            None => disk.write_zeroes(range),
        }
    }
}

/// Survivals without duplicates, in the order in which they were added.
#[derive(Default)]
struct Found {
    survivals: Vec<Survival>,
    seen: HashSet<u64>,
}

impl Found {
    fn add(&mut self, survival: Survival) {
        let mut hasher = DefaultHasher::new();
        survival.hash(&mut hasher);
        if self.seen.insert(hasher.finish()) {
            self.survivals.push(survival);
        }
    }
}
