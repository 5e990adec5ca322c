//! **Purpose.** A recorded history with its model: every crash state of it is recovered and
//! checked.

use std::path::Path;

use anyhow::{Context, Result, ensure};
use fourscore_block::{BlockDevice, FaultyDevice, RamDevice, RecordingDevice};
use fourscore_journal::{Journal, NoHook, Recovered, SealHook, recover, replay};
use fourscore_ondisk::{PhysBlock, Tid};
use fourscore_sync::Arc;
use serde::{Deserialize, Serialize};

use super::client::{Client, CountingHook};
use super::model::{Known, Model};
use super::on_image;
use super::place::Place;
use super::setup::{Breaking, Ending, Setup};
use crate::explore::rng::{Rng, mix};
use crate::explore::{self, Crash, CrashDisk, Effort, Failure, History};

/// One in so many states has its recovery cut as well.
const CUT_RECOVERIES: u64 = 97;
/// Transactions that fill most of the log of an image.
const LONG_WARM_UP: u32 = 42;
/// Random survivals for each cut of a recovery.
const RECOVERY_SAMPLES: usize = 4;

/// Which history.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Name {
    /// What everything was drawn from.
    pub seed: u64,
    /// How many crashes of this device came before.
    pub generation: u32,
}

/// A history and what may become of it.
#[derive(Debug)]
pub struct Session {
    name: Name,
    place: Place,
    history: History,
    model: Model,
    aborted: bool,
}

/// What was seen in the states of a session; generated input must be what it is meant to be.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Seen {
    /// Crash states.
    pub states: u64,
    /// States of recoveries that were cut.
    pub recovery_states: u64,
    /// States whose log was replayed.
    pub replayed: u64,
    /// ... with a copy left out because of a revoke record.
    pub revoked: u64,
    /// ... with a copy that was escaped.
    pub escaped: u64,
    /// ... that went around the end of the log.
    pub wrapped: u64,
    /// ... whose last transaction was torn.
    pub damaged: u64,
}

/// What is saved beside a history.
#[derive(Serialize, Deserialize)]
struct Beside {
    name: Name,
    model: Model,
    aborted: bool,
}

impl Session {
    /// Makes the first history of a seed.
    ///
    /// # Errors
    /// The journal fails although its device does not.
    pub fn record(seed: u64, breaking: Breaking) -> Result<Self> {
        let name = Name {
            seed,
            generation: 0,
        };
        let setup = Setup::of(seed, 0);
        let place = setup.place();
        let block_bytes = setup.block_size.bytes();
        let slots = place.slots.len();
        let model = Model::new(setup.first_tid, block_bytes, setup.metadata, slots);
        let bytes = place.format(setup.format, setup.first_tid, &model);
        Self::make((name, place), &setup, (&bytes, model), breaking)
    }

    /// Makes a history on a new ext4 image with `features` beside the usual ones, whose log it
    /// goes around.
    ///
    /// # Errors
    /// The image cannot be made, or the journal fails although its device does not.
    pub fn record_on_image(seed: u64, features: &[&str]) -> Result<Self> {
        let name = Name {
            seed,
            generation: 0,
        };
        let (image, place) = on_image::make(features)?;
        let bytes = std::fs::read(image.path())?;
        let (first_tid, found) = place.look(&bytes)?;
        let setup = Setup {
            warm_up: LONG_WARM_UP,
            has_hook: false,
            fault: None,
            block_size: place.block_size,
            ..Setup::of(seed, 0)
        };
        let model = Model::found(first_tid, setup.block_size.bytes(), &found);
        Self::make((name, place), &setup, (&bytes, model), None)
    }

    /// Makes the next history on what a crash and its recovery left.
    ///
    /// # Errors
    /// The journal fails although its device does not.
    pub fn go_on(&self, recovered: &[u8], breaking: Breaking) -> Result<Self> {
        let name = Name {
            generation: self.name.generation + 1,
            ..self.name
        };
        let setup = Setup::of(name.seed, name.generation);
        let (first_tid, found) = self.place.look(recovered)?;
        let model = Model::found(first_tid, setup.block_size.bytes(), &found);
        Self::make(
            (name, self.place.clone()),
            &setup,
            (recovered, model),
            breaking,
        )
    }

    fn make(
        (name, place): (Name, Place),
        setup: &Setup,
        (bytes, mut model): (&[u8], Model),
        breaking: Breaking,
    ) -> Result<Self> {
        let base = Arc::new(RamDevice::from_bytes(bytes));
        let recording = RecordingDevice::new(base.clone());
        let device = Arc::new(recording.yielding_in_flushes(setup.flush_yields));
        model.begin_later(setup.warm_up);
        let client = Client::new(&place, &device, model, setup.shared, setup.cache_bytes);
        let client = Arc::new(client);
        let hook: Arc<dyn SealHook> = if setup.has_hook {
            Arc::new(CountingHook(Arc::clone(&client)))
        } else {
            Arc::new(NoHook)
        };
        // The journal's device may break; the client's does not, so that readers go on.
        let faulty = Arc::new(FaultyDevice::new(device.clone()));
        let log = place.open(faulty.clone())?;
        let journal = Journal::open(log, faulty.clone(), hook, setup.options(breaking))?;
        client.warm_up(&journal, setup.warm_up)?;
        if let Some(fault) = setup.fault {
            faulty.add(fault.rule());
        }
        let mut rng = Rng::new(mix(name.seed ^ u64::from(name.generation) << 32));
        let load = (setup.threads, setup.operations);
        let outcome = client
            .run(&journal, load, &mut rng)
            .and_then(|()| end(setup.ending, journal, &client));
        let aborted = setup.fault.is_some() && outcome.as_ref().is_err_and(is_abort);
        if aborted {
            client.read_everything()?;
        } else {
            outcome.with_context(|| format!("{name:?}"))?;
        }
        Ok(Self {
            name,
            place,
            history: History::of(&device, &*base)?,
            model: client.model(),
            aborted,
        })
    }

    /// Which history this is.
    #[must_use]
    pub fn name(&self) -> Name {
        self.name
    }

    /// Whether the seed alone makes the same history again: one thread, nobody in the background.
    #[must_use]
    pub fn is_repeatable(&self) -> bool {
        Setup::of(self.name.seed, self.name.generation).threads == 1
    }

    /// How many transactions changed something.
    #[must_use]
    pub fn transactions(&self) -> u32 {
        self.model.transactions()
    }

    /// The recorded events.
    #[must_use]
    pub fn history(&self) -> &History {
        &self.history
    }

    /// Writes the session to a file, so that its states can be looked at again.
    ///
    /// # Errors
    /// The file cannot be written.
    pub fn save(&self, path: &Path) -> Result<()> {
        let beside = Beside {
            name: self.name,
            model: self.model.clone(),
            aborted: self.aborted,
        };
        self.history.save(path, &serde_json::to_vec(&beside)?)
    }

    /// Reads what [`Session::save`] wrote.
    ///
    /// # Errors
    /// The file cannot be read, or is not one.
    pub fn load(path: &Path) -> Result<Self> {
        let (history, beside) = History::load(path)?;
        let Beside {
            name,
            model,
            aborted,
        } = serde_json::from_slice(&beside)?;
        Ok(Self {
            name,
            place: Setup::of(name.seed, name.generation).place(),
            history,
            model,
            aborted,
        })
    }

    /// Whether the journal's device broke, and the journal was aborted for that.
    #[must_use]
    pub fn is_aborted(&self) -> bool {
        self.aborted
    }

    /// The effort with which this session's states are made: `samples` random ones for each cut.
    #[must_use]
    pub fn effort(&self, samples: usize, only: Option<u64>) -> Effort {
        Effort {
            seed: mix(self.name.seed),
            samples,
            block_bytes: self.place.block_size.bytes() as u64,
            only,
            whole: None,
        }
    }

    /// Recovers and checks every state. `keep` is shown each recovered disk.
    ///
    /// # Errors
    /// The first state that is not good.
    pub fn explore(
        &self,
        effort: Effort,
        mut keep: impl FnMut(Crash, &CrashDisk),
    ) -> Result<Seen, Box<Failure>> {
        let mut seen = Seen::default();
        let mut known = (usize::MAX, Known::default());
        let states = explore::explore(&self.history, effort, |crash, disk| {
            if known.0 != crash.cut {
                known = (crash.cut, self.model.known(&self.history.events, crash.cut));
            }
            let before = crash
                .number
                .is_multiple_of(CUT_RECOVERIES)
                .then(|| disk.bytes());
            let recovered = self.recover(disk)?;
            let blocks = self.place.read(&**disk)?;
            self.model.check(&known.1, &blocks)?;
            seen.note(&recovered);
            if let Some(before) = before {
                seen.recovery_states += self.cut_recovery(&before, &blocks)?;
            }
            keep(crash, disk);
            Ok(())
        })?;
        seen.states = states;
        Ok(seen)
    }

    /// Recovers `count` of the states, spread over the history, and shows each to `look`: the
    /// bytes before and after.
    ///
    /// # Errors
    /// A state is not good, or `look` says so.
    pub fn sample(&self, count: u64, mut look: impl FnMut(&Sample) -> Result<()>) -> Result<()> {
        let effort = self.effort(2, None);
        let all = explore::explore(&self.history, effort, |_, _| Ok(()))?;
        let first = all / 3;
        let step = ((all - first) / count).max(1);
        explore::explore(&self.history, effort, |crash, disk| {
            if crash.number < first || !(crash.number - first).is_multiple_of(step) {
                return Ok(());
            }
            let before = disk.bytes();
            let replayed = self.recover(disk)?;
            let known = self.model.known(&self.history.events, crash.cut);
            self.model.check(&known, &self.place.read(&**disk)?)?;
            look(&Sample {
                before,
                after: disk.bytes(),
                recovered: replayed.recovered,
                wrapped: replayed.wrapped,
            })
        })?;
        Ok(())
    }

    /// Blocks in which `ours` and `theirs`, two devices, differ, without those of the journal.
    #[must_use]
    pub fn differences(&self, ours: &[u8], theirs: &[u8]) -> Vec<PhysBlock> {
        let block_bytes = self.place.block_size.bytes();
        let blocks = ours.chunks(block_bytes).zip(theirs.chunks(block_bytes));
        let differ = (0..)
            .zip(blocks)
            .filter(|(_, (ours, theirs))| ours != theirs);
        let blocks = differ.map(|(block, _)| PhysBlock(block));
        blocks
            .filter(|&block| !self.place.is_of_the_journal(block))
            .collect()
    }

    /// The blocks that the client works on.
    #[must_use]
    pub fn blocks(&self) -> &[PhysBlock] {
        &self.place.slots
    }

    /// Recovers the device as a writable mount does, and makes sure that nothing is left to do.
    fn recover(&self, device: &Arc<impl BlockDevice + 'static>) -> Result<Replayed> {
        let mut log = self.place.open(device.clone()).context("opening the log")?;
        let recovered = recover(&log, self.place.blocks).context("recovery")?;
        let start = log.superblock().start();
        replay(&mut log, &recovered, device).context("replay")?;
        let again = self.place.open(device.clone())?;
        ensure!(again.superblock().start().is_none(), "the log is not empty");
        Ok(Replayed {
            wrapped: start.is_some_and(|start| recovered.head() < start),
            recovered,
        })
    }

    /// Cuts the recovery of the device `before` everywhere and makes it again: the blocks must be
    /// `expected` each time.
    fn cut_recovery(&self, before: &[u8], expected: &[u8]) -> Result<u64> {
        let base = Arc::new(RamDevice::from_bytes(before));
        let device = Arc::new(RecordingDevice::new(base.clone()));
        self.recover(&device)?;
        let history = History::of(&device, &*base)?;
        let effort = self.effort(RECOVERY_SAMPLES, None);
        let states = explore::explore(&history, effort, |_, disk| {
            self.recover(disk)?;
            ensure!(
                self.place.read(&**disk)? == expected,
                "a recovery that was cut gives something else than one that was not"
            );
            Ok(())
        });
        states.context("a cut recovery")
    }
}

/// Ends the use of the journal.
fn end(ending: Ending, journal: Journal, client: &Client) -> Result<()> {
    if ending == Ending::Closed {
        let last = journal.running_tid();
        journal.close()?;
        client.acknowledged(Tid(last.0.wrapping_sub(1)));
    }
    Ok(())
}

/// Whether somebody was told that the journal was aborted.
fn is_abort(error: &anyhow::Error) -> bool {
    matches!(
        error.downcast_ref(),
        Some(fourscore_journal::Error::Aborted(_))
    )
}

/// A crash state and what became of it.
#[derive(Debug)]
pub struct Sample {
    /// The device as the crash left it.
    pub before: Vec<u8>,
    /// The device after our recovery.
    pub after: Vec<u8>,
    /// What was recovered.
    pub recovered: Recovered,
    /// Whether the log went around its end.
    pub wrapped: bool,
}

/// What a recovery did.
struct Replayed {
    recovered: Recovered,
    wrapped: bool,
}

impl Seen {
    fn note(&mut self, replayed: &Replayed) {
        let recovered = &replayed.recovered;
        self.damaged += u64::from(recovered.damage().is_some());
        if recovered.transactions() > 0 {
            self.replayed += 1;
            self.revoked += u64::from(recovered.revoked() > 0);
            self.escaped += u64::from(recovered.copies().iter().any(|copy| copy.escaped));
            self.wrapped += u64::from(replayed.wrapped);
        }
    }

    /// Both together.
    pub fn add(&mut self, other: &Self) {
        self.states += other.states;
        self.recovery_states += other.recovery_states;
        self.replayed += other.replayed;
        self.revoked += other.revoked;
        self.escaped += other.escaped;
        self.wrapped += other.wrapped;
        self.damaged += other.damaged;
    }
}
