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

/// One in this number of states has its recovery cut as well.
const CUT_RECOVERIES: u64 = 97;
/// Transactions that fill most of the log of an image.
const LONG_WARM_UP: u32 = 42;
/// Random survivals for each cut of a recovery.
const RECOVERY_SAMPLES: usize = 4;

/// The identity of a history.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Name {
    /// The seed of all random choices.
    pub seed: u64,
    /// The number of earlier crashes of this device.
    pub generation: u32,
}

/// A recorded history with its model.
#[derive(Debug)]
pub struct Session {
    name: Name,
    place: Place,
    history: History,
    model: Model,
    aborted: bool,
}

/// Counts over the states of a session, which show that the generated input covers every case.
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

/// What a device and a model begin with.
struct Start<'b> {
    bytes: &'b [u8],
    model: Model,
}

/// What is saved beside a history.
#[derive(Serialize, Deserialize)]
struct Beside {
    name: Name,
    model: Model,
    aborted: bool,
}

impl Session {
    /// Records the first history of a seed.
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
        let start = Start {
            bytes: &bytes,
            model,
        };
        Self::make(name, place, &setup, start, breaking)
    }

    /// Records a history on a new ext4 image with `features` beside the defaults; the log wraps.
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
        let start = Start {
            bytes: &bytes,
            model,
        };
        Self::make(name, place, &setup, start, None)
    }

    /// Records the next history on a recovered device.
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
        let start = Start {
            bytes: recovered,
            model,
        };
        Self::make(name, self.place.clone(), &setup, start, breaking)
    }

    fn make(
        name: Name,
        place: Place,
        setup: &Setup,
        start: Start<'_>,
        breaking: Breaking,
    ) -> Result<Self> {
        let Start { bytes, mut model } = start;
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
        // Only the journal's device may fail, so that readers go on.
        let faulty = Arc::new(FaultyDevice::new(device.clone()));
        let log = place.open(faulty.clone())?;
        let journal = Journal::open(log, faulty.clone(), hook, setup.options(breaking))?;
        client.warm_up(&journal, setup.warm_up)?;
        if let Some(fault) = setup.fault {
            faulty.add(fault.rule());
        }
        let mut rng = Rng::new(mix(name.seed ^ u64::from(name.generation) << 32));
        let outcome = client
            .run(&journal, setup.threads, setup.operations, &mut rng)
            .and_then(|()| end(setup.ending, &journal, &client));
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

    /// The identity of the history.
    #[must_use]
    pub fn name(&self) -> Name {
        self.name
    }

    /// Whether the seed alone reproduces the history: there is one thread and no background work.
    #[must_use]
    pub fn is_repeatable(&self) -> bool {
        Setup::of(self.name.seed, self.name.generation).threads == 1
    }

    /// The number of transactions that changed something.
    #[must_use]
    pub fn transactions(&self) -> u32 {
        self.model.transactions()
    }

    /// The recorded events.
    #[must_use]
    pub fn history(&self) -> &History {
        &self.history
    }

    /// Writes the session to a file, so that its states can be reproduced.
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

    /// Whether the journal was aborted because its device failed.
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

    /// Recovers and checks every state. Calls `keep` with each recovered disk.
    ///
    /// # Errors
    /// The first bad state.
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

    /// Recovers `count` of the states, spread over the history, and calls `look` with each.
    ///
    /// # Errors
    /// A state is bad, or `look` fails.
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

    /// The blocks outside the journal in which the devices `ours` and `theirs` differ.
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

    /// Recovers the device as a writable mount does, and checks that the log is empty afterwards.
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
                "an interrupted recovery has another result than a complete one"
            );
            Ok(())
        });
        states.context("a cut recovery")
    }
}

/// Ends the use of the journal.
fn end(ending: Ending, journal: &Journal, client: &Client) -> Result<()> {
    if ending == Ending::Closed {
        let last = journal.running_tid();
        journal.close()?;
        client.acknowledged(Tid(last.0.wrapping_sub(1)));
    }
    Ok(())
}

/// Whether the error is an abort of the journal.
fn is_abort(error: &anyhow::Error) -> bool {
    matches!(
        error.downcast_ref(),
        Some(fourscore_journal::Error::Aborted(_))
    )
}

/// A crash state and its recovery.
#[derive(Debug)]
pub struct Sample {
    /// The device after the crash.
    pub before: Vec<u8>,
    /// The device after our recovery.
    pub after: Vec<u8>,
    /// The result of the recovery.
    pub recovered: Recovered,
    /// Whether the log wrapped.
    pub wrapped: bool,
}

/// The result of a recovery.
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

    /// Adds the counts of another session.
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
