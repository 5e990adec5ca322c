//! **Purpose.** The options of a read-write mount, set by methods or parsed from mount(8) options.
//!
//! **Not here.** Options that concern a mount point and not the file system (`ro`, `nosuid`): the
//! program that makes the mount removes them first.

use std::time::Duration;

use fourscore_journal::{Background, JournalOptions};
use fourscore_mballoc::{Privilege, Tunables};
use fourscore_ondisk::superblock::{DefaultMountOpts, ErrorPolicy, JournalPlace, Superblock};
use fourscore_sync::Arc;

use crate::core::Core;
use crate::inode::lazy_list::Times;
use crate::mount::discards::Discards;
use crate::mount::error_policy::{OnError, PanicHook};
use crate::mount::modes::{AccessTimes, DataMode};
use crate::mount::tune::{self, InodeReadahead};
use crate::quota::state::Enforced;
use crate::txn::faults::Faults;
use crate::xattr::share::{Sharing, XattrSharing};
use crate::{Error, OpenOptions, Result};

/// The interval that the kernel uses for `commit=0`.
const DEFAULT_COMMIT: Duration = Duration::from_secs(5);
/// The longest interval that the kernel accepts for `commit=`, so that its clock does not wrap.
const LONGEST_COMMIT_SECS: u32 = i32::MAX as u32 / 1000;

/// The default memory for the buddies of groups that are not in use: enough for those of 4 TiB.
const BUDDY_BYTES: u64 = 256 << 20;

/// Whether the device is flushed when something has to be durable.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Barriers {
    /// It is flushed: synced changes survive a power cut.
    On,
    /// It is not flushed while the file system is mounted: after a power cut, anything may be
    /// missing. After an unmount everything is durable.
    Off,
}

/// The options of a read-write mount.
///
/// Options that are not set are taken from the superblock of the file system, from the fields that
/// the kernel reads (`s_default_mount_opts` and `s_errors`).
#[derive(Clone, Debug)]
pub struct MountOptions {
    pub(crate) open: OpenOptions,
    journal: JournalOptions,
    commit: Option<Duration>,
    pub(crate) access_times: Option<AccessTimes>,
    pub(crate) nodiratime: Option<bool>,
    data: Option<DataMode>,
    grpid: Option<bool>,
    pub(crate) on_error: Option<OnError>,
    pub(crate) panic_hook: Option<PanicHook>,
    barriers: Option<Barriers>,
    times: Option<Times>,
    tunables: Vec<(String, u32)>,
    pub(crate) stripe: Option<u32>,
    bitmaps: Option<BitmapLoading>,
    buddy_bytes: u64,
    cache_bytes: Option<usize>,
    privilege: Privilege,
    discard: Option<Discard>,
    sharing: Option<XattrSharing>,
    sharing_bytes: Option<u64>,
    quota: Enforced,
    pub(crate) faults: Faults,
}

/// When the block bitmaps of a mount are loaded.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum BitmapLoading {
    /// Ahead of the allocations that need them: a mount that changes little reads little.
    #[default]
    OnDemand,
    /// All of them, in the background after the mount, as far as the memory for buddies goes
    /// ([`MountOptions::buddy_bytes`]). Linux's default.
    AtMount,
}

/// When freed blocks are discarded on the device.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Discard {
    /// Only on request ([`Fs::trim`](crate::Fs::trim)).
    #[default]
    OnDemand,
    /// On request, and after the commit that frees them.
    Online,
}

impl MountOptions {
    /// Returns the defaults: ordered data, a commit every five seconds.
    #[must_use]
    pub fn new() -> Self {
        Self {
            open: OpenOptions::new(),
            journal: JournalOptions::default(),
            commit: None,
            access_times: None,
            nodiratime: None,
            data: None,
            grpid: None,
            on_error: None,
            panic_hook: None,
            barriers: None,
            times: None,
            tunables: Vec::new(),
            stripe: None,
            bitmaps: None,
            buddy_bytes: BUDDY_BYTES,
            cache_bytes: None,
            privilege: Privilege::User,
            discard: None,
            sharing: None,
            sharing_bytes: None,
            quota: Enforced::default(),
            faults: Faults::default(),
        }
    }

    /// Adds options as mount(8) takes them, separated by commas: `data=ordered`, `data=writeback`,
    /// `data=journal`, `grpid` (`bsdgroups`), `nogrpid` (`sysvgroups`), `acl` and `user_xattr`
    /// (which are always on), `mbcache`, `no_mbcache`, `commit=SECONDS`, `errors=continue`,
    /// `errors=remount-ro`, `errors=panic`, `barrier`, `barrier=0`, `barrier=1`, `nobarrier`,
    /// `relatime`, `strictatime`, `noatime`, `nodiratime`, `diratime`, `lazytime`, `nolazytime`,
    /// `discard`, `nodiscard`, `cache_size=BYTES` with K, M or G (the memory of the caches), the
    /// limits of the automatic bypass (`mbcache_low`, `mbcache_high`, `mbcache_window`,
    /// `mbcache_probe`, `mbcache_pause`, see [`BypassLimits`](crate::BypassLimits)), `usrquota`
    /// (`quota`), `grpquota` and `prjquota`, with which limits are enforced
    /// ([`Fs::set_quota`](crate::Fs::set_quota)), `noquota`, `stripe=BLOCKS`
    /// ([`MountOptions::stripe`]), `prefetch_block_bitmaps`, `no_prefetch_block_bitmaps`
    /// ([`BitmapLoading`]) and the tunables of [`Fs::tune`](crate::Fs::tune)
    /// (`mb_optimize_scan=0`). Of two that contradict each other the later one counts.
    ///
    /// # Errors
    /// `MountOption` with the option that is unknown or whose value is invalid. Whether a tunable
    /// exists and accepts its value is only known when the file system is mounted.
    pub fn parse(mut self, words: &str) -> Result<Self> {
        for word in words.split(',').filter(|word| !word.is_empty()) {
            let refused = |why| Error::MountOption {
                word: word.to_owned(),
                why,
            };
            let (name, value) = word.split_once('=').unwrap_or((word, ""));
            let number = || value.parse().map_err(|_| refused("not a number"));
            match name {
                "defaults" if value.is_empty() => {}
                "acl" | "user_xattr" if value.is_empty() => {}
                "mbcache" if value.is_empty() => self.sharing = Some(XattrSharing::On),
                "no_mbcache" if value.is_empty() => self.sharing = Some(XattrSharing::Off),
                "data" => {
                    let known = data_mode(value).ok_or_else(|| refused("no such mode"))?;
                    self.data = Some(known);
                }
                "grpid" | "bsdgroups" if value.is_empty() => self.grpid = Some(true),
                "nogrpid" | "sysvgroups" if value.is_empty() => self.grpid = Some(false),
                "errors" => {
                    let known =
                        ErrorPolicy::named(value).ok_or_else(|| refused("no such policy"))?;
                    self.on_error = Some(known.into());
                }
                "barrier" if matches!(value, "" | "1") => self.barriers = Some(Barriers::On),
                "barrier" if value == "0" => self.barriers = Some(Barriers::Off),
                "nobarrier" if value.is_empty() => self.barriers = Some(Barriers::Off),
                "relatime" if value.is_empty() => {
                    self.access_times = Some(AccessTimes::Relative);
                }
                "strictatime" if value.is_empty() => {
                    self.access_times = Some(AccessTimes::Strict);
                }
                "noatime" if value.is_empty() => self.access_times = Some(AccessTimes::Never),
                "nodiratime" if value.is_empty() => self.nodiratime = Some(true),
                "diratime" if value.is_empty() => self.nodiratime = Some(false),
                "lazytime" if value.is_empty() => self.times = Some(Times::Lazily),
                "nolazytime" if value.is_empty() => self.times = Some(Times::AtOnce),
                "discard" if value.is_empty() => self.discard = Some(Discard::Online),
                "nodiscard" if value.is_empty() => self.discard = Some(Discard::OnDemand),
                "commit" => {
                    let interval = commit_interval(number()?)
                        .ok_or_else(|| refused("longer than the kernel's clock allows"))?;
                    self.commit = Some(interval);
                }
                name if name.starts_with("mbcache_") => {
                    let limits = self.sharing.unwrap_or_default().with_limit(name, number()?);
                    self.sharing = Some(limits.ok_or_else(|| refused("not a limit of it"))?);
                }
                "quota" | "usrquota" if value.is_empty() => self.quota.user = true,
                "grpquota" if value.is_empty() => self.quota.group = true,
                "prjquota" if value.is_empty() => self.quota.project = true,
                "noquota" if value.is_empty() => self.quota = Enforced::default(),
                "stripe" => self.stripe = Some(number()?),
                "cache_size" => {
                    let bytes = byte_count(value).ok_or_else(|| refused("not a size"))?;
                    self.cache_bytes = Some(bytes);
                }
                "prefetch_block_bitmaps" if value.is_empty() => {
                    self.bitmaps = Some(BitmapLoading::AtMount);
                }
                "no_prefetch_block_bitmaps" if value.is_empty() => {
                    self.bitmaps = Some(BitmapLoading::OnDemand);
                }
                name if name.starts_with("mb_") || name == InodeReadahead::NAME => {
                    self = self.tunable(name, number()?);
                }
                _ => return Err(refused("not an option that is known here")),
            }
        }
        Ok(self)
    }

    /// Sets a tunable ([`Fs::tune`](crate::Fs::tune)), such as `mb_optimize_scan`; the names are
    /// those of sysfs and of mount options. An unknown one is refused when the file system is
    /// mounted.
    #[must_use]
    pub fn tunable(mut self, name: &str, value: u32) -> Self {
        self.tunables.push((name.to_owned(), value));
        self
    }

    /// Sets the stripe of the array below the file system, in blocks; by default the superblock's
    /// (`s_raid_stripe_width`, else `s_raid_stride`). Requests of whole stripes begin at one. A
    /// stripe longer than a group, or 0, leaves the choice to the superblock.
    #[must_use]
    pub fn stripe(mut self, blocks: u32) -> Self {
        self.stripe = Some(blocks);
        self
    }

    /// Sets when the bitmaps of groups are loaded: by default as allocation proceeds.
    #[must_use]
    pub fn bitmap_loading(mut self, bitmaps: BitmapLoading) -> Self {
        self.bitmaps = Some(bitmaps);
        self
    }

    /// Allows everything that is written through this mount to use the blocks that are reserved for
    /// the super-user (`s_r_blocks_count`), as Linux allows the super-user. This is for a program
    /// that has an image for itself. No blocks are kept for nodes of extent trees then, either.
    #[must_use]
    pub fn use_reserve(mut self) -> Self {
        self.privilege = Privilege::Root;
        self
    }

    /// Returns the kinds whose limits are enforced.
    pub(crate) fn enforced_quota(&self) -> Enforced {
        self.quota
    }

    pub(crate) fn privilege(&self) -> Privilege {
        self.privilege
    }

    /// Sets the injected fault, with which the crash harness is tested.
    #[cfg(feature = "sabotage")]
    #[must_use]
    pub fn sabotage(mut self, fault: Option<crate::txn::faults::Sabotage>) -> Self {
        self.faults = Faults::injected(fault);
        self
    }

    /// Sets whether freed blocks are discarded on the device, after the commit that frees them.
    /// That delays commits.
    #[must_use]
    pub fn discard(mut self, discard: Discard) -> Self {
        self.discard = Some(discard);
        self
    }

    /// Returns the reporter of freed blocks; `None` if they are not discarded, or if the device
    /// cannot discard.
    pub(crate) fn discards(&self, core: &Core) -> Option<Discards> {
        let by_default = DefaultMountOpts::DISCARD;
        let default = match core.superblock().default_mount_opts().contains(by_default) {
            true => Discard::Online,
            false => Discard::OnDemand,
        };
        match self.discard.unwrap_or(default) {
            Discard::OnDemand => None,
            Discard::Online => Discards::of(&core.device, &core.superblock),
        }
    }

    pub(crate) fn has_lazy_times(&self) -> bool {
        self.times.unwrap_or_default() == Times::Lazily
    }

    /// Sets whether inodes with equal attributes share blocks, and equal large values an inode: by
    /// default where it pays.
    #[must_use]
    pub fn xattr_sharing(mut self, sharing: XattrSharing) -> Self {
        self.sharing = Some(sharing);
        self
    }

    /// Sets the most memory for the cache that finds equal attributes, in bytes: by default 1/32 of
    /// the memory for all other caches ([`OpenOptions::cache_bytes`]). An entry takes about 250.
    #[must_use]
    pub fn xattr_sharing_bytes(mut self, bytes: u64) -> Self {
        self.sharing_bytes = Some(bytes);
        self
    }

    /// Returns the cache of attributes to share; `None` if they are not shared.
    pub(crate) fn sharing(&self) -> Option<Sharing> {
        const SHARE: usize = 32;
        let default = self.open_options().cache_bytes / SHARE;
        let bytes = self.sharing_bytes.map(usize::try_from);
        let bytes = bytes.map_or(default, |bytes| bytes.unwrap_or(usize::MAX));
        Sharing::new(self.sharing.unwrap_or_default(), bytes, self.faults)
    }

    /// Sets the most memory for buddies of groups in which no recent allocation was made, in bytes.
    /// They are rebuilt from their bitmaps when they are needed.
    #[must_use]
    pub fn buddy_bytes(mut self, bytes: u64) -> Self {
        self.buddy_bytes = bytes;
        self
    }

    /// Returns that memory as a number of groups. A group takes two blocks: a bitmap, and another
    /// bitmap of all its orders.
    pub(crate) fn most_groups_loaded(&self, block_bytes: usize) -> u32 {
        let groups = self.buddy_bytes / (2 * block_bytes as u64);
        u32::try_from(groups).unwrap_or(u32::MAX)
    }

    /// Sets the options of reading: caches, and the device of an external journal, which is opened
    /// for writing. The mount option `cache_size=` counts more than these.
    #[must_use]
    pub fn open(mut self, options: OpenOptions) -> Self {
        self.open = options;
        self
    }

    /// Returns the memory of the caches in bytes, if the mount option `cache_size=` was given.
    #[must_use]
    pub fn cache_size(&self) -> Option<usize> {
        self.cache_bytes
    }

    /// Returns the options of reading.
    pub(crate) fn open_options(&self) -> OpenOptions {
        let open = self.open.clone();
        match self.cache_bytes {
            Some(bytes) => open.cache_bytes(bytes),
            None => open,
        }
    }

    /// Sets when access times are updated ([`Fs::accessed`](crate::Fs::accessed)).
    #[must_use]
    pub fn access_times(mut self, access_times: AccessTimes) -> Self {
        self.access_times = Some(access_times);
        self
    }

    /// Sets when times are written if nothing else of an inode is changed.
    #[must_use]
    pub fn times(mut self, times: Times) -> Self {
        self.times = Some(times);
        self
    }

    /// Sets the options of the journal.
    #[must_use]
    pub fn journal(mut self, options: JournalOptions) -> Self {
        self.journal = options;
        self.commit = None;
        self
    }

    pub(crate) fn journal_options(&self) -> JournalOptions {
        let background = match self.commit {
            Some(interval) => Background::Threads { interval },
            None => self.journal.background,
        };
        JournalOptions {
            background,
            ..self.journal
        }
    }

    /// Sets when the data of files becomes durable.
    #[must_use]
    pub fn data(mut self, mode: DataMode) -> Self {
        self.data = Some(mode);
        self
    }

    /// Returns the data mode for a mount of the file system with this superblock.
    pub(crate) fn data_mode(&self, superblock: &Superblock) -> DataMode {
        self.data.unwrap_or(DataMode::of(superblock))
    }

    pub(crate) fn gives_group(&self, superblock: &Superblock) -> bool {
        let default = superblock.default_mount_opts();
        let default = default.contains(DefaultMountOpts::BSDGROUPS);
        self.grpid.unwrap_or(default)
    }

    /// Returns these options, completed by those that the superblock holds as text
    /// (`s_mount_opts`). As in Linux, an option there that is not understood is ignored.
    pub(crate) fn over(&self, superblock: &Superblock) -> Self {
        let mut stored = Self::new();
        let text = String::from_utf8_lossy(superblock.mount_opts());
        for word in text.split(',') {
            match stored.clone().parse(word) {
                Ok(parsed) => stored = parsed,
                Err(error) => tracing::warn!(%error, "in the superblock"),
            }
        }
        let mut options = self.clone();
        if self.journal.background == JournalOptions::default().background {
            options.commit = self.commit.or(stored.commit);
        }
        options.access_times = self.access_times.or(stored.access_times);
        options.nodiratime = self.nodiratime.or(stored.nodiratime);
        options.data = self.data.or(stored.data);
        options.grpid = self.grpid.or(stored.grpid);
        options.on_error = self.on_error.or(stored.on_error);
        options.barriers = self.barriers.or(stored.barriers);
        options.times = self.times.or(stored.times);
        options.discard = self.discard.or(stored.discard);
        options.sharing = self.sharing.or(stored.sharing);
        options.stripe = self.stripe.or(stored.stripe);
        options.bitmaps = self.bitmaps.or(stored.bitmaps);
        options
    }

    /// Refuses a file system whose journal is on a device that was not given, and a journal device
    /// for a file system whose journal is not on a device.
    pub(crate) fn check_journal_device(&self, superblock: &Superblock) -> Result<()> {
        self.open.check_journal_device(superblock)?;
        match superblock.journal() {
            Some(JournalPlace::Device { uuid, .. }) if self.open.external_journal().is_none() => {
                Err(Error::JournalNotGiven { uuid })
            }
            _ => Ok(()),
        }
    }

    /// Refuses options that the file system with this superblock does not support.
    pub(crate) fn check(&self, superblock: &Superblock) -> Result<()> {
        if self.data == Some(DataMode::Journal) && superblock.journal().is_none() {
            return Err(Error::MountOption {
                word: "data=journal".into(),
                why: "the file system has no journal",
            });
        }
        let files = superblock.quota_inodes();
        let wanted = [
            ("usrquota", self.quota.user, files.user),
            ("grpquota", self.quota.group, files.group),
            ("prjquota", self.quota.project, files.project),
        ];
        for (word, is_wanted, file) in wanted {
            if is_wanted && file.is_none() {
                return Err(Error::MountOption {
                    word: word.into(),
                    why: "the file system has no such quota file (mkfs -O quota, -E quotatype=)",
                });
            }
        }
        Ok(())
    }

    /// Sets the policy for a broken file system, or a journal that cannot go on.
    #[must_use]
    pub fn on_error(mut self, on_error: OnError) -> Self {
        self.on_error = Some(on_error);
        self
    }

    /// Sets the hook that is called instead of a panic of the machine, with a line that states the
    /// cause. It is called if `errors=panic` is in force, by this call or by the superblock. A
    /// library does not end its program: if `hook` returns, or there is none, nothing is written
    /// any more. It is called by the thread that found the error, which may hold locks, so it must
    /// not use the file system.
    #[must_use]
    pub fn on_panic(mut self, hook: impl Fn(&str) + Send + Sync + 'static) -> Self {
        self.panic_hook = Some(PanicHook(Arc::new(hook)));
        self
    }

    /// Sets whether the device is flushed when something has to be durable.
    #[must_use]
    pub fn barriers(mut self, barriers: Barriers) -> Self {
        self.barriers = Some(barriers);
        self
    }

    /// Returns that setting for a mount of the file system with this superblock.
    pub(crate) fn barriers_of(&self, superblock: &Superblock) -> Barriers {
        let nobarrier = DefaultMountOpts::NOBARRIER;
        let default = match superblock.default_mount_opts().contains(nobarrier) {
            true => Barriers::Off,
            false => Barriers::On,
        };
        self.barriers.unwrap_or(default)
    }

    pub(crate) fn tune(&self, tunables: &Tunables, readahead: &InodeReadahead) -> Result<()> {
        let mut set = self.tunables.iter();
        set.try_for_each(|(name, value)| tune::set(Some(tunables), readahead, name, *value))
    }

    /// Returns when bitmaps are loaded.
    pub(crate) fn loading(&self) -> BitmapLoading {
        self.bitmaps.unwrap_or_default()
    }
}

impl Default for MountOptions {
    fn default() -> Self {
        Self::new()
    }
}

fn data_mode(value: &str) -> Option<DataMode> {
    match value {
        "ordered" => Some(DataMode::Ordered),
        "writeback" => Some(DataMode::Writeback),
        "journal" => Some(DataMode::Journal),
        _ => None,
    }
}

/// Parses a number of bytes, with the suffix K, M or G for powers of 1024.
fn byte_count(value: &str) -> Option<usize> {
    let shift = match value.chars().last()?.to_ascii_uppercase() {
        'K' => 10,
        'M' => 20,
        'G' => 30,
        _ => 0,
    };
    let digits = match shift {
        0 => value,
        _ => &value[..value.len() - 1],
    };
    digits.parse::<usize>().ok()?.checked_mul(1 << shift)
}

fn commit_interval(seconds: u32) -> Option<Duration> {
    match seconds {
        0 => Some(DEFAULT_COMMIT),
        1..=LONGEST_COMMIT_SECS => Some(Duration::from_secs(seconds.into())),
        _ => None,
    }
}

#[cfg(all(test, not(feature = "shuttle")))]
mod tests {
    use super::*;
    use crate::BypassLimits;

    fn interval(words: &str) -> Duration {
        let options = MountOptions::new().parse(words).unwrap().journal_options();
        match options.background {
            Background::Threads { interval } => interval,
            Background::None => panic!("there is no background thread"),
        }
    }

    #[test]
    fn words_of_mount_are_understood() {
        assert_eq!(interval(""), DEFAULT_COMMIT);
        assert_eq!(
            interval("commit=30,defaults,data=ordered"),
            Duration::from_secs(30)
        );
        assert_eq!(interval("commit=30,commit=0"), DEFAULT_COMMIT);
        let times = |words| MountOptions::new().parse(words).unwrap().access_times;
        assert_eq!(times("noatime"), Some(AccessTimes::Never));
        assert_eq!(times("noatime,relatime"), Some(AccessTimes::Relative));
        assert_eq!(times("strictatime,nodiratime"), Some(AccessTimes::Strict));
        let data = |words| MountOptions::new().parse(words).unwrap().data;
        assert_eq!(data("acl,user_xattr,no_mbcache"), None);
        let sharing = |words| MountOptions::new().parse(words).unwrap().sharing;
        assert_eq!(sharing("acl"), None);
        assert_eq!(sharing("no_mbcache"), Some(XattrSharing::Off));
        assert_eq!(sharing("no_mbcache,mbcache"), Some(XattrSharing::On));
        let limits = BypassLimits {
            low_permille: 5,
            window: 300,
            ..BypassLimits::default()
        };
        assert_eq!(
            sharing("mbcache,mbcache_low=5,mbcache_window=300"),
            Some(XattrSharing::Automatic(limits))
        );
        let cache = |words| {
            let parsed = MountOptions::new().parse(words).unwrap();
            parsed
                .open(OpenOptions::new().cache_bytes(7))
                .open_options()
        };
        let cache = |words| cache(words).cache_bytes;
        assert_eq!(cache(""), 7);
        assert_eq!(cache("cache_size=4096"), 4096);
        assert_eq!(cache("cache_size=1M,cache_size=2g"), 2 << 30);
        assert_eq!(data("data=journal"), Some(DataMode::Journal));
        assert_eq!(
            data("data=journal,data=writeback"),
            Some(DataMode::Writeback)
        );
        let policy = |words| MountOptions::new().parse(words).unwrap().on_error;
        assert_eq!(policy(""), None);
        assert_eq!(
            policy("errors=panic,errors=continue"),
            Some(OnError::Continue)
        );
        assert_eq!(policy("errors=remount-ro"), Some(OnError::RemountReadOnly));
        let barriers = |words| MountOptions::new().parse(words).unwrap().barriers;
        assert_eq!(barriers("nobarrier,barrier"), Some(Barriers::On));
        assert_eq!(barriers("barrier=1,barrier=0"), Some(Barriers::Off));
        let lazy = |words| MountOptions::new().parse(words).unwrap().times;
        assert_eq!(lazy("lazytime"), Some(Times::Lazily));
        assert_eq!(lazy("lazytime,nolazytime"), Some(Times::AtOnce));
        let discard = |words| MountOptions::new().parse(words).unwrap().discard;
        assert_eq!(discard("discard"), Some(Discard::Online));
        assert_eq!(discard("discard,nodiscard"), Some(Discard::OnDemand));
        let stripe = |words| MountOptions::new().parse(words).unwrap().stripe;
        assert_eq!(stripe("commit=5"), None);
        assert_eq!(stripe("stripe=16,stripe=64"), Some(64));
        let bitmaps = |words| MountOptions::new().parse(words).unwrap().bitmaps;
        assert_eq!(bitmaps(""), None);
        let at_mount = Some(BitmapLoading::AtMount);
        assert_eq!(bitmaps("prefetch_block_bitmaps"), at_mount);
        let both = "prefetch_block_bitmaps,no_prefetch_block_bitmaps";
        assert_eq!(bitmaps(both), Some(BitmapLoading::OnDemand));
        let tuned = MountOptions::new().parse("mb_optimize_scan=0,mb_stream_req=32");
        let expected = [
            ("mb_optimize_scan".to_owned(), 0),
            ("mb_stream_req".to_owned(), 32),
        ];
        assert_eq!(tuned.unwrap().tunables, expected);
    }

    #[test]
    fn what_makes_no_sense_is_refused_by_its_word() {
        let words = [
            "commit",
            "commit=often",
            "commit=2147484",
            "commit=-1",
            "data",
            "data=fast",
            "noacl",
            "errors",
            "errors=ignore",
            "barrier=2",
            "nobarrier=1",
            "mbcache=1",
            "mbcache_low",
            "mbcache_low=1001",
            "mbcache_window=0",
            "mbcache_other=1",
            "cache_size",
            "cache_size=M",
            "cache_size=64MB",
            "cache_size=99999999999G",
            "mb_stream_req=",
            "stripe",
            "stripe=many",
            "defaults=1",
            "noatime=1",
            "nosuid",
        ];
        for word in words {
            match MountOptions::new().parse(&format!("defaults,{word}")) {
                Err(Error::MountOption { word: found, .. }) => assert_eq!(found, word),
                other => panic!("{word}: {other:?}"),
            }
        }
    }
}
