//! **Purpose.** One round: a new file system, threads that work on it for a while, and everything
//! that is judged then.

use std::any::Any;
use std::io::Write as _;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use anyhow::{Context as _, Result, anyhow, bail, ensure};
use fourscore::block::{BlockDevice, RamDevice};
use fourscore::{Arc, Fs, OpenOptions};
use fourscore_sync::thread;
use fourscore_testkit::explore::Rng;
use fourscore_testkit::explore::rng::mix;
use fourscore_testkit::mount::{Access, KernelMount};
use fourscore_testkit::{oracle, scratch, tools};
use tempfile::TempDir;

use super::call::{Call, Event, Kind, Outcome, Place};
use super::in_process::InProcess;
use super::injected::InjectedFault;
use super::judge::{Context, judge};
use super::mounted::{Mounted, Tree};
use super::shape::{Format, Shape};
use super::shared::Shared;
use super::target::{Answer, Target};
use super::tree;
use super::worker::Worker;
use crate::sound::check_clean;

/// How long the threads of a round work.
const SPAN: Duration = Duration::from_millis(1500);
/// e2fsck looks at one image of so many.
const E2FSCK_ONE_IN: u64 = 8;

/// The kernel's ext4 looks at one image of so many that were mounted.
const MIRROR_ONE_IN: u64 = 2;

/// How the threads reach the file system.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Through {
    /// By calls of the library.
    Library,
    /// By system calls, through a mount.
    Mount,
}

/// A round: gives the number of calls that were judged.
///
/// # Errors
/// What is wrong; the image is kept at `findings` then.
pub(super) fn run(
    seed: u64,
    shape: &Shape,
    (through, injected): (Through, InjectedFault),
    findings: &Path,
) -> Result<usize> {
    let ram = shape.make().context("making the file system")?;
    let outcome = on_device((seed, shape), (through, injected), &ram);
    outcome.map_err(|error| match keep(&ram, seed, findings) {
        Ok(image) => error.context(format!("the image is {image}")),
        Err(why) => error.context(format!("the image was not kept: {why:#}")),
    })
}

fn on_device(
    (seed, shape): (u64, &Shape),
    (through, injected): (Through, InjectedFault),
    ram: &Arc<RamDevice>,
) -> Result<usize> {
    let slow = shape.device(Arc::clone(ram));
    let mounted = shape.mount(Arc::clone(&slow), injected);
    let fs = mounted.context("mounting")?;
    let is_over = || slow.hurry();
    let (calls, tree) = match through {
        Through::Library => {
            let target = InProcess {
                fs: Arc::clone(&fs),
            };
            (work(target, shape, seed, is_over)?.len(), None)
        }
        Through::Mount => {
            let mounted = Mounted::new(&fs, shape.cache())?;
            let calls = work(mounted.target()?, shape, seed, is_over)?.len();
            let tree = mounted.tree().context("the tree through the mount")?;
            mounted.end()?;
            (calls, Some(tree))
        }
    };
    fs.sync().context("when all was done")?;
    tree::check(&fs).context("the tree")?;
    fs.unmount().context("unmounting")?;
    let device: Arc<dyn BlockDevice> = Arc::clone(ram) as _;
    let fs = Fs::open(Arc::clone(&device), &OpenOptions::new())?;
    let noted = fs.superblock().error_count();
    ensure!(noted == 0, "{noted} errors were noted");
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
    Ok(calls)
}

/// Has threads work on a file system, looks at what they leave when `is_over` was told that they
/// have ended, and judges all of it.
pub(super) fn work<T: Target>(
    target: T,
    shape: &Shape,
    seed: u64,
    is_over: impl FnOnce(),
) -> Result<Vec<Event>> {
    let (shared, made) = told(Shared::new(target, *shape)).context("making what lasts")?;
    let until = Instant::now() + SPAN;
    let mut events: Vec<Event> = made.into_iter().map(made_before).collect();
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
                Err(panic) => bail!("a thread panicked: {}", said(&*panic)),
            }
        }
        Ok(())
    })?;
    is_over();
    events.extend(Worker::new(&shared, 0, Rng::new(mix(seed))).look());
    events.sort_unstable_by_key(|event| event.begin);
    let context = Context {
        lasting: shared
            .lasting
            .iter()
            .map(|lasting| lasting.number)
            .collect(),
        has_links: shape.has_links,
        free_inodes: shape.free_inodes(),
        tiny_caches: shape.has_tiny_caches(),
        kernel_keeps_sizes: T::KERNEL_KEEPS_SIZES,
        pointers: shape.format == Format::Pointers,
    };
    drop(shared);
    judge(&context, &events).map_err(|wrong| anyhow!("{wrong}"))?;
    Ok(events)
}

/// What a panic says.
fn said(panic: &(dyn Any + Send)) -> &str {
    let text = panic.downcast_ref::<String>().map(String::as_str);
    let text = text.or(panic.downcast_ref::<&str>().copied());
    text.unwrap_or("without a word")
}

fn told<T>(answer: Answer<T>) -> Result<T> {
    answer.map_err(|failure| anyhow!("{} ({})", failure.text, failure.errno))
}

/// A name that was there when the round began.
fn made_before((at, number): (Place, u64)) -> Event {
    Event {
        begin: 0,
        end: 0,
        thread: 0,
        call: Call::Make(Kind::File, at),
        outcome: Outcome::Number(number),
    }
}

/// The device as a file, which goes with its folder.
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
