//! **Purpose.** Runs lives one after the other on one image, and the checks in between.
//!
//! **Model.** After each life the image is checked as it is and copied. Then it is recovered by us,
//! by e2fsck or by the kernel, checked again by us and by e2fsck, and the vault is judged. The next
//! life begins with the recovered image. After some lives a new image with another format is made.

use std::fs;
use std::os::unix::process::ExitStatusExt;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail, ensure};
use fourscore::{Fs, MountOptions, OpenOptions};
use fourscore_block::{DeviceOptions, open_path};
use fourscore_sync::{Arc, thread};
use fourscore_testkit::explore::Rng;
use fourscore_testkit::explore::rng::mix;
use fourscore_testkit::image::Image;
use fourscore_testkit::mount::{Access, KernelMount};
use fourscore_testkit::oracle::{e2fsck, e2fsck_repair};
use fourscore_testkit::tools;

use super::shape;
use super::vault::Ledger;
use crate::sound::check_clean;

/// The number of lives on one image.
const LIVES: u64 = 6;
/// The shortest and the longest life, in milliseconds; the distribution is logarithmic.
const LIFE_MILLIS: (f64, f64) = (15.0, 4000.0);
/// One of this many lives ends by itself.
const ENDS_ONE_IN: usize = 6;
/// The longest time for a life: much longer than a busy machine needs.
const PATIENCE: Duration = Duration::from_secs(600);
/// The interval in which the supervisor checks whether a life is over.
const LOOK_INTERVAL: Duration = Duration::from_millis(5);
const KILLED: i32 = 9;

/// A run of the torture test.
#[derive(Clone, Debug)]
pub struct Torture {
    /// The seed of everything except timing.
    pub seed: u64,
    /// How long it runs.
    pub span: Duration,
    /// The folder for images that show a failure.
    pub findings: PathBuf,
    /// The program to run as a [`Life`](super::Life).
    pub program: PathBuf,
}

/// The results of a run.
#[derive(Clone, Copy, Debug, Default)]
pub struct Tally {
    /// Images that were made.
    pub images: u64,
    /// Lives.
    pub lives: u64,
    /// Of these, those that were killed.
    pub killed: u64,
    /// Of these, those whose journal had to be replayed.
    pub recovered: u64,
    /// Calls that were noted; the last calls of each life were not.
    pub calls: u64,
    /// Versions of files in the vault that were synced.
    pub synced: u64,
    /// Files of the vault that were compared with the notes.
    pub judged: u64,
}

/// What recovers an image.
#[derive(Clone, Copy, Debug)]
enum Recoverer {
    Library,
    E2fsck,
    Kernel,
}

/// The number of a life.
#[derive(Clone, Copy)]
struct LifeNr {
    /// The number of its image.
    image: u64,
    /// Its number on that image.
    number: u64,
}

/// An image with its notes.
struct Subject {
    image: Image,
    notes: PathBuf,
    ledger: Ledger,
}

impl Torture {
    /// Runs until the time is over.
    ///
    /// # Errors
    /// The first failure; the image as the life left it is saved.
    pub fn run(&self) -> Result<Tally> {
        let began = Instant::now();
        let mut tally = Tally::default();
        while began.elapsed() < self.span {
            let nth = self.seed + tally.images;
            let image = shape::image(nth)?;
            let mut subject = Subject {
                notes: image.folder().join("notes"),
                image,
                ledger: Ledger::default(),
            };
            for number in 0..LIVES {
                if began.elapsed() >= self.span {
                    break;
                }
                let at = LifeNr { image: nth, number };
                self.life(&mut subject, at, &mut tally).with_context(|| {
                    format!("image {nth} ({}), life {number}", shape::name(nth))
                })?;
            }
            tally.images += 1;
            tally.calls += subject.ledger.calls;
            tally.synced += subject.ledger.synced;
            tally.judged += subject.ledger.judged;
            println!(
                "image {nth} ({}): {tally:?}, {} s",
                shape::name(nth),
                began.elapsed().as_secs()
            );
        }
        Ok(tally)
    }

    /// Runs one life, and checks what it leaves.
    fn life(&self, subject: &mut Subject, at: LifeNr, tally: &mut Tally) -> Result<()> {
        let LifeNr { image: nth, number } = at;
        let random = &mut Rng::new(mix(nth << 16 ^ number));
        let span = (!random.happens(1, ENDS_ONE_IN)).then(|| life_span(random));
        self.let_live(subject, number, random.bits(), span)?;
        tally.lives += 1;
        tally.killed += u64::from(span.is_some());
        let left = subject.image.copy()?;
        let recoverer = recoverer(random, nth);
        let outcome = aftermath(subject, recoverer, tally);
        outcome.map_err(|error| match self.keep(left.path(), at) {
            Ok(kept) => error.context(format!("{recoverer:?}; see {}", kept.display())),
            Err(why) => error.context(format!("{recoverer:?}; not kept: {why:#}")),
        })
    }

    /// Starts the program, and waits for its end.
    fn let_live(
        &self,
        subject: &mut Subject,
        number: u64,
        seed: u64,
        span: Option<Duration>,
    ) -> Result<()> {
        fs::write(&subject.notes, "")?;
        let mut command = Command::new(&self.program);
        command
            .arg("live")
            .arg(subject.image.path())
            .arg(&subject.notes)
            .args([seed, number].map(|number| number.to_string()))
            .stdin(Stdio::null());
        if let Some(span) = span {
            command.arg(span.as_millis().to_string());
        }
        let mut child = command.spawn().context("the program of a life")?;
        let status = wait(&mut child)?;
        subject.ledger.read(&fs::read_to_string(&subject.notes)?)?;
        match span {
            Some(_) => ensure!(status.signal() == Some(KILLED), "the life ended: {status}"),
            None => ensure!(status.success(), "the life ended: {status}"),
        }
        Ok(())
    }

    /// Saves an image.
    fn keep(&self, image: &Path, at: LifeNr) -> Result<PathBuf> {
        let LifeNr { image: nth, number } = at;
        fs::create_dir_all(&self.findings)?;
        let kept = self.findings.join(format!("image-{nth}-life-{number}"));
        fs::copy(image, &kept)?;
        Ok(kept)
    }
}

/// A random length of a life, evenly distributed on a logarithmic scale.
fn life_span(random: &mut Rng) -> Duration {
    const STEPS: usize = 1000;
    let (least, most) = LIFE_MILLIS;
    let share = f64::from(u32::try_from(random.below(STEPS)).unwrap_or(0)) / 1000.0;
    Duration::from_secs_f64(least * (most / least).powf(share) / 1000.0)
}

/// What recovers the `nth` image; e2fsck and the kernel only where they can.
fn recoverer(random: &mut Rng, nth: u64) -> Recoverer {
    let recoverer = *random.pick(&[
        Recoverer::Library,
        Recoverer::Library,
        Recoverer::E2fsck,
        Recoverer::Kernel,
    ]);
    let can_kernel = || tools::is_root() && shape::is_written_by_kernel(nth);
    match recoverer {
        Recoverer::Kernel if !can_kernel() => Recoverer::Library,
        Recoverer::E2fsck if !shape::is_recovered_by_e2fsck(nth) => Recoverer::Library,
        other => other,
    }
}

fn wait(child: &mut Child) -> Result<std::process::ExitStatus> {
    let began = Instant::now();
    loop {
        if let Some(status) = child.try_wait()? {
            return Ok(status);
        }
        if began.elapsed() > PATIENCE {
            child.kill()?;
            child.wait()?;
            bail!("a life does not end: its threads are deadlocked");
        }
        thread::sleep(LOOK_INTERVAL);
    }
}

/// Recovers and checks the image after a life.
fn aftermath(subject: &mut Subject, recoverer: Recoverer, tally: &mut Tally) -> Result<()> {
    let image = subject.image.path();
    let is_dirty = assert_sound(image).context("as it was left")?;
    tally.recovered += u64::from(is_dirty);
    match recoverer {
        Recoverer::Library => {
            let device = open_path(image, DeviceOptions::read_write())?;
            Fs::mount(Arc::new(device), &MountOptions::new())?.unmount()?;
        }
        Recoverer::E2fsck => drop(e2fsck_repair(image, &[])?),
        Recoverer::Kernel => KernelMount::new(image, Access::ReadWrite, "")?.unmount()?,
    }
    let is_dirty = assert_sound(image).context("recovered")?;
    ensure!(!is_dirty, "the journal is not empty after the recovery");
    let theirs = e2fsck(image)?;
    ensure!(theirs.is_clean(), "e2fsck -fn: {}", theirs.output);
    let device = open_path(image, DeviceOptions::default())?;
    let fs = Fs::open(Arc::new(device), &OpenOptions::new())?;
    subject.ledger.judge(&fs)
}

/// Fails if the checker finds an error; returns whether it replayed a journal.
fn assert_sound(image: &Path) -> Result<bool> {
    let device = open_path(image, DeviceOptions::default())?;
    let report = check_clean(Arc::new(device))?;
    let mut replays = ["journal-replayed", "fast-commits-replayed"].iter();
    Ok(replays.any(|code| report.counts().contains_key(code)))
}
