//! **Purpose.** The shape of a round, drawn from its seed: the file system, its mount, the threads,
//! and what they mostly do.

use std::time::Duration;

use anyhow::{Context as _, Result};
use fourscore::{DataMode, Fs, MountOptions, OpenOptions, Times};
use fourscore_block::RamDevice;
use fourscore_fuse::Cache;
use fourscore_journal::{Background, JournalOptions};
use fourscore_mkfs::{
    BlockSizeWish, Choice, JournalOptions as JournalWish, Layout, Options, Profile,
};
use fourscore_ondisk::BlockSize;
use fourscore_sync::Arc;
use fourscore_testkit::explore::Rng;
use fourscore_testkit::explore::rng::mix;

use super::device::{SlowDevice, poisoned};
use super::injected::InjectedFault;
use super::one_attribute;
use super::theme::Theme;

/// The format of the file system.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Format {
    Usual,
    /// Files mapped by indirect blocks.
    Pointers,
    Clusters,
    /// Small files, and large values of attributes in inodes of their own.
    Inline,
}

/// A round.
#[derive(Clone, Copy, Debug)]
pub(super) struct Shape {
    pub(super) theme: Theme,
    pub(super) threads: usize,
    pub(super) format: Format,
    pub(super) block_bytes: u32,
    device_mib: u64,
    /// The size of the file system at first.
    fs_mib: u64,
    /// The blocks, or clusters, of a group, if not as usual.
    group_blocks: Option<u32>,
    /// Features that decide where metadata is.
    places: &'static str,
    inodes: u64,
    journal_mib: u32,
    data: DataMode,
    times: Times,
    cache_bytes: usize,
    read_micros: u64,
    write_micros: u64,
    commit_millis: u64,
    /// The largest size of a file in bytes.
    pub(super) file_bytes: u64,
    /// The number of files that all threads use.
    pub(super) files: usize,
    /// Whether inodes get several names.
    pub(super) has_links: bool,
    /// The number of files that are only read, so that other inodes are evicted.
    pub(super) bystanders: usize,
    /// Free bytes besides those that the files may need; the rest is allocated first. `None`: all.
    pub(super) spare_bytes: Option<u64>,
    /// Whether usage of users and groups is counted.
    has_quota: bool,
}

const FEW_INODES: u64 = 64;
/// Layouts of file systems that grow: with blocks reserved for descriptors, without, with
/// descriptors in their groups, tables in their groups, and without checksums.
const PLACES: [&str; 6] = [
    "",
    "",
    "^resize_inode",
    "^resize_inode,meta_bg",
    "^flex_bg",
    "^metadata_csum,uninit_bg",
];
/// More than the files of a round that grows take, with what was freed and not committed yet.
const SPACIOUS_MIB: u64 = 24;
/// Mixed into a seed, for the choice of quota.
const QUOTA: u64 = 0x51;
/// The size of a cache that is large enough.
const LARGE_CACHE_BYTES: usize = 8 << 20;
/// Less than all threads together need at once.
const TINY_CACHE_BYTES: usize = 64 << 10;

impl Shape {
    pub(super) fn draw(seed: u64, wanted: Option<Theme>) -> Self {
        use Theme::{
            Attributes, Content, Copies, Everything, Eviction, Growth, Listings, Names, NewNames,
            OneAttribute, Reuse, Tree,
        };
        let random = &mut Rng::new(mix(seed));
        let themes = [
            Tree,
            Content,
            Names,
            Reuse,
            Listings,
            Content,
            NewNames,
            Eviction,
            Everything,
            Attributes,
            OneAttribute,
            Copies,
            Growth,
        ];
        let nth = usize::try_from(seed % themes.len() as u64).unwrap_or(0);
        let theme = wanted.unwrap_or(themes[nth]);
        let formats = [
            Format::Usual,
            Format::Usual,
            Format::Pointers,
            Format::Clusters,
            Format::Inline,
        ];
        let data = [DataMode::Ordered, DataMode::Journal, DataMode::Writeback];
        let is_few = theme == Tree || random.happens(1, 3);
        let latencies = [0, 0, 20, 300, 3000];
        let device_mib = *random.pick(&[24, 64]);
        let drawn = Self {
            theme,
            threads: 2 + random.below(5),
            format: *random.pick(&formats),
            block_bytes: *random.pick(&[1024, 4096]),
            device_mib,
            fs_mib: device_mib,
            group_blocks: None,
            places: "",
            inodes: if is_few { FEW_INODES } else { 1024 },
            journal_mib: *random.pick(&[4, 8]),
            data: *random.pick(&data),
            cache_bytes: *random.pick(&[TINY_CACHE_BYTES, 512 << 10, LARGE_CACHE_BYTES]),
            read_micros: *random.pick(&latencies),
            write_micros: *random.pick(&latencies[..4]),
            commit_millis: *random.pick(&[2, 20, 5000]),
            file_bytes: *random.pick(&[8 << 10, 64 << 10, 256 << 10]),
            files: 1 + random.below(5),
            has_links: random.happens(1, 2),
            bystanders: 0,
            spare_bytes: None,
            // Not drawn, so that the rest of the shape of a seed stays as it was.
            has_quota: mix(seed ^ QUOTA).is_multiple_of(4),
            times: match random.happens(1, 3) {
                true => Times::Lazily,
                false => Times::AtOnce,
            },
        };
        drawn.for_theme(random)
    }

    /// The shape with the settings that its theme needs.
    fn for_theme(self, random: &mut Rng) -> Self {
        use Theme::{
            Attributes, Content, Copies, Everything, Eviction, Growth, Listings, Names, NewNames,
            OneAttribute, Reuse, Tree,
        };
        match self.theme {
            Attributes => Self {
                threads: 4,
                // As many as there are users of a block that comes and goes.
                files: 4 + random.below(8),
                file_bytes: 8 << 10,
                ..self.without_latency()
            },
            // More threads than cores, so that a thread is preempted between its lookup and its
            // lock; and one or two files have the attribute.
            OneAttribute => Self {
                threads: 6,
                inodes: 1024,
                files: 4,
                cache_bytes: LARGE_CACHE_BYTES,
                file_bytes: 8 << 10,
                ..self.without_latency()
            },
            // Without latency, numbers are reused faster.
            Tree => Self {
                threads: 4 + random.below(3),
                ..self.without_latency()
            },
            // More threads than cores, so that the thread that creates the name is preempted
            // anywhere.
            NewNames => Self {
                threads: 8,
                cache_bytes: LARGE_CACHE_BYTES,
                ..self.without_latency()
            },
            // Freed blocks are reused after a commit, while reads of them are in progress.
            Reuse => Self {
                // Formats in which a change of the mapping does not change the sequence count.
                format: *random.pick(&[Format::Usual, Format::Pointers]),
                data: *random.pick(&[DataMode::Ordered, DataMode::Writeback]),
                threads: 9,
                read_micros: *random.pick(&[1000, 4000]),
                write_micros: 0,
                commit_millis: 2,
                cache_bytes: LARGE_CACHE_BYTES,
                file_bytes: 4 * u64::from(self.block_bytes),
                files: 4,
                spare_bytes: Some(128 << 10),
                ..self
            },
            // A map with several levels, whose blocks change while a copy follows them.
            Copies => Self {
                format: *random.pick(&[Format::Usual, Format::Pointers]),
                threads: 6,
                block_bytes: 1024,
                file_bytes: 256 << 10,
                files: 2,
                ..self.without_latency()
            },
            // A listing takes long, and the inodes in use do not fit into the cache.
            Eviction => Self {
                threads: 6,
                format: *random.pick(&[Format::Usual, Format::Pointers]),
                block_bytes: 1024,
                inodes: 1024,
                cache_bytes: TINY_CACHE_BYTES,
                read_micros: *random.pick(&[20, 100, 300]),
                write_micros: 0,
                bystanders: 500,
                ..self
            },
            Growth => self.that_grows(random),
            Names | Listings | Content | Everything => self,
        }
    }

    /// The shape of a file system that grows, from one group or a few to many. Half of them are
    /// almost full at first.
    fn that_grows(self, random: &mut Rng) -> Self {
        // A growth reads and writes many blocks one after the other.
        let latencies = [0, 0, 0, 20, 100];
        Self {
            threads: 4 + random.below(3),
            device_mib: 96,
            fs_mib: *random.pick(&[12, 16, 24]),
            group_blocks: *random.pick(&[Some(1024), Some(1024), Some(4096), None]),
            places: *random.pick(&PLACES),
            journal_mib: 4,
            read_micros: *random.pick(&latencies),
            write_micros: *random.pick(&latencies),
            file_bytes: 16 << 10,
            spare_bytes: random.happens(1, 2).then_some(256 << 10),
            ..self
        }
    }

    fn without_latency(self) -> Self {
        Self {
            read_micros: 0,
            write_micros: 0,
            ..self
        }
    }

    pub(super) fn has_few_inodes(&self) -> bool {
        self.inodes == FEW_INODES
    }

    /// The shape for a round through a mount.
    pub(super) fn for_mount(self) -> Self {
        let spare_bytes = match self.theme {
            // Data that is in the page cache finds no space when it is written, and is lost.
            Theme::Growth => None,
            _ => self.spare_bytes,
        };
        Self {
            spare_bytes,
            ..self
        }
    }

    /// The blocks of the device.
    pub(super) fn device_blocks(&self) -> u64 {
        (self.device_mib << 20) / u64::from(self.block_bytes)
    }

    /// The size in blocks from which there is space for everything, however much is taken at first.
    pub(super) fn spacious_blocks(&self) -> u64 {
        match self.spare_bytes {
            Some(_) if self.theme == Theme::Growth => {
                ((self.fs_mib + SPACIOUS_MIB) << 20) / u64::from(self.block_bytes)
            }
            _ => 0,
        }
    }

    /// The cache mode of the mount.
    pub(super) fn cache(&self) -> Cache {
        match self.threads.is_multiple_of(2) {
            true => Cache::Writeback,
            false => Cache::Writethrough,
        }
    }

    /// The number of inodes that are certainly free when the threads begin.
    pub(super) fn free_inodes(&self) -> usize {
        const MADE_BEFORE: u64 = 40;
        let made = MADE_BEFORE + self.bystanders as u64;
        usize::try_from(self.inodes - made).unwrap_or(0)
    }

    /// The unit in which ranges of a file can be moved, in bytes.
    pub(super) fn unit_bytes(&self) -> u64 {
        match self.format {
            Format::Clusters => u64::from(self.block_bytes) * 4,
            _ => u64::from(self.block_bytes),
        }
    }

    /// Makes the file system, on a memory device full of poison.
    pub(super) fn make(&self) -> Result<Arc<RamDevice>> {
        let ram = poisoned(self.device_mib << 20)?;
        let of_format = match self.format {
            Format::Usual => "",
            Format::Pointers => "^extent,^64bit",
            Format::Clusters => "bigalloc",
            Format::Inline => "inline_data,ea_inode",
        };
        let quota = if self.has_quota { "quota" } else { "" };
        let features = [of_format, self.places, quota];
        let features: Vec<&str> = features.into_iter().filter(|f| !f.is_empty()).collect();
        let features = features.join(",");
        let log = if self.block_bytes == 1024 { 0 } else { 2 };
        let block_size = BlockSize::from_log(log).context("a block size")?;
        let options = Options {
            fs_type: Some("ext4".to_owned()),
            features: Some(features).filter(|features| !features.is_empty()),
            block_size: Some(BlockSizeWish::Exactly(block_size)),
            cluster_size_bytes: (self.format == Format::Clusters).then_some(4 * self.block_bytes),
            blocks_per_group: self.group_blocks,
            inodes: Some(self.inodes),
            inode_size_bytes: Some(256),
            journal: JournalWish {
                size_mib: Some(self.journal_mib),
                ..JournalWish::default()
            },
            reserved_percent: Some(0.0),
            lazy_itable_init: Some(Choice::No),
            discard: Some(Choice::No),
            ..Options::default()
        };
        let layout = Layout::new(&options, &Profile::upstream(), self.fs_mib << 20)?;
        layout.write(&*ram)?;
        if self.theme == Theme::OneAttribute {
            one_attribute::leave_blocks(&ram)?;
        }
        Ok(ram)
    }

    /// The device to mount it from.
    pub(super) fn device(&self, ram: Arc<RamDevice>) -> Arc<SlowDevice> {
        let read = Duration::from_micros(self.read_micros);
        let write = Duration::from_micros(self.write_micros);
        Arc::new(SlowDevice::new(ram, read, write))
    }

    /// Mounts it.
    pub(super) fn mount(
        &self,
        device: Arc<SlowDevice>,
        injected: InjectedFault,
    ) -> Result<Arc<Fs>> {
        let interval = Duration::from_millis(self.commit_millis);
        let journal = JournalOptions {
            background: Background::Threads { interval },
            ..JournalOptions::default()
        };
        let open = OpenOptions::new().cache_bytes(self.cache_bytes);
        let options = MountOptions::new()
            .open(open)
            .journal(journal)
            .times(self.times);
        let options = injected.of_mount(options.data(self.data));
        Ok(Fs::mount(device, &options)?)
    }
}
