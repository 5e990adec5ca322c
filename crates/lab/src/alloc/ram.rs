//! **Purpose.** The block bitmaps of a file system in memory. A group's bitmap is generated from
//! the seed whenever it is read, and stored only once it has been changed.
//!
//! **Model.** If changes are applied ([`Changes::Applied`](crate::alloc::target::Changes)), a
//! group's bitmap is stored at its first change, and every change is checked: allocating or freeing
//! a cluster twice is an error. If they are dropped, the allocator's own buddies are the only
//! record, and a run measures the allocator alone.

use fourscore_mballoc::geometry::ClusterCount;
use fourscore_mballoc::{
    BitmapState, Change, ChangeKind, Descriptor, Geometry, GroupSource, ReadError,
};
use fourscore_ondisk::GroupNr;
use fourscore_sync::atomic::{AtomicU32, Ordering};
use fourscore_sync::{Arc, Mutex};

use crate::alloc::scenario::{Fragments, Scenario};

/// A stream of random numbers (xorshift64*).
#[derive(Clone, Debug)]
pub struct Random(u64);

impl Random {
    /// The stream with this seed.
    #[must_use]
    pub fn new(seed: u64) -> Self {
        Self(seed.wrapping_mul(0x9e37_79b9_7f4a_7c15) | 1)
    }

    /// The next number.
    pub fn next_u64(&mut self) -> u64 {
        self.0 ^= self.0 >> 12;
        self.0 ^= self.0 << 25;
        self.0 ^= self.0 >> 27;
        self.0.wrapping_mul(0x2545_f491_4f6c_dd1d)
    }

    /// A number below `bound`, which is not 0.
    pub fn below(&mut self, bound: u64) -> u64 {
        ((u128::from(self.next_u64()) * u128::from(bound)) >> 64)
            .try_into()
            .unwrap_or(0)
    }

    /// A length of at least 1 with mean `mean`, distributed like file sizes: many are short, a few
    /// are long.
    fn used_length(&mut self, mean: u64) -> u64 {
        // P(doublings = i) is 1 / 2^(i+1), and the mean length for i is mean * 2^i / 4. So each of
        // i < 6 contributes an eighth of the mean, and i = 6, the last (1 / 64), a quarter.
        let doublings = self.next_u64().trailing_zeros().min(6);
        1 + self.below(((mean << doublings) / 2).max(1))
    }

    /// A length from half of `mean` to one and a half, like the gaps between files of similar
    /// sizes.
    fn free_length(&mut self, mean: u64) -> u64 {
        1 + mean / 2 + self.below(mean.max(1))
    }
}

/// The bitmap of a group, if it has been changed.
type Bits = Mutex<Option<Box<[u8]>>>;

/// The groups of a scenario.
#[derive(Debug)]
pub struct RamGroups {
    scenario: Scenario,
    geometry: Geometry,
    free: Box<[AtomicU32]>,
    changed: Box<[Bits]>,
}

impl RamGroups {
    /// Generates the groups of a scenario from its seed.
    #[must_use]
    pub fn new(scenario: Scenario, geometry: Geometry) -> Arc<Self> {
        let groups = geometry.groups();
        let mut bitmap = vec![0; geometry.bitmap_bytes()];
        // Groups with the same pattern and length have the same free count.
        let mut known = vec![None; PATTERNS as usize];
        let free = (0..groups).map(|group| {
            let is_full_length =
                geometry.clusters_in(GroupNr(group)) == geometry.clusters_per_group();
            let pattern = &mut known[(group % PATTERNS) as usize];
            let free = match pattern {
                _ if is_fresh(&scenario, GroupNr(group)) => {
                    geometry.clusters_in(GroupNr(group)) - METADATA_CLUSTERS
                }
                Some(free) if is_full_length => *free,
                _ => {
                    let free = generate(&scenario, &geometry, GroupNr(group), &mut bitmap);
                    *pattern = Some(free).filter(|_| is_full_length);
                    free
                }
            };
            AtomicU32::new(free)
        });
        let free = free.collect();
        let changed = (0..groups).map(|_| Mutex::new(None)).collect();
        Arc::new(Self {
            scenario,
            geometry,
            free,
            changed,
        })
    }

    /// The division into groups.
    #[must_use]
    pub fn geometry(&self) -> &Geometry {
        &self.geometry
    }

    /// Free clusters of all groups.
    #[must_use]
    pub fn free_clusters(&self) -> u64 {
        self.free
            .iter()
            .map(|free| u64::from(free.load(Ordering::Relaxed)))
            .sum()
    }

    /// Changes a bitmap.
    ///
    /// # Errors
    /// A cluster is allocated or freed twice.
    pub fn apply(&self, change: &Change) -> Result<(), String> {
        let group = change.run.group;
        let mut slot = self.changed[group.0 as usize].lock();
        let bits = slot.get_or_insert_with(|| {
            let mut bitmap = vec![0; self.geometry.bitmap_bytes()];
            generate(&self.scenario, &self.geometry, group, &mut bitmap);
            bitmap.into()
        });
        for i in change.run.start.0..change.run.end() {
            let (byte, bit) = (&mut bits[(i / 8) as usize], 1 << (i % 8));
            if (*byte & bit != 0) == (change.kind == ChangeKind::Set) {
                let done = match change.kind {
                    ChangeKind::Set => "allocated",
                    ChangeKind::Clear => "freed",
                };
                return Err(format!("group {group}: cluster {i} is {done} twice"));
            }
            *byte ^= bit;
        }
        match change.kind {
            ChangeKind::Set => {
                self.free[group.0 as usize].fetch_sub(change.run.len.0, Ordering::Relaxed)
            }
            ChangeKind::Clear => {
                self.free[group.0 as usize].fetch_add(change.run.len.0, Ordering::Relaxed)
            }
        };
        Ok(())
    }
}

/// Number of different groups. More groups repeat them, so that millions are set up quickly.
const PATTERNS: u32 = 4096;

/// Clusters at the front of each group that hold its metadata.
const METADATA_CLUSTERS: u32 = 8;

/// Whether no data has been written to a group (`BLOCK_UNINIT`).
fn is_fresh(scenario: &Scenario, group: GroupNr) -> bool {
    let Fragments::Packed { .. } = scenario.fragments else {
        return false;
    };
    // Groups in use are 97 % full. Whether groups are in use is drawn for each flex group, since
    // files fill one flex group after another.
    let in_use = u64::from(scenario.used_per_mille) * 1000 / 970;
    let mut random = Random::new(scenario.seed ^ (u64::from(group.0 / 16) << 20));
    random.below(1000) >= in_use
}

/// Fills a bitmap and returns its free clusters.
fn generate(scenario: &Scenario, geometry: &Geometry, group: GroupNr, bitmap: &mut [u8]) -> u32 {
    let clusters = geometry.clusters_in(group);
    bitmap.fill(0);
    set(bitmap, 0, METADATA_CLUSTERS.min(clusters));
    if is_fresh(scenario, group) {
        return clusters - METADATA_CLUSTERS;
    }
    let (used_per_mille, mean_bytes) = match scenario.fragments {
        Fragments::Packed { mean_bytes } => (970, mean_bytes),
        Fragments::Everywhere { mean_bytes } => (u64::from(scenario.used_per_mille), mean_bytes),
    };
    let mean_free = (mean_bytes / geometry.cluster_bytes()).max(1);
    let mean_used = mean_free * used_per_mille / (1000 - used_per_mille).max(1);
    let mut random = Random::new(scenario.seed ^ (u64::from(group.0 % PATTERNS) << 24) ^ 0x5eed);
    let mut free = 0;
    let mut at = u64::from(METADATA_CLUSTERS.min(clusters));
    let end = u64::from(clusters);
    while at < end {
        let used = (at + random.used_length(mean_used)).min(end);
        set(bitmap, to_u32(at), to_u32(used));
        at = (used + random.free_length(mean_free)).min(end);
        free += at - used;
    }
    to_u32(free)
}

/// A number of clusters of one group as 32 bits, into which it fits.
fn to_u32(clusters: u64) -> u32 {
    u32::try_from(clusters).unwrap_or(u32::MAX)
}

fn set(bitmap: &mut [u8], start: u32, end: u32) {
    let mut i = start;
    while i < end {
        if i.is_multiple_of(8) && end - i >= 8 {
            bitmap[(i / 8) as usize] = 0xff;
            i += 8;
        } else {
            bitmap[(i / 8) as usize] |= 1 << (i % 8);
            i += 1;
        }
    }
}

/// The groups as a source of the allocator.
#[derive(Clone, Debug)]
pub struct RamSource(pub Arc<RamGroups>);

impl GroupSource for RamSource {
    fn descriptor(&self, group: GroupNr) -> Descriptor {
        let free = ClusterCount(self.0.free[group.0 as usize].load(Ordering::Relaxed));
        let fresh = is_fresh(&self.0.scenario, group);
        let state = if fresh {
            BitmapState::Uninit
        } else {
            BitmapState::Written
        };
        Descriptor { free, state }
    }

    fn read_bitmap(&self, group: GroupNr, bitmap: &mut [u8]) -> Result<(), ReadError> {
        let changed = self.0.changed[group.0 as usize].lock();
        match &*changed {
            Some(bits) => bitmap.copy_from_slice(bits),
            None => {
                generate(&self.0.scenario, &self.0.geometry, group, bitmap);
            }
        }
        Ok(())
    }

    fn prefetch(&self, _groups: &[GroupNr]) {}

    fn has_arrived(&self, _group: GroupNr) -> bool {
        true
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_seed_generates_the_same_file_system_with_the_used_space_of_the_scenario() {
        for name in ["133g-50", "16g-aged-4k", "16g-aged-64k"] {
            let scenario = Scenario::by_name(name).unwrap();
            let geometry = scenario.geometry().unwrap();
            let groups = RamGroups::new(scenario, geometry);
            assert_eq!(
                groups.free_clusters(),
                RamGroups::new(scenario, geometry).free_clusters()
            );
            let all = scenario.bytes / geometry.cluster_bytes();
            let used = 1000 - groups.free_clusters() * 1000 / all;
            let expected = u64::from(scenario.used_per_mille);
            assert!(
                used.abs_diff(expected) < 60,
                "{name}: {used} per mille used, not {expected}"
            );
        }
    }
}
