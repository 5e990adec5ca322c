//! One file system made twice, by mke2fs and by fourscore, and compared byte by byte.

use std::fs::File;
use std::ops::Range;
use std::os::unix::fs::FileExt;
use std::path::Path;

use anyhow::{Context, Result, bail, ensure};
use fourscore_block::{
    BlockDevice, DeviceOptions, RamDevice, RecordingDevice, Survival, open_path,
};
use fourscore_mkfs::{
    BlockSizeWish, Choice, Layout, OldContent, Options, Profile, find_signature, parse_size,
    parse_uuid,
};
use fourscore_ondisk::superblock::MetadataChecksum;
use fourscore_ondisk::{BlockSize, RawSuperblock, Superblock};
use fourscore_sync::Arc;
use fourscore_testkit::{Access, KernelMount, oracle, scratch, tools};
use rustix::fs::SeekFrom;

pub(crate) const UUID: &str = "f0055c09-e4a0-4b1d-9c00-000000000080";
pub(crate) const SEED: &str = "0a55c09e-e4a0-4b1d-9c00-000000000008";
pub(crate) const TIME: u64 = 1_700_000_000;

/// A size and arguments that both programs get.
pub(crate) struct Case<'a> {
    pub(crate) size: &'a str,
    pub(crate) arguments: &'a str,
}

pub(crate) const fn case<'a>(size: &'a str, arguments: &'a str) -> Case<'a> {
    Case { size, arguments }
}

/// Up to where e2fsck is asked.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Limits {
    pub(crate) blocks: u64,
    /// Inodes that e2fsck reads though they are not in use.
    pub(crate) inodes_read: u64,
}

impl Limits {
    const NONE: Self = Self {
        blocks: u64::MAX,
        inodes_read: u64::MAX,
    };

    fn allow(self, superblock: &Superblock) -> bool {
        let geometry = superblock.geometry();
        let inodes_read = match superblock.metadata_checksum() {
            MetadataChecksum::None => geometry.inodes().into(),
            _ => 0,
        };
        geometry.blocks().0 <= self.blocks && inodes_read <= self.inodes_read
    }
}

/// What became of a case.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Outcome {
    /// Both images are equal, and e2fsck found nothing.
    Checked,
    /// Both images are equal.
    Equal,
    /// Both programs refuse.
    Refused,
}

impl Case<'_> {
    pub(crate) fn size_bytes(&self) -> u64 {
        parse_size("size", self.size, 1).expect("a size")
    }

    /// The same wishes as mke2fs reads them.
    pub(crate) fn options(&self) -> Result<Options> {
        let mut options = Options {
            uuid: parse_uuid("-U", UUID)?,
            hash_seed: parse_uuid("hash_seed", SEED)?,
            time_seconds: Some(TIME),
            old_content: OldContent::ZeroAfterDiscard,
            ..Options::default()
        };
        options.fs_type = Some("ext2".to_owned());
        let mut words = self.arguments.split_whitespace();
        while let Some(letter) = words.next() {
            if letter == "-j" {
                options.with_journal = true;
                continue;
            }
            let value = words
                .next()
                .with_context(|| format!("{letter} lacks a value"))?;
            match letter {
                "-t" => options.fs_type = Some(value.to_owned()),
                "-T" => options.usage = Some(value.to_owned()),
                "-O" => options.features = Some(value.to_owned()),
                "-b" => {
                    let log = value.parse::<u32>()?.ilog2() - 10;
                    options.block_size = BlockSize::from_log(log).map(BlockSizeWish::Exactly);
                }
                "-C" => {
                    options.cluster_size_bytes = Some(parse_size("-C", value, 1)?.try_into()?);
                }
                "-g" => options.blocks_per_group = Some(value.parse()?),
                "-G" => options.groups_per_flex = Some(value.parse()?),
                "-i" => options.inode_ratio_bytes = Some(value.parse()?),
                "-N" => options.inodes = Some(value.parse()?),
                "-I" => options.inode_size_bytes = Some(value.parse()?),
                "-J" => options.add_journal(value)?,
                "-L" => options.label = value.as_bytes().to_vec(),
                "-M" => options.last_mounted = value.as_bytes().to_vec(),
                "-m" => options.reserved_percent = Some(value.parse()?),
                "-r" => options.revision = Some(value.parse()?),
                "-E" => options.add_extended(value)?,
                other => bail!("{other} is not known to this test"),
            }
        }
        Ok(options)
    }

    pub(crate) fn layout(&self) -> Result<Layout> {
        let profile = Profile::system()?;
        Ok(Layout::new(&self.options()?, &profile, self.size_bytes())?)
    }

    /// Makes the image with fourscore.
    pub(crate) fn make(&self, image: &Path) -> Result<Layout> {
        File::create(image)?.set_len(self.size_bytes())?;
        let layout = self.layout()?;
        layout.write(&open_path(image, DeviceOptions::read_write())?)?;
        Ok(layout)
    }

    /// Makes the image with mke2fs.
    pub(crate) fn make_with_mke2fs(&self, image: &Path) -> Result<()> {
        File::create(image)?.set_len(self.size_bytes())?;
        let mut command = tools::command("mke2fs")?;
        command
            .env("E2FSPROGS_FAKE_TIME", TIME.to_string())
            .args(["-q", "-F", "-U", UUID]);
        let mut extended = format!("hash_seed={SEED}");
        let mut words = self.arguments.split_whitespace();
        while let Some(word) = words.next() {
            if word == "-E" {
                extended = format!("{extended},{}", words.next().unwrap_or_default());
            } else {
                command.arg(word);
            }
        }
        command.args(["-E", &extended]).arg(image);
        tools::stdout_of(&mut command)?;
        Ok(())
    }

    /// Makes both and compares; ours must also pass e2fsck.
    pub(crate) fn check(&self) -> Result<()> {
        match self.outcome(Limits::NONE)? {
            Outcome::Checked => Ok(()),
            other => bail!("{other:?}"),
        }
    }

    /// Has both programs make it. What both make must be equal, and up to `limits` e2fsck must
    /// find nothing in ours; else both must refuse.
    pub(crate) fn outcome(&self, limits: Limits) -> Result<Outcome> {
        let folder = scratch::folder()?;
        let (ours, theirs) = (folder.path().join("ours"), folder.path().join("theirs"));
        let made = self.make_with_mke2fs(&theirs);
        let layout = match (self.make(&ours), made) {
            (Ok(layout), Ok(())) => layout,
            (Err(_), Err(_)) => return Ok(Outcome::Refused),
            (Err(error), Ok(())) | (Ok(_), Err(error)) => return Err(error),
        };
        let differing = compare(&ours, &theirs, &layout)?;
        let checks = limits.allow(layout.superblock());
        if checks {
            ensure_clean(&ours).with_context(|| differing.clone())?;
        }
        if !differing.is_empty() {
            bail!("{differing}");
        }
        Ok(if checks {
            Outcome::Checked
        } else {
            Outcome::Equal
        })
    }
}

/// Checks an image with e2fsck.
fn ensure_clean(image: &Path) -> Result<()> {
    let fsck = oracle::e2fsck(image)?;
    ensure!(fsck.is_clean(), "e2fsck: {fsck:?}");
    Ok(())
}

/// What only some tests do.
impl Case<'_> {
    /// The kernel writes files, directories and attributes; e2fsck checks what comes out.
    pub(crate) fn mount_and_fill(&self) -> Result<()> {
        let folder = scratch::folder()?;
        let image = folder.path().join("image");
        self.make(&image)?;
        let mount = KernelMount::new(&image, Access::ReadWrite, "")?;
        for directory in 0..20 {
            let directory = mount.path().join(format!("directory {directory}"));
            std::fs::create_dir(&directory)?;
            for file in 0..20 {
                std::fs::write(directory.join(format!("file {file}")), vec![7; file * 700])?;
            }
        }
        std::fs::write(mount.path().join("large"), vec![1; 3 << 20])?;
        std::fs::remove_dir_all(mount.path().join("directory 7"))?;
        std::fs::write(mount.path().join("lost+found/found"), "again")?;
        mount.unmount()?;
        ensure_clean(&image)
    }

    /// Over bytes that mean nothing, of which none may be taken for metadata.
    pub(crate) fn over_noise(&self) -> Result<()> {
        let folder = scratch::folder()?;
        let image = folder.path().join("image");
        std::fs::write(&image, vec![0xa5; usize::try_from(self.size_bytes())?])?;
        let options = Options {
            old_content: OldContent::Unknown,
            discard: Some(Choice::No),
            ..self.options()?
        };
        let layout = Layout::new(&options, &Profile::system()?, self.size_bytes())?;
        layout.write(&open_path(&image, DeviceOptions::read_write())?)?;
        ensure_clean(&image)
    }

    /// Over an older file system, with a crash after each event that loses what was not
    /// durable, or keeps it: the old superblock is there with all that belongs to it, or none,
    /// or the new one with all that belongs to it.
    pub(crate) fn cut_everywhere(&self) -> Result<()> {
        let len_bytes = self.size_bytes();
        let old_uuid = [9; 16];
        let old = Options {
            uuid: Some(uuid::Uuid::from_bytes(old_uuid)),
            old_content: OldContent::AllZero,
            ..self.options()?
        };
        let base = Arc::new(RamDevice::new(len_bytes));
        let profile = Profile::upstream();
        Layout::new(&old, &profile, len_bytes)?.write(&base)?;
        if find_signature(&base)?.is_none() {
            bail!("the old file system is not recognised");
        }
        let new = Options {
            old_content: OldContent::Unknown,
            discard: Some(Choice::No),
            ..self.options()?
        };
        let device = RecordingDevice::new(base.clone());
        Layout::new(&new, &profile, len_bytes)?.write(&device)?;
        let whole = content(&device.as_of(device.cuts())?)?;
        let before = content(&*base)?;
        let flushes = device
            .events()
            .iter()
            .filter(|event| event.is_flush())
            .count();
        if flushes < 3 {
            bail!("{flushes} flushes cannot separate wiping, content and superblock");
        }
        let mut seen = [0; 3];
        for cut in 0..=device.cuts() {
            for fate in [Survival::Kept, Survival::Lost] {
                let crashed = device.crashed(cut, |_, _| fate)?;
                let bytes = content(&crashed)?;
                let found = RawSuperblock::from_bytes(&bytes[1024..])?;
                let expected = match Superblock::try_from(found) {
                    Err(_) => {
                        seen[1] += 1;
                        continue;
                    }
                    Ok(_) if found.s_uuid == old_uuid => {
                        seen[0] += 1;
                        &before
                    }
                    Ok(_) => {
                        seen[2] += 1;
                        &whole
                    }
                };
                if bytes != *expected {
                    bail!("half a file system after {cut} events ({fate:?})");
                }
            }
        }
        if seen.contains(&0) {
            bail!("old, none and new were seen {seen:?} times");
        }
        Ok(())
    }
}

/// All bytes of a device.
fn content(device: &impl BlockDevice) -> Result<Vec<u8>> {
    let mut bytes = vec![0; usize::try_from(device.len_bytes())?];
    device.read_at(&mut bytes, 0)?;
    Ok(bytes)
}

/// Checks all cases and panics with those that failed.
pub(crate) fn assert_all_equal_mke2fs(cases: &[Case<'_>]) {
    let mut failures = String::new();
    for case in cases {
        if let Err(error) = case.check() {
            failures += &format!("{} {}\n    {error:#}\n", case.size, case.arguments);
        }
    }
    assert!(failures.is_empty(), "\n{failures}");
}

/// Where two images differ, apart from what may.
fn compare(ours: &Path, theirs: &Path, layout: &Layout) -> Result<String> {
    let (a, b) = (File::open(ours)?, File::open(theirs)?);
    if a.metadata()?.len() != b.metadata()?.len() {
        bail!("different lengths");
    }
    let geometry = layout.superblock().geometry();
    let bits = geometry.block_size().bits();
    let mut supers: Vec<u64> = layout.backups().map(|block| block.0 << bits).collect();
    supers.push(1024);
    let mmp = layout.superblock().mmp_block().map(|block| block.0 << bits);
    let mut ranges = data_ranges(&a)?;
    ranges.extend(data_ranges(&b)?);
    ranges.sort_unstable_by_key(|range| range.start);
    let mut found = String::new();
    let mut count = 0;
    let mut done = 0;
    for range in ranges {
        let mut at = range.start.max(done);
        while at < range.end {
            let length = usize::try_from((range.end - at).min(1 << 20))?;
            let (mut left, mut right) = (vec![0; length], vec![0; length]);
            a.read_exact_at(&mut left, at)?;
            b.read_exact_at(&mut right, at)?;
            if left != right {
                for bytes in [&mut left, &mut right] {
                    forgive(bytes, at, &supers, mmp);
                }
                for (index, (x, y)) in left.iter().zip(&right).enumerate() {
                    if x != y {
                        count += 1;
                        if count <= 12 {
                            let byte = at + index as u64;
                            let block = byte >> bits;
                            let within = byte - (block << bits);
                            found += &format!(
                                "block {block} byte {within:#x}: {x:#04x}, mke2fs {y:#04x}; "
                            );
                        }
                    }
                }
            }
            at += length as u64;
        }
        done = done.max(range.end);
    }
    if count > 0 {
        found += &format!("{count} bytes differ");
    }
    Ok(found)
}

/// Zeroes what may differ: bytes written in superblocks and their checksum; time and names of
/// the MMP block.
fn forgive(bytes: &mut [u8], at: u64, supers: &[u64], mmp: Option<u64>) {
    let mut zero = |range: Range<u64>| {
        for byte in range {
            let index = byte
                .checked_sub(at)
                .and_then(|index| usize::try_from(index).ok());
            if let Some(place) = index.and_then(|index| bytes.get_mut(index)) {
                *place = 0;
            }
        }
    };
    for start in supers {
        zero(start + 0x178..start + 0x180);
        zero(start + 0x3fc..start + 0x400);
    }
    if let Some(start) = mmp {
        zero(start + 8..start + 0x70);
        zero(start + 0x3fc..start + 0x400);
    }
}

/// Where a sparse file has data.
fn data_ranges(file: &File) -> Result<Vec<Range<u64>>> {
    let mut ranges = Vec::new();
    let mut at = 0;
    while let Ok(start) = rustix::fs::seek(file, SeekFrom::Data(at)) {
        let end = rustix::fs::seek(file, SeekFrom::Hole(start))?;
        ranges.push(start..end);
        at = end;
    }
    Ok(ranges)
}
