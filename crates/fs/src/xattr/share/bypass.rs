//! **Purpose.** The automatic bypass: no lookups where they find too little, and probes that notice
//! when that changes.
//!
//! **Model.** Each core decides for itself, from its own lookups:
//!
//! ```text
//! looking --(a window of lookups with fewer hits than `low`)--> paused
//! paused  --(`pause` contents stored without a lookup)--------> probing
//! probing --(a probe of lookups with at least `high` hits)----> looking
//! probing --(fewer hits)--------------------------------------> paused
//! ```
//!
//! A lookup that finds nothing costs a hash of the attributes, a look into the table and, when the
//! new block is offered, an insertion: a twentieth of what allocating and writing a block costs. So
//! lookups pay from about 5 hits in 100 on. The two thresholds lie on both sides of that, so that a
//! workload at the border does not switch with every window. The first pause is an eighth of the
//! limit and the next ones twice as long each, so that a first window without hits, which every
//! workload has, costs little. What a probe offers stays in the cache, so equal contents are
//! noticed even if they are further apart than one probe is long.
//!
//! Only lookups and offers are left out. A block that loses its last user is always removed from
//! the cache.
//!
//! **Locking.** None: words of the core, which other cores do not write as a rule. A count that is
//! lost moves a decision by one content.

use fourscore_sync::PerCore;
use fourscore_sync::atomic::{AtomicU32, Ordering};

/// The thresholds of the automatic bypass.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct BypassLimits {
    /// Lookups stop after a window with fewer hits in 1000 than this.
    pub low_permille: u32,
    /// They start again after a probe with at least this many hits in 1000.
    pub high_permille: u32,
    /// The length of a window, in lookups.
    pub window: u32,
    /// The length of a probe, in lookups.
    pub probe: u32,
    /// How many contents are stored without a lookup between two probes, after a few shorter
    /// pauses.
    pub pause: u32,
}

impl Default for BypassLimits {
    fn default() -> Self {
        Self {
            low_permille: 30,
            high_permille: 60,
            window: 1024,
            probe: 256,
            pause: 8192,
        }
    }
}

/// Whether equal attributes are looked for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum XattrSharing {
    /// Where it pays, by these limits.
    Automatic(BypassLimits),
    /// Always (mount option `mbcache`).
    On,
    /// Never, and there is no cache (mount option `no_mbcache`).
    Off,
}

impl Default for XattrSharing {
    fn default() -> Self {
        Self::Automatic(BypassLimits::default())
    }
}

impl XattrSharing {
    /// Returns the automatic bypass with one limit set, by the name of its mount option; `None` for
    /// another name, or a value that the limit cannot have.
    pub(crate) fn with_limit(self, name: &str, value: u32) -> Option<Self> {
        let mut limits = match self {
            Self::Automatic(limits) => limits,
            Self::On | Self::Off => BypassLimits::default(),
        };
        let (limit, allowed) = match name {
            "mbcache_low" => (&mut limits.low_permille, 0..=1000),
            "mbcache_high" => (&mut limits.high_permille, 0..=1000),
            "mbcache_window" => (&mut limits.window, 1..=u32::MAX),
            "mbcache_probe" => (&mut limits.probe, 1..=u32::MAX),
            "mbcache_pause" => (&mut limits.pause, 0..=u32::MAX),
            _ => return None,
        };
        *limit = allowed.contains(&value).then_some(value)?;
        Some(Self::Automatic(limits))
    }
}

/// The pauses that are shorter than the limit.
const SHORTER_PAUSES: u32 = 3;

/// The state of one core.
#[derive(Debug, Default)]
struct OfCore {
    lookups: AtomicU32,
    hits: AtomicU32,
    /// Contents that are still stored without a lookup; 0 while the core looks.
    paused: AtomicU32,
    /// How many pauses there were since lookups paid last. If there were any, the next decision is
    /// that of a probe.
    pauses: AtomicU32,
}

/// The bypass of one file system.
#[derive(Debug)]
pub(crate) struct Bypass {
    /// `None`: lookups are never left out.
    limits: Option<BypassLimits>,
    cores: PerCore<OfCore>,
}

impl Bypass {
    pub(crate) fn new(limits: Option<BypassLimits>) -> Self {
        Self {
            limits,
            cores: PerCore::default(),
        }
    }

    /// Whether this core leaves out lookups now.
    pub(crate) fn is_paused(&self) -> bool {
        self.limits.is_some() && get(&self.cores.mine().paused) > 0
    }

    /// Counts a content to be stored. Returns whether to look for an equal one.
    pub(crate) fn looks(&self) -> bool {
        if self.limits.is_none() {
            return true;
        }
        let core = self.cores.mine();
        let paused = get(&core.paused);
        if paused > 0 {
            set(&core.paused, paused - 1);
        }
        paused == 0
    }

    /// Counts the result of a lookup, and decides at the end of a window.
    pub(crate) fn count(&self, is_hit: bool) {
        let Some(limits) = self.limits else { return };
        let core = self.cores.mine();
        let (lookups, hits) = (
            get(&core.lookups).saturating_add(1),
            get(&core.hits).saturating_add(u32::from(is_hit)),
        );
        let pauses = get(&core.pauses);
        let is_probe = pauses > 0;
        let (length, least) = match is_probe {
            true => (limits.probe, limits.high_permille),
            false => (limits.window, limits.low_permille),
        };
        if lookups < length {
            set(&core.lookups, lookups);
            set(&core.hits, hits);
            return;
        }
        set(&core.lookups, 0);
        set(&core.hits, 0);
        let pays = u64::from(hits) * 1000 >= u64::from(least) * u64::from(lookups);
        match pays {
            true => set(&core.pauses, 0),
            false => {
                let shorter = SHORTER_PAUSES.saturating_sub(pauses);
                set(&core.paused, limits.pause >> shorter);
                set(&core.pauses, pauses.saturating_add(1));
            }
        }
    }
}

fn get(word: &AtomicU32) -> u32 {
    word.load(Ordering::Relaxed)
}

fn set(word: &AtomicU32, value: u32) {
    word.store(value, Ordering::Relaxed);
}

#[cfg(all(test, not(any(feature = "shuttle", feature = "count"))))]
mod tests {
    use super::*;

    const LIMITS: BypassLimits = BypassLimits {
        low_permille: 100,
        high_permille: 500,
        window: 20,
        probe: 10,
        pause: 30,
    };

    /// Stores `contents` contents, of which every `nth` is found; returns how many were looked for.
    /// One core's state is used, wherever the thread runs.
    fn store(bypass: &Bypass, contents: u32, nth: u32) -> u32 {
        let mut looked = 0;
        for number in 0..contents {
            if bypass.looks() {
                looked += 1;
                bypass.count(number % nth == 0);
            }
        }
        looked
    }

    fn on_one_core() {
        let mut set = rustix::thread::CpuSet::new();
        set.set(rustix::thread::sched_getcpu());
        rustix::thread::sched_setaffinity(None, &set).unwrap();
    }

    #[test]
    fn lookups_without_hits_stop_and_are_probed() {
        on_one_core();
        let bypass = Bypass::new(Some(LIMITS));
        assert_eq!(store(&bypass, 20, u32::MAX), 20, "one of them is the first");
        assert!(bypass.is_paused());
        // Pauses of 3, 7 and 15 contents, with 10 lookups after each.
        assert_eq!(store(&bypass, 55, 55), 30);
        // 30 contents without lookups, 10 with, over and over.
        assert_eq!(store(&bypass, 400, 20), 100);
    }

    #[test]
    fn hits_in_a_probe_switch_lookups_on_again_and_few_keep_them_on() {
        on_one_core();
        let bypass = Bypass::new(Some(LIMITS));
        store(&bypass, 20, 20);
        assert!(bypass.is_paused());
        assert_eq!(store(&bypass, 13, 2), 10, "a pause of 3");
        assert!(!bypass.is_paused());
        // Fewer than a probe asks for, more than a window does.
        assert_eq!(store(&bypass, 400, 5), 400);
        assert!(store(&bypass, 400, 50) < 200);
    }

    #[test]
    fn without_limits_every_content_is_looked_for() {
        let bypass = Bypass::new(None);
        assert_eq!(store(&bypass, 5000, u32::MAX), 5000);
        assert!(!bypass.is_paused());
    }
}
