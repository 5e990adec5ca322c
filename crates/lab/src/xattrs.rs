//! **Purpose.** Workloads of extended attributes that are in blocks: setting them on many files,
//! and a mix of creating, changing and removing.
//!
//! **Model.** What decides the speed is how many files have equal values: all, none, or as many as
//! there are files for each of a few values. Files and directories exist and are durable before the
//! measured time of [`XattrLoad::Set`] begins; the time ends with a sync of the whole target.
//!
//! The mix has the operations of the loads of aim7 in which the kernel's attribute cache was first
//! measured: files that come with attributes and go with them, and attributes that change. It is an
//! imitation: aim7's own programs do more than that.

use std::io;

use crate::clock::Clock;
use crate::comparison::{ThreadCount, Work};
use crate::files::drive_and_sync;
use crate::target::{AttributeValue, FileNr, Operation, Target, Worker, WorkerNr};
use crate::workload::{Driven, Workload};

/// Files of a worker that the mix keeps.
const MIX_FILES: u32 = 256;

/// How many files have equal values.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Values {
    /// All.
    Same,
    /// None.
    Distinct,
    /// There are this many values, which files have in turns.
    Few(u32),
}

impl Values {
    /// The value of a step.
    #[must_use]
    pub fn of_step(self, step: u64) -> AttributeValue {
        match self {
            Self::Same => AttributeValue::Common(0),
            Self::Distinct => AttributeValue::Own(step),
            Self::Few(count) => AttributeValue::Common(step % u64::from(count.max(1))),
        }
    }
}

/// What is done with the attributes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum XattrLoad {
    /// Each file gets an attribute.
    Set,
    /// Files are created with an attribute and removed, and attributes are changed and removed.
    Mix,
}

/// A workload of attributes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct XattrWorkload {
    /// What is done.
    pub load: XattrLoad,
    /// How many files have equal values.
    pub values: Values,
    /// The length of a value, at least 16 and at most
    /// [`MAX_ATTRIBUTE_BYTES`](crate::target::MAX_ATTRIBUTE_BYTES).
    pub value_bytes: usize,
}

impl XattrWorkload {
    /// Runs it with `files` files, or steps of the mix, of all threads together, and makes all
    /// changes durable. The files are removed in the end. The operations of the mix are the changes
    /// of attributes, creations and removals of files with them included.
    ///
    /// # Errors
    /// The first failure of the target.
    pub fn run(
        self,
        target: &dyn Target,
        threads: ThreadCount,
        files: u32,
        clock: &dyn Clock,
    ) -> io::Result<Driven> {
        let threads_u32 = u32::try_from(threads.get()).unwrap_or(u32::MAX);
        let own = (files / threads_u32).max(1);
        let (workload, left): (&dyn Workload, u32) = match self.load {
            XattrLoad::Set => (&SetOnFiles { of: self, own }, own),
            XattrLoad::Mix => (&Mix { of: self }, MIX_FILES),
        };
        let driven = drive_and_sync(target, workload, threads, own.into(), clock)?;
        for nr in (0..threads.get()).map(WorkerNr) {
            let mut worker = target.worker(nr)?;
            for file in (0..left).map(FileNr) {
                worker.apply(file, Operation::Unlink)?;
            }
        }
        Ok(driven)
    }

    /// Sets the attribute of a file to the value of a step.
    fn set(self, worker: &mut dyn Worker, file: FileNr, step: u64) -> io::Result<()> {
        let (value, len) = (self.values.of_step(step), self.value_bytes);
        worker
            .apply(file, Operation::SetAttribute { value, len })
            .map(drop)
    }
}

/// Creates a file and closes it.
fn create(worker: &mut dyn Worker, file: FileNr) -> io::Result<()> {
    worker.apply(file, Operation::Create)?;
    worker.apply(file, Operation::Close).map(drop)
}

/// Sets an attribute on each of the files `0..own`.
struct SetOnFiles {
    of: XattrWorkload,
    own: u32,
}

impl Workload for SetOnFiles {
    fn prepare(&self, worker: &mut dyn Worker) -> io::Result<()> {
        for file in (0..self.own).map(FileNr) {
            create(worker, file)?;
        }
        worker.apply(FileNr(0), Operation::SyncAll).map(drop)
    }

    fn step(&self, worker: &mut dyn Worker, step: u64) -> io::Result<Work> {
        let file = FileNr(u32::try_from(step).unwrap_or(u32::MAX));
        self.of.set(worker, file, step)?;
        Ok(Work::ONCE)
    }

    fn clean_up(&self, _: &mut dyn Worker) -> io::Result<()> {
        Ok(())
    }
}

/// Files come with attributes and go with them; attributes of others change.
struct Mix {
    of: XattrWorkload,
}

impl Mix {
    /// Steps of the set-up, whose values are those of no other step.
    const FIRST: u64 = 1 << 32;
    const FILES: u64 = MIX_FILES as u64;

    fn file(slot: u64) -> FileNr {
        FileNr(u32::try_from(slot % Self::FILES).unwrap_or(0))
    }
}

impl Workload for Mix {
    fn prepare(&self, worker: &mut dyn Worker) -> io::Result<()> {
        for slot in 0..Self::FILES {
            create(worker, Self::file(slot))?;
            self.of.set(worker, Self::file(slot), Self::FIRST + slot)?;
        }
        worker.apply(FileNr(0), Operation::SyncAll).map(drop)
    }

    /// One file goes and comes again, the attribute of another one changes twice, and in every
    /// fourth step the attribute of a third one is removed and set.
    fn step(&self, worker: &mut dyn Worker, step: u64) -> io::Result<Work> {
        let (mut operations, value) = (4, step * 4);
        let file = Self::file(step);
        worker.apply(file, Operation::Unlink)?;
        create(worker, file)?;
        self.of.set(worker, file, value)?;
        let other = Self::file(step + Self::FILES / 2);
        self.of.set(worker, other, value + 1)?;
        self.of.set(worker, other, value + 2)?;
        if step.is_multiple_of(4) {
            let third = Self::file(step + Self::FILES / 4);
            worker.apply(third, Operation::RemoveAttribute)?;
            self.of.set(worker, third, value + 3)?;
            operations += 2;
        }
        Ok(Work {
            operations,
            ..Work::ONCE
        })
    }

    fn clean_up(&self, _: &mut dyn Worker) -> io::Result<()> {
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeMap;

    use fourscore_sync::Mutex;

    use super::*;
    use crate::clock::MonotonicClock;
    use crate::target::MAX_ATTRIBUTE_BYTES;

    /// A target that keeps attributes in memory and counts how often each value is set.
    #[derive(Default)]
    struct Memory {
        set: Mutex<BTreeMap<Vec<u8>, u64>>,
        removed: Mutex<u64>,
    }

    struct InMemory<'m> {
        memory: &'m Memory,
        nr: WorkerNr,
        files: BTreeMap<u32, bool>,
    }

    impl Target for Memory {
        fn name(&self) -> String {
            "memory".to_owned()
        }

        fn worker(&self, nr: WorkerNr) -> io::Result<Box<dyn Worker + '_>> {
            Ok(Box::new(InMemory {
                memory: self,
                nr,
                files: BTreeMap::new(),
            }))
        }
    }

    impl Worker for InMemory<'_> {
        fn apply(&mut self, file: FileNr, operation: Operation) -> io::Result<u64> {
            let missing = || io::Error::from(io::ErrorKind::NotFound);
            match operation {
                Operation::Create => drop(self.files.insert(file.0, false)),
                Operation::SetAttribute { value, len } => {
                    *self.files.get_mut(&file.0).ok_or_else(missing)? = true;
                    let mut buffer = [0; MAX_ATTRIBUTE_BYTES];
                    let value = value.bytes(self.nr, len, &mut buffer).to_vec();
                    *self.memory.set.lock().entry(value).or_default() += 1;
                }
                Operation::RemoveAttribute => {
                    let has = self.files.get_mut(&file.0).ok_or_else(missing)?;
                    assert!(std::mem::take(has), "the file has no attribute");
                    *self.memory.removed.lock() += 1;
                }
                // Files of an earlier worker in the same directory are not known here.
                Operation::Unlink => drop(self.files.remove(&file.0)),
                _ => {}
            }
            Ok(0)
        }
    }

    fn run(load: XattrLoad, values: Values, threads: usize, files: u32) -> (u64, Vec<u64>) {
        let memory = Memory::default();
        let workload = XattrWorkload {
            load,
            values,
            value_bytes: 200,
        };
        let clock = MonotonicClock::default();
        let threads = ThreadCount::new(threads);
        let driven = workload.run(&memory, threads, files, &clock).expect("runs");
        let counts = memory.set.lock().values().copied().collect();
        (driven.total().operations, counts)
    }

    #[test]
    fn as_many_files_have_a_value_as_the_workload_says() {
        let of = |values| run(XattrLoad::Set, values, 2, 200);
        assert_eq!(of(Values::Same), (200, vec![200]));
        assert_eq!(of(Values::Distinct), (200, vec![1; 200]));
        assert_eq!(of(Values::Few(10)), (200, vec![20; 10]));
        assert_eq!(of(Values::Few(1000)), (200, vec![2; 100]));
    }

    #[test]
    fn the_mix_sets_changes_and_removes() {
        let (operations, counts) = run(XattrLoad::Mix, Values::Same, 1, 100);
        assert_eq!(operations, 4 * 100 + 2 * 25);
        assert_eq!(counts, [256 + 3 * 100 + 25]);
        let (_, counts) = run(XattrLoad::Mix, Values::Distinct, 2, 400);
        assert!(counts.iter().all(|&count| count == 1));
        let (_, counts) = run(XattrLoad::Mix, Values::Few(7), 2, 400);
        assert_eq!(counts.len(), 7);
    }
}
