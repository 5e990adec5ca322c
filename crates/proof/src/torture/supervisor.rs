//! **Purpose.** Lives one after the other on one image, and what is looked at in between.
//!
//! **Model.** After each life the image is checked as it lies there, a copy of it is kept, it is
//! recovered by somebody, checked again by us and by e2fsck, and the vault is judged. What was
//! recovered is what the next life begins with. After some lives a new image of another kind is
//! made.

use std::fs;
use std::os::unix::process::ExitStatusExt;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail, ensure};
use fourscore::block::{DeviceOptions, open_path};
use fourscore::{Arc, Fs, MountOptions, OpenOptions};
use fourscore_sync::thread;
use fourscore_testkit::explore::Rng;
use fourscore_testkit::explore::rng::mix;
use fourscore_testkit::image::Image;
use fourscore_testkit::mount::{Access, KernelMount};
use fourscore_testkit::oracle::{e2fsck, e2fsck_repair};
use fourscore_testkit::tools;

use super::shape;
use super::vault::Ledger;
use crate::sound::check_clean;

/// Lives on one image.
const LIVES: u64 = 6;
/// How long a life lasts at least and at most, in milliseconds; short ones are as likely as long.
const LIFE_MILLIS: (f64, f64) = (15.0, 4000.0);
/// Of so many lives one ends by itself.
const ENDS_ONE_IN: usize = 6;
/// How long one may take to end: much more than on the busiest of machines.
const PATIENCE: Duration = Duration::from_secs(600);
/// How often the supervisor looks whether a life is over.
const LOOK_INTERVAL: Duration = Duration::from_millis(5);
const KILLED: i32 = 9;

/// What to do.
#[derive(Clone, Debug)]
pub struct Torture {
    /// What decides everything but when things happen.
    pub seed: u64,
    /// How long it goes on.
    pub span: Duration,
    /// Where an image is kept with which something is wrong.
    pub findings: PathBuf,
    /// The program that lives, and is given what a [`Life`](super::Life) is.
    pub program: PathBuf,
}

/// What was done.
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
    /// Calls that were noted; a few at the end of each life were not.
    pub calls: u64,
    /// Versions of files in the vault that were synced.
    pub synced: u64,
    /// Files of the vault that were held against the notes.
    pub judged: u64,
}

/// Who recovers an image.
#[derive(Clone, Copy, Debug)]
enum Healer {
    Ours,
    E2fsck,
    Kernel,
}

/// An image with its past.
struct Subject {
    image: Image,
    notes: PathBuf,
    ledger: Ledger,
}

impl Torture {
    /// Goes on until the time is over.
    ///
    /// # Errors
    /// The first thing that is wrong; the image as the life left it is kept then.
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
                self.life(&mut subject, (nth, number), &mut tally)
                    .with_context(|| {
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

    /// One life, and what it leaves.
    fn life(&self, subject: &mut Subject, at: (u64, u64), tally: &mut Tally) -> Result<()> {
        let (nth, number) = at;
        let random = &mut Rng::new(mix(nth << 16 ^ number));
        let span = (!random.happens(1, ENDS_ONE_IN)).then(|| life_span(random));
        self.let_live(subject, number, random.bits(), span)?;
        tally.lives += 1;
        tally.killed += u64::from(span.is_some());
        let left = subject.image.copy()?;
        let healer = healer(random, nth);
        let outcome = aftermath(subject, healer, tally);
        outcome.map_err(|error| match self.keep(left.path(), at) {
            Ok(kept) => error.context(format!("{healer:?}; see {}", kept.display())),
            Err(why) => error.context(format!("{healer:?}; not kept: {why:#}")),
        })
    }

    /// Starts the program, and waits for its death, or its end.
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
        let mut child = command.spawn().context("the program that lives")?;
        let status = wait(&mut child)?;
        subject.ledger.read(&fs::read_to_string(&subject.notes)?)?;
        match span {
            Some(_) => ensure!(status.signal() == Some(KILLED), "the life ended: {status}"),
            None => ensure!(status.success(), "the life ended: {status}"),
        }
        Ok(())
    }

    /// Keeps an image.
    fn keep(&self, image: &Path, (nth, number): (u64, u64)) -> Result<PathBuf> {
        fs::create_dir_all(&self.findings)?;
        let kept = self.findings.join(format!("image-{nth}-life-{number}"));
        fs::copy(image, &kept)?;
        Ok(kept)
    }
}

/// Between the shortest and the longest, each tenth of the way as likely on a scale of logarithms.
fn life_span(random: &mut Rng) -> Duration {
    const STEPS: usize = 1000;
    let (least, most) = LIFE_MILLIS;
    let share = f64::from(u32::try_from(random.below(STEPS)).unwrap_or(0)) / 1000.0;
    Duration::from_secs_f64(least * (most / least).powf(share) / 1000.0)
}

/// Who recovers the `nth` image; others only where they can.
fn healer(random: &mut Rng, nth: u64) -> Healer {
    let healer = *random.pick(&[Healer::Ours, Healer::Ours, Healer::E2fsck, Healer::Kernel]);
    let asks_kernel = || tools::is_root() && shape::is_written_by_kernel(nth);
    match healer {
        Healer::Kernel if !asks_kernel() => Healer::Ours,
        Healer::E2fsck if !shape::is_recovered_by_e2fsck(nth) => Healer::Ours,
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
            bail!("a life does not end: its threads wait for each other");
        }
        thread::sleep(LOOK_INTERVAL);
    }
}

/// What is looked at after a life.
fn aftermath(subject: &mut Subject, healer: Healer, tally: &mut Tally) -> Result<()> {
    let image = subject.image.path();
    let is_dirty = assert_sound(image).context("as it was left")?;
    tally.recovered += u64::from(is_dirty);
    match healer {
        Healer::Ours => {
            let device = open_path(image, DeviceOptions::read_write())?;
            Fs::mount(Arc::new(device), &MountOptions::new())?.unmount()?;
        }
        Healer::E2fsck => drop(e2fsck_repair(image, &[])?),
        Healer::Kernel => KernelMount::new(image, Access::ReadWrite, "")?.unmount()?,
    }
    let is_dirty = assert_sound(image).context("recovered")?;
    ensure!(!is_dirty, "recovered, and has something to replay");
    let theirs = e2fsck(image)?;
    ensure!(theirs.is_clean(), "e2fsck -fn: {}", theirs.output);
    let device = open_path(image, DeviceOptions::default())?;
    let fs = Fs::open(Arc::new(device), &OpenOptions::new())?;
    subject.ledger.judge(&fs)
}

/// The checker finds nothing; whether it replayed a journal.
fn assert_sound(image: &Path) -> Result<bool> {
    let device = open_path(image, DeviceOptions::default())?;
    let report = check_clean(Arc::new(device))?;
    let mut replays = ["journal-replayed", "fast-commits-replayed"].iter();
    Ok(replays.any(|code| report.counts().contains_key(code)))
}
