//! **Purpose.** Images and mount options, drawn from a seed.

use std::time::Duration;

use anyhow::Result;
use fourscore::{MountOptions, OpenOptions};
use fourscore_journal::{Background, JournalOptions};
use fourscore_testkit::explore::Rng;
use fourscore_testkit::image::{Image, MiB};
use fourscore_testkit::matrix::kernel_has_quota_format;

/// The size of an image.
const SIZE: MiB = MiB(256);
/// The size of its journal: small, so that the log wraps often.
const JOURNAL: MiB = MiB(8);

/// Arguments of mke2fs: the type, the size of a block in bytes, the features.
type Format = (&'static str, u32, &'static [&'static str]);

const FORMATS: [Format; 8] = [
    ("ext4", 4096, &[]),
    ("ext4", 1024, &["orphan_file", "metadata_csum_seed"]),
    ("ext4", 4096, &["inline_data", "ea_inode", "large_dir"]),
    ("ext4", 2048, &["bigalloc"]),
    ("ext4", 1024, &["^extent", "^64bit", "^flex_bg"]),
    ("ext3", 4096, &[]),
    ("ext4", 1024, &["^metadata_csum", "uninit_bg", "project"]),
    ("ext4", 4096, &["meta_bg", "^resize_inode", "fast_commit"]),
];

/// Mount options: a mount gets one of each group.
const WORDS: &[&[&str]] = &[
    &[
        "data=ordered",
        "data=ordered",
        "data=writeback",
        "data=journal",
    ],
    &["", "discard"],
    &["", "lazytime", "noatime", "strictatime"],
    &["", "", "nobarrier"],
    &["", "mb_optimize_scan=0"],
];

/// Sizes of the caches: the least that all threads need, some more, and more than enough.
const CACHE_BYTES: [usize; 4] = [2 << 20, 4 << 20, 16 << 20, 16 << 20];
/// Commit intervals of the journal.
const COMMIT_MILLIS: [u64; 3] = [2, 50, 1000];

/// Makes the `nth` image of a run.
///
/// # Errors
/// If mke2fs is missing or refuses.
pub(super) fn image(nth: u64) -> Result<Image> {
    let (kind, block_bytes, features) = format(nth);
    let image = Image::builder(SIZE)
        .kind(kind)
        .block_size_bytes(block_bytes);
    image.features(features).journal(JOURNAL).make()
}

/// The format of the `nth` image, as text.
pub(super) fn name(nth: u64) -> String {
    let (kind, block_bytes, features) = format(nth);
    format!("{kind} {block_bytes} {}", features.join(","))
}

/// Whether the running kernel can mount the `nth` image for writing.
pub(super) fn is_written_by_kernel(nth: u64) -> bool {
    let (_, _, features) = format(nth);
    !features.contains(&"project") || kernel_has_quota_format()
}

/// Whether e2fsck recovers the `nth` image completely: when it clears an orphan it leaves the
/// inodes that hold its xattr values (docs/FINDINGS.md).
pub(super) fn is_recovered_by_e2fsck(nth: u64) -> bool {
    let (_, _, features) = format(nth);
    !features.contains(&"ea_inode")
}

fn format(nth: u64) -> Format {
    let nth = usize::try_from(nth).unwrap_or(0);
    FORMATS[nth % FORMATS.len()]
}

/// Random mount options, and their text.
///
/// # Errors
/// Never: all options are valid.
pub(super) fn mount_options(random: &mut Rng) -> Result<(MountOptions, String)> {
    let words: Vec<&str> = WORDS.iter().map(|words| *random.pick(words)).collect();
    let words = words.join(",");
    let interval = Duration::from_millis(*random.pick(&COMMIT_MILLIS));
    let journal = JournalOptions {
        background: Background::Threads { interval },
        ..JournalOptions::default()
    };
    let open = OpenOptions::new().cache_bytes(*random.pick(&CACHE_BYTES));
    let options = MountOptions::new().open(open).journal(journal);
    Ok((options.parse(&words)?, words))
}
