//! **Purpose.** Runs one round: makes a file system, lets threads work on it for a while, and
//! judges the results and the state that is left.

use std::any::Any;
use std::io::Write as _;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use anyhow::{Context as _, Result, anyhow, bail, ensure};
use fourscore::{Fs, OpenOptions};
use fourscore_block::{BlockDevice, RamDevice};
use fourscore_sync::{Arc, thread};
use fourscore_testkit::explore::Rng;
use fourscore_testkit::explore::rng::mix;
use fourscore_testkit::mount::{Access, KernelMount};
use fourscore_testkit::{oracle, scratch, tools};
use tempfile::TempDir;

use super::call::{Call, Event, Kind, Outcome, Place};
use super::in_process::InProcess;
use super::injected::InjectedFault;
use super::judge::{Context, Size, final_blocks, judge};
use super::mounted::{Mounted, Tree};
use super::shape::{Format, Shape};
use super::shared::Shared;
use super::target::{Answer, Target};
use super::tree;
use super::worker::Worker;
use crate::sound::check_clean;

/// The time for which the threads of a round work.
const SPAN: Duration = Duration::from_millis(1500);
/// e2fsck checks one image of this many.
const E2FSCK_ONE_IN: u64 = 8;

/// The kernel's ext4 reads one of this many images that were mounted.
const MIRROR_ONE_IN: u64 = 2;

/// How the threads reach the file system.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Through {
    /// Through calls of the library.
    Library,
    /// Through system calls on a mount.
    Mount,
}

/// What a round is.
#[derive(Clone, Copy)]
pub(super) struct Setup<'s> {
    pub(super) seed: u64,
    pub(super) shape: &'s Shape,
    pub(super) through: Through,
    pub(super) injected: InjectedFault,
}

/// Runs a round, and returns the number of calls that were judged.
///
/// # Errors
/// The first failure; the image is saved in `findings`.
pub(super) fn run(setup: &Setup<'_>, findings: &Path) -> Result<usize> {
    let ram = setup.shape.make().context("making the file system")?;
    let outcome = on_device(setup, &ram);
    outcome.map_err(|error| match keep(&ram, setup.seed, findings) {
        Ok(image) => error.context(format!("the image is {image}")),
        Err(why) => error.context(format!("the image was not kept: {why:#}")),
    })
}

fn on_device(setup: &Setup<'_>, ram: &Arc<RamDevice>) -> Result<usize> {
    let Setup {
        seed,
        shape,
        through,
        injected,
    } = *setup;
    let slow = shape.device(Arc::clone(ram));
    let mounted = shape.mount(Arc::clone(&slow), injected);
    let fs = mounted.context("mounting")?;
    let size = size(&fs);
    let is_over = || slow.hurry();
    let (calls, tree) = match through {
        Through::Library => {
            let target = InProcess {
                fs: Arc::clone(&fs),
            };
            (work(target, setup, size, is_over)?, None)
        }
        Through::Mount => {
            let mounted = Mounted::new(&fs, shape.cache())?;
            let calls = work(mounted.target()?, setup, size, is_over)?;
            let tree = mounted.tree().context("the tree through the mount")?;
            mounted.end()?;
            (calls, Some(tree))
        }
    };
    fs.sync().context("after all calls")?;
    tree::check(&fs).context("the tree")?;
    fs.unmount().context("unmounting")?;
    let device: Arc<dyn BlockDevice> = Arc::clone(ram) as _;
    let fs = Fs::open(Arc::clone(&device), &OpenOptions::new())?;
    let noted = fs.superblock().error_count();
    ensure!(noted == 0, "the superblock counts {noted} errors");
    let (blocks, least) = (fs.geometry().blocks().0, final_blocks(size.blocks, &calls));
    ensure!(
        blocks >= least,
        "it has {blocks} blocks, and had {least} before it was unmounted"
    );
    tree::check(&fs).context("the tree, opened again")?;
    drop(fs);
    check_clean(device)?;
    if let Some(tree) = tree.filter(|_| seed.is_multiple_of(MIRROR_ONE_IN)) {
        let (_folder, image) = image_of(ram)?;
        let mirror = KernelMount::new(&image, Access::ReadOnly, "")?;
        tree.check_is(&Tree::read(mirror.path())?)?;
        mirror.unmount()?;
    }
    if seed.is_multiple_of(E2FSCK_ONE_IN) && tools::find("e2fsck").is_some() {
        let (_folder, image) = image_of(ram)?;
        let theirs = oracle::e2fsck(&image)?;
        ensure!(theirs.is_clean(), "e2fsck -fn: {}", theirs.output);
    }
    Ok(calls.len())
}

/// The size of a file system.
fn size(fs: &Fs) -> Size {
    let geometry = fs.geometry();
    Size {
        blocks: geometry.blocks().0,
        group_blocks: geometry.blocks_per_group().into(),
    }
}

/// Lets threads work on a file system, calls `is_over` when they have ended, reads everything
/// again, and judges all results.
pub(super) fn work<T: Target>(
    target: T,
    setup: &Setup<'_>,
    size: Size,
    is_over: impl FnOnce(),
) -> Result<Vec<Event>> {
    let Setup { seed, shape, .. } = *setup;
    let (shared, made) = failed_as_error(Shared::new(target, *shape, size.group_blocks))
        .context("creating the permanent directories")?;
    let until = Instant::now() + SPAN;
    let mut events: Vec<Event> = made
        .into_iter()
        .map(|(at, number)| made_before(at, number))
        .collect();
    thread::scope(|scope| -> Result<()> {
        let shared = &shared;
        let start = |number: usize| {
            let random = Rng::new(mix(seed << 8 ^ number as u64));
            scope.spawn(move || Worker::new(shared, number, random).work(until))
        };
        let threads: Vec<_> = (1..=shape.threads).map(start).collect();
        for thread in threads {
            match thread.join() {
                Ok(noted) => events.extend(noted),
                Err(panic) => bail!("a thread panicked: {}", panic_message(&*panic)),
            }
        }
        Ok(())
    })?;
    is_over();
    events.extend(Worker::new(&shared, 0, Rng::new(mix(seed))).read_all());
    events.sort_unstable_by_key(|event| event.begin);
    let context = Context {
        permanent: shared
            .permanent
            .iter()
            .map(|permanent| permanent.number)
            .collect(),
        has_links: shape.has_links,
        free_inodes: shape.free_inodes(),
        has_page_cache: T::HAS_PAGE_CACHE,
        pointers: shape.format == Format::Pointers,
        first_size: size,
        device_blocks: shape.device_blocks(),
        spacious_blocks: shape.spacious_blocks(),
    };
    drop(shared);
    judge(&context, &events).map_err(|wrong| anyhow!("{wrong}"))?;
    Ok(events)
}

/// The message of a panic.
fn panic_message(panic: &(dyn Any + Send)) -> &str {
    let text = panic.downcast_ref::<String>().map(String::as_str);
    let text = text.or(panic.downcast_ref::<&str>().copied());
    text.unwrap_or("no message")
}

fn failed_as_error<T>(answer: Answer<T>) -> Result<T> {
    answer.map_err(|failure| anyhow!("{} ({})", failure.text, failure.errno))
}

/// The creation of a name before the round began.
fn made_before(at: Place, number: u64) -> Event {
    Event {
        begin: 0,
        end: 0,
        thread: 0,
        call: Call::Make(Kind::File, at),
        outcome: Outcome::Number(number),
    }
}

/// The device as a file, which is deleted with its folder.
fn image_of(ram: &RamDevice) -> Result<(TempDir, PathBuf)> {
    let folder = scratch::folder()?;
    let image = folder.path().join("image");
    write_image(ram, &image)?;
    Ok((folder, image))
}

fn write_image(ram: &RamDevice, image: &Path) -> Result<()> {
    const PIECE: u64 = 1 << 20;
    let mut file = std::fs::File::create(image)?;
    let mut at = 0;
    let mut bytes = vec![0; 1 << 20];
    while at < ram.len_bytes() {
        let len = PIECE.min(ram.len_bytes() - at);
        let piece = &mut bytes[..usize::try_from(len)?];
        ram.read_at(piece, at)?;
        file.write_all(piece)?;
        at += len;
    }
    Ok(())
}

fn keep(ram: &RamDevice, seed: u64, findings: &Path) -> Result<String> {
    std::fs::create_dir_all(findings)?;
    let image = findings.join(format!("concurrent-{seed}.image"));
    write_image(ram, &image)?;
    Ok(image.display().to_string())
}
