//! **Purpose.** The process that is killed (a *life*): it mounts the image, works on it with many
//! threads, unmounts it, and repeats that until it kills itself or has done its rounds.
//!
//! **Locking.** Threads share only the file system and the notes. The first thread that finds a
//! failure ends the process at once, so that a later kill does not hide it.

use std::panic;
use std::path::{Path, PathBuf};
use std::process::exit;
use std::time::Duration;

use anyhow::{Context, Result};
use fourscore::{Fs, InodeNr};
use fourscore_block::{DeviceOptions, open_path};
use fourscore_sync::{Arc, thread};
use fourscore_testkit::explore::Rng;
use fourscore_testkit::explore::rng::mix;
use rustix::process::{Signal, getpid, kill_process};

use super::care::{Caretaker, Fills, clear};
use super::shape::mount_options;
use super::vault::{Keeper, Notes, prepare};
use super::wild::Wild;
use crate::BY_ROOT;
use crate::model::{Model, Pair, Rules};

/// Threads that keep files in the vault.
const KEEPERS: usize = 2;
/// Threads that work on shared names.
const WILD: usize = 2;
/// Threads with a tree and a model of their own, in rounds in which the file system is not filled.
const EXACT: usize = 2;
/// Calls of a thread in one round.
const CALLS: u64 = 600;
/// The number of calls after which a thread notes them.
const NOTED_CALLS: u64 = 10;
/// The offset up to which an exact thread writes, in bytes: its files are read completely.
const FAR_BYTES: u64 = 1_000_000;
/// More versions than a keeper creates in a life.
const VERSIONS: u64 = 1 << 32;
/// The exit code of the process after a failure.
const WRONG: i32 = 1;

/// A life.
#[derive(Clone, Debug)]
pub struct Life {
    /// The image.
    pub image: PathBuf,
    /// Where keepers note what is durable.
    pub notes: PathBuf,
    /// The seed of everything except the moment of the kill.
    pub seed: u64,
    /// The number of the life on this image; versions of files grow with it.
    pub number: u64,
    /// The time until the process kills itself; without it, it ends after its rounds.
    pub until_death: Option<Duration>,
    /// How often it mounts the image.
    pub rounds: u64,
}

/// State that the threads of a round share.
struct Round<'a> {
    fs: &'a Arc<Fs>,
    notes: &'a Notes,
    seed: u64,
    first_version: u64,
    fills: Fills,
}

impl Life {
    /// Runs the life. If it is to be killed, this does not return, unless mount or unmount fails
    /// first.
    ///
    /// # Errors
    /// Errors of mount and unmount. If a thread finds a failure, or any thread panics, the process
    /// ends at once.
    pub fn live(&self) -> Result<()> {
        panic::set_hook(Box::new(|panic| {
            eprintln!("{panic}");
            exit(WRONG);
        }));
        if let Some(span) = self.until_death {
            thread::spawn(move || {
                thread::sleep(span);
                // This ends the process.
                let _died = kill_process(getpid(), Signal::KILL);
            });
        }
        let notes = Notes::open(&self.notes)?;
        for round in 0..self.rounds {
            let random = &mut Rng::new(mix(self.seed ^ round << 40));
            let (options, words) = mount_options(random)?;
            let fs = mount(&self.image, &options).with_context(|| words.clone())?;
            clear(&fs).with_context(|| words.clone())?;
            prepare(&fs).with_context(|| words.clone())?;
            let fills = *random.pick(&[Fills::No, Fills::No, Fills::Yes]);
            let round = Round {
                fs: &fs,
                notes: &notes,
                seed: random.bits(),
                first_version: self.number * VERSIONS + (round << 24),
                fills,
            };
            round.work(&words);
            fs.unmount().context("unmount")?;
        }
        Ok(())
    }
}

fn mount(image: &Path, options: &fourscore::MountOptions) -> Result<Arc<Fs>> {
    let device = open_path(image, DeviceOptions::read_write())?;
    Ok(Fs::mount(Arc::new(device), options)?)
}

impl Round<'_> {
    /// Runs all threads of the round.
    fn work(&self, words: &str) {
        let end = |what: &str, result: Result<()>| {
            if let Err(error) = result {
                eprintln!("mounted with {words}: {what}: {error:#}");
                exit(WRONG);
            }
        };
        thread::scope(|scope| {
            scope.spawn(|| end("the caretaker", self.care()));
            for keeper in 0..KEEPERS {
                scope.spawn(move || end("a keeper", self.keep(keeper)));
            }
            for wild in 0..WILD {
                scope.spawn(move || end("a wild thread", self.run_wild(wild)));
            }
            if self.fills == Fills::No {
                for exact in 0..EXACT {
                    scope.spawn(move || end("an exact thread", self.be_exact(exact)));
                }
            }
        });
    }

    fn random(&self, role: u64, thread: usize) -> Rng {
        Rng::new(mix(self.seed ^ role << 32 ^ thread as u64))
    }

    /// Does a step `count` times, and notes the number of calls.
    fn times(&self, count: u64, mut step: impl FnMut() -> Result<()>) -> Result<()> {
        for nth in 1..=count {
            step()?;
            if nth % NOTED_CALLS == 0 {
                self.notes.calls(NOTED_CALLS)?;
            }
        }
        Ok(())
    }

    fn care(&self) -> Result<()> {
        let mut caretaker = Caretaker::new(self.fs, self.fills, self.random(1, 0));
        self.times(CALLS / 10, || caretaker.step())
    }

    fn keep(&self, keeper: usize) -> Result<()> {
        let random = self.random(2, keeper);
        let version = self.first_version;
        let mut keeper = Keeper::new(self.fs, self.notes, keeper, version, random)?;
        // A version needs several calls and a commit.
        self.times(CALLS / 10, || keeper.step().map(drop))
    }

    fn run_wild(&self, thread: usize) -> Result<()> {
        let mut wild = Wild::new(self.fs, self.random(3, thread))?;
        self.times(CALLS, || wild.step())?;
        wild.finish()
    }

    fn be_exact(&self, thread: usize) -> Result<()> {
        let name = format!("own {} {thread}", self.first_version);
        let dir = self.fs.mkdir(InodeNr::ROOT, name.as_bytes(), &BY_ROOT)?;
        let rules = Rules {
            far_bytes: FAR_BYTES,
            ..Rules::of(self.fs)
        };
        let mut pair = Pair::resume(Arc::clone(self.fs), dir, Model::new(rules, 2));
        let random = &mut self.random(4, thread);
        self.times(CALLS, || {
            pair.step(random.bits());
            Ok(())
        })?;
        pair.compare(dir);
        let _model = pair.finish();
        Ok(())
    }
}
