//! **Purpose.** Tests changes that are made all at once (`fourscore::Staged`): every crash state of
//! their commit has all of them, or none.

use anyhow::{Context, Result, ensure};
use clap::ValueEnum;
use fourscore::{Error, Fs, InodeNr, Staged};
use fourscore_block::{BlockDevice, Event, RecordingDevice};
use fourscore_sync::Arc;
use fourscore_testkit::explore::{CrashDisk, Failure, History};
use fourscore_testkit::require;
use fourscore_testkit::tools::Need;

use super::base::{BackgroundWork, Base, mount_options, tree_name};
use super::external;
use super::injected::InjectedFault;
use super::outcomes::{self, Change, Seen};
use super::session::has_torn_commit;
use super::timeline::run_steps;
use super::tree::Tree;
use super::workload::{Format, Mode, Workload};
use crate::model::Pair;
use crate::sound::check_clean;

/// One state of this many is given to e2fsck and to the kernel as well.
const EXTERNAL_EVERY: u64 = 20;

/// The recorded commit of a workload's calls.
struct Recording {
    workload: Workload,
    history: History,
    /// The number of events when the commit returned.
    done: usize,
    before: Tree<InodeNr>,
    after: Tree<InodeNr>,
}

impl Recording {
    fn of(workload: Workload, injected: InjectedFault) -> Result<Self> {
        let base = Base::of(workload.shape)?;
        let device = Arc::new(RecordingDevice::new(base.disk()));
        let options = mount_options(workload.mode, BackgroundWork::None, injected);
        let before = tree_on(base.disk(), &workload)?;
        let staged = Staged::begin(Arc::clone(&device) as Arc<dyn BlockDevice>, &options)?;
        let dir = staged.fs().lookup(InodeNr::ROOT, &tree_name(0))?;
        let model = base.models[0].clone();
        let mut pair = Pair::resume(Arc::clone(staged.fs()), dir, model);
        run_steps(&mut pair, &workload.threads[0], |_| (), |_| ());
        drop(pair.finish());
        ensure!(device.events().is_empty(), "written before the commit");
        staged.commit()?;
        let events = device.events();
        ensure!(events.iter().any(Event::is_flush), "nothing was flushed");
        let after = tree_on(device, &workload)?;
        Ok(Self {
            workload,
            done: events.len(),
            history: History {
                base: base.bytes.clone(),
                events,
            },
            before,
            after,
        })
    }

    /// Recovers every crash state, and counts what is found.
    fn explore(&self, samples: usize) -> Result<Seen, Box<Failure>> {
        let change = Change {
            history: &self.history,
            done: self.done,
            external_every: EXTERNAL_EVERY,
            seed: self.workload.seed,
            samples,
            block_bytes: self.workload.shape.block_bytes.into(),
        };
        outcomes::explore(&change, |disk, is_external| self.check(disk, is_external))
    }

    /// Recovers a state. Returns whether it has all changes; it must have none otherwise.
    fn check(&self, disk: &Arc<CrashDisk>, is_external: bool) -> Result<bool> {
        let crashed = is_external.then(|| disk.bytes());
        let is_torn = is_external && has_torn_commit(disk)?;
        let options = mount_options(
            self.workload.mode,
            BackgroundWork::None,
            InjectedFault::default(),
        );
        let fs = Fs::mount(disk.clone(), &options).context("mount")?;
        let found = Tree::found(&fs, InodeNr::ROOT)?;
        let ours = external::ours(&fs)?;
        fs.unmount().context("unmount")?;
        check_clean(disk.clone())?;
        if let Some(crashed) = crashed {
            // Of a torn commit block the kernel may believe the header, and has all changes.
            let ours = (!is_torn).then_some(&ours);
            let theirs = external::compare_with_kernel(&crashed, &disk.bytes(), ours)?;
            if let Some(theirs) = theirs {
                let found = Tree::found(&*external::opened(&theirs)?, InodeNr::ROOT)?;
                self.has_all(&found).context("recovered by the kernel")?;
            }
        }
        self.has_all(&found)
    }

    fn has_all(&self, found: &Tree<InodeNr>) -> Result<bool> {
        let has_all = is_same(found, &self.after);
        ensure!(
            has_all || is_same(found, &self.before),
            "neither the tree before nor the tree after:\n{:?}",
            found
                .names
                .keys()
                .map(|path| path.escape_ascii().to_string())
                .collect::<Vec<_>>()
        );
        Ok(has_all)
    }
}

/// The whole tree of a file system that is not mounted.
fn tree_on(device: Arc<impl BlockDevice + 'static>, workload: &Workload) -> Result<Tree<InodeNr>> {
    let options = mount_options(
        workload.mode,
        BackgroundWork::None,
        InjectedFault::default(),
    );
    // Mounted in memory, so that orphans are gone as after a crash.
    let memory = Arc::new(fourscore_block::RamDevice::over(device));
    let fs = Fs::mount(memory, &options)?;
    Tree::found(&fs, InodeNr::ROOT)
}

fn is_same(one: &Tree<InodeNr>, other: &Tree<InodeNr>) -> bool {
    let inodes = one.inodes.iter().zip(&other.inodes);
    one.names == other.names && one.inodes.len() == other.inodes.len() && { inodes }.all(
        |(one, other)| {
            (one.key, &one.facts, &one.content) == (other.key, &other.facts, &other.content)
        },
    )
}

/// Workloads of one thread, with a journal, of which each call is made.
fn workloads() -> impl Iterator<Item = Workload> {
    let of_formats = Format::value_variants();
    let of_formats = of_formats
        .iter()
        .flat_map(|&format| [0, 3, 8].map(|seed| Workload::on(format, seed)));
    let usual = (0..12).map(Workload::of);
    let fast = [0, 1, 3, 9].map(Workload::with_fast_commits);
    let all = usual.chain(of_formats).chain(fast);
    all.filter(|workload| workload.mode != Mode::None)
}

#[test]
fn a_crash_leaves_all_changes_or_none() {
    require!(Need::Program("mke2fs"), Need::Program("e2fsck"));
    let (mut total, mut too_many, mut changed) = (Seen::default(), 0, 0);
    for workload in workloads() {
        let seed = workload.seed;
        let recording = match Recording::of(workload, InjectedFault::default()) {
            Ok(recording) => recording,
            Err(error) => match error.downcast_ref() {
                Some(Error::NotOneTransaction { .. }) => {
                    too_many += 1;
                    continue;
                }
                _ => panic!("seed {seed}: {error:#}"),
            },
        };
        changed += u64::from(!is_same(&recording.before, &recording.after));
        let seen = recording
            .explore(4)
            .unwrap_or_else(|why| panic!("seed {seed}: {why}"));
        assert!(seen.none > 0 && seen.all > 0, "seed {seed}: {seen:?}");
        total.add(&seen);
    }
    assert!(
        changed > 15,
        "{changed} workloads changed something, {too_many} too much"
    );
    assert!(total.none > 1000 && total.all > 1000, "{total:?}");
    assert!(total.external > 50 || !external::is_possible(), "{total:?}");
}

/// Without the flush before the commit block the harness finds states that have a part.
#[cfg(feature = "sabotage")]
#[test]
fn a_commit_without_its_flush_is_noticed() {
    require!(Need::Program("mke2fs"), Need::Program("e2fsck"));
    let faults = InjectedFault::ALL;
    let (_, fault) = faults[0];
    let is_noticed = |workload| {
        let recording = Recording::of(workload, fault);
        recording.is_ok_and(|recording| recording.explore(4).is_err())
    };
    assert!(workloads().any(is_noticed));
}
