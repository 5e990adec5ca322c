//! **Purpose.** How a file system is opened for writing, said by calls or in the words of
//! mount(8).
//!
//! **Not here.** Words that concern a mount point and not the file system (`ro`, `nosuid`): who
//! makes the mount takes them out first.

use std::time::Duration;

use fourscore_journal::{Background, JournalOptions};
use fourscore_mballoc::{Privilege, Tunables};

use super::access_times::AccessTimes;
use super::lazy_times::Times;
use super::trim::Discards;
use crate::{Error, Fs, OpenOptions, Result};

/// What the kernel takes for `commit=0`.
const DEFAULT_COMMIT: Duration = Duration::from_secs(5);
/// The longest `commit=` that the kernel takes, so that its clock does not wrap.
const LONGEST_COMMIT_SECS: u32 = i32::MAX as u32 / 1000;

/// Memory for the buddies of groups that are not in use, unless told otherwise: those of 4 TiB.
const BUDDY_BYTES: u64 = 256 << 20;

/// How to open a file system for writing.
#[derive(Clone, Debug)]
pub struct MountOptions {
    pub(super) open: OpenOptions,
    pub(super) journal: JournalOptions,
    pub(super) access_times: AccessTimes,
    pub(super) nodiratime: bool,
    pub(super) times: Times,
    tunables: Vec<(String, u32)>,
    buddy_bytes: u64,
    privilege: Privilege,
    discard: Discard,
}

/// Whether the device is told what was freed.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Discard {
    /// When somebody asks for it ([`Fs::trim`]).
    #[default]
    OnDemand,
    /// After the commit, too.
    Online,
}

impl MountOptions {
    /// Ordered data, a commit every five seconds.
    #[must_use]
    pub fn new() -> Self {
        Self {
            open: OpenOptions::new(),
            journal: JournalOptions::default(),
            access_times: AccessTimes::default(),
            nodiratime: false,
            times: Times::AtOnce,
            tunables: Vec::new(),
            buddy_bytes: BUDDY_BYTES,
            privilege: Privilege::User,
            discard: Discard::OnDemand,
        }
    }

    /// Adds options in the words of mount(8), separated by commas: `data=ordered`,
    /// `commit=SECONDS`, `relatime`, `strictatime`, `noatime`, `nodiratime`, `diratime`,
    /// `lazytime`, `nolazytime`, `discard`, `nodiscard` and the allocator's tunables
    /// (`mb_optimize_scan=0`). Of two that contradict each other the later one counts.
    ///
    /// # Errors
    /// `MountOption` with the word that is unknown or whose value makes no sense. Whether a tunable
    /// exists and takes its value is only known when the file system is mounted.
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
                "data" if value == "ordered" => {}
                "relatime" if value.is_empty() => self.access_times = AccessTimes::Relative,
                "strictatime" if value.is_empty() => self.access_times = AccessTimes::Strict,
                "noatime" if value.is_empty() => self.access_times = AccessTimes::Never,
                "nodiratime" if value.is_empty() => self.nodiratime = true,
                "lazytime" if value.is_empty() => self.times = Times::Lazily,
                "nolazytime" if value.is_empty() => self.times = Times::AtOnce,
                "discard" if value.is_empty() => self.discard = Discard::Online,
                "nodiscard" if value.is_empty() => self.discard = Discard::OnDemand,
                "diratime" if value.is_empty() => self.nodiratime = false,
                "commit" => {
                    let interval = commit_interval(number()?)
                        .ok_or_else(|| refused("longer than the kernel's clock allows"))?;
                    self.journal.background = Background::Threads { interval };
                }
                name if name.starts_with("mb_") => self = self.tunable(name, number()?),
                _ => return Err(refused("not an option that is known here")),
            }
        }
        Ok(self)
    }

    /// Sets a tunable of the allocator, such as `mb_optimize_scan`; the names are those of sysfs
    /// and of mount options. An unknown one is refused when the file system is mounted.
    #[must_use]
    pub fn tunable(mut self, name: &str, value: u32) -> Self {
        self.tunables.push((name.to_owned(), value));
        self
    }

    /// Lets everything that is written through this mount use the blocks that are kept for the
    /// super-user (`s_r_blocks_count`), as Linux lets the super-user: for a program that is alone
    /// with an image.
    #[must_use]
    pub fn use_reserve(mut self) -> Self {
        self.privilege = Privilege::Root;
        self
    }

    pub(super) fn privilege(&self) -> Privilege {
        self.privilege
    }

    /// Whether the device is told what was freed, after its commit. That delays commits.
    #[must_use]
    pub fn discard(mut self, discard: Discard) -> Self {
        self.discard = discard;
        self
    }

    /// Who is told what is freed in `fs`; nobody, where the device gives no space back.
    pub(super) fn discards(&self, fs: &Fs) -> Option<Discards> {
        match self.discard {
            Discard::OnDemand => None,
            Discard::Online => Discards::of(fs),
        }
    }

    /// How much memory the buddies of groups may take that nobody has allocated in lately, in
    /// bytes. They are made again of their bitmaps when they are needed.
    #[must_use]
    pub fn buddy_bytes(mut self, bytes: u64) -> Self {
        self.buddy_bytes = bytes;
        self
    }

    /// The same as a number of groups: a bitmap, and another of all its orders, of a block each.
    pub(super) fn most_groups_loaded(&self, block_bytes: usize) -> u32 {
        let groups = self.buddy_bytes / (2 * block_bytes as u64);
        u32::try_from(groups).unwrap_or(u32::MAX)
    }

    /// How it is read: caches.
    #[must_use]
    pub fn open(mut self, options: OpenOptions) -> Self {
        self.open = options;
        self
    }

    /// When accesses are noted ([`Fs::accessed`](crate::Fs::accessed)).
    #[must_use]
    pub fn access_times(mut self, access_times: AccessTimes) -> Self {
        self.access_times = access_times;
        self
    }

    /// When times are written that are all that is changed.
    #[must_use]
    pub fn times(mut self, times: Times) -> Self {
        self.times = times;
        self
    }

    /// How the journal works.
    #[must_use]
    pub fn journal(mut self, options: JournalOptions) -> Self {
        self.journal = options;
        self
    }

    pub(super) fn tune(&self, tunables: &Tunables) -> Result<()> {
        for (name, value) in &self.tunables {
            tunables.set_by_name(name, *value)?;
        }
        Ok(())
    }
}

impl Default for MountOptions {
    fn default() -> Self {
        Self::new()
    }
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

    fn interval(words: &str) -> Duration {
        match MountOptions::new().parse(words).unwrap().journal.background {
            Background::Threads { interval } => interval,
            Background::None => panic!("nobody commits"),
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
        assert_eq!(times("noatime"), AccessTimes::Never);
        assert_eq!(times("noatime,relatime"), AccessTimes::Relative);
        assert_eq!(times("strictatime,nodiratime"), AccessTimes::Strict);
        let lazy = |words| MountOptions::new().parse(words).unwrap().times;
        assert_eq!(lazy("lazytime"), Times::Lazily);
        assert_eq!(lazy("lazytime,nolazytime"), Times::AtOnce);
        let discard = |words| MountOptions::new().parse(words).unwrap().discard;
        assert_eq!(discard("discard"), Discard::Online);
        assert_eq!(discard("discard,nodiscard"), Discard::OnDemand);
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
            "data=fast",
            "mb_stream_req=",
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
