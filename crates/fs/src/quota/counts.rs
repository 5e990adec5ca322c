//! **Purpose.** Counts changes of usage on each core, and adds them to the entries of quota files
//! at the seal of their transaction.
//!
//! **Model.** A core has a [`Local`] for each identifier that plans on it have changed. The first
//! plan there in a transaction adds the entry's block to it, and keeps it for the seal; further
//! ones only add to the count. The seal, when no handle is open, adds all counts to the entries.
//!
//! ```text
//! entry after the seal of T = entry after the seal of T-1 + counts of all cores in T
//! ```
//!
//! **Invariants.** A count belongs to the transaction in `tid`, whose blocks include the entry's. A
//! thread that moves to another core uses the count that it has found before.
//!
//! **Locking.** The lock of a core's table, then that of a count; both are leaves but for the lock
//! of a buffer. The seal takes them while no handle is open, so no thread that holds them waits.
//! The locks of sums are taken by the seal only.

use std::collections::HashMap;
use std::mem;

use fourscore_block::{Buffer, Retired};
use fourscore_journal::{Handle, Sealing};
use fourscore_ondisk::{Corrupt, PhysBlock, Tid};
use fourscore_sync::{Arc, CoreNr, Mutex, OnceLock, PerCore};

use crate::quota::dquot::{Dquot, entry_tag};
use crate::quota::idle::Idle;
use crate::quota::usage::{Key, Usage};
use crate::txn::refused::{self, Refused};

/// The most identifiers that a core remembers from one transaction to the next.
const MOST_KNOWN: usize = 4096;

/// The counts of all cores.
#[derive(Debug, Default)]
pub(super) struct Counts {
    cores: PerCore<Mutex<CoreCounts>>,
    /// Memory of the seal: what is written, once the counts of all cores are added up.
    sealed: Mutex<Vec<(Arc<Local>, Arc<Buffer>)>>,
    /// Identifiers whose entries may be idle.
    pub(super) idle: Idle,
    /// Set by a seal that cannot change an entry, because its block was freed as metadata in the
    /// same transaction: the image has another structure in the block. The journal is aborted.
    damage: OnceLock<Corrupt>,
}

/// The counts of a core.
#[derive(Debug, Default)]
struct CoreCounts {
    known: HashMap<Key, Arc<Local>>,
    /// Those that were counted in the running transaction.
    touched: Vec<Arc<Local>>,
}

/// The count of an identifier on a core.
#[derive(Debug)]
pub(super) struct Local {
    pub(super) dquot: Arc<Dquot>,
    core: CoreNr,
    state: Mutex<State>,
}

#[derive(Debug, Default)]
struct State {
    /// The transaction that the fields below belong to; `None` if there is no count.
    tid: Option<Tid>,
    /// The block of the entry, which has joined the transaction.
    buffer: Option<Arc<Buffer>>,
    usage: Usage,
}

impl Local {
    /// Whether the entry's block has joined the transaction `tid` on this core.
    pub(super) fn has_joined(&self, tid: Tid) -> bool {
        self.state.lock().tid == Some(tid)
    }

    /// Adds a change to the count. The handle has joined by [`Counts::join`].
    pub(super) fn count(&self, usage: Usage) {
        self.state.lock().usage.add(usage);
    }

    fn block(&self) -> PhysBlock {
        self.dquot.place.block
    }
}

impl Counts {
    /// Returns the count of this core for `key`, if it has one.
    pub(super) fn known(&self, key: Key) -> Option<Arc<Local>> {
        self.cores.mine().lock().known.get(&key).cloned()
    }

    /// Adds a count of this core for an identifier, unless another thread has done so.
    pub(super) fn enter(&self, dquot: Arc<Dquot>) -> Arc<Local> {
        let core = CoreNr::current();
        let mut counts = self.cores.of(core).lock();
        let local = counts.known.entry(dquot.key).or_insert_with(|| {
            Arc::new(Local {
                dquot,
                core,
                state: Mutex::default(),
            })
        });
        Arc::clone(local)
    }

    /// Adds the block of an entry to the transaction of `handle`, unless that was done on this
    /// core. `held` is the block, if the caller has loaded it.
    pub(super) fn join(
        &self,
        local: &Arc<Local>,
        held: Option<&Arc<Buffer>>,
        handle: &mut Handle<'_>,
    ) -> std::result::Result<(), Refused> {
        let mut state = local.state.lock();
        let tid = handle.tid();
        if state.tid == Some(tid) {
            return Ok(());
        }
        let refused = |error| Refused::new(error, local.block());
        let buffer = held.ok_or_else(|| refused(Retired.into()))?;
        handle.join(buffer).map_err(refused)?;
        state.tid = Some(tid);
        state.buffer = Some(Arc::clone(buffer));
        drop(state);
        let mut core = self.cores.of(local.core).lock();
        core.touched.push(Arc::clone(local));
        Ok(())
    }

    /// Adds the counts of all cores to the entries, in the transaction that is being sealed. They
    /// are added up before an entry is changed, since the count of one core alone could make the
    /// usage negative: it may give back what was taken on another core.
    pub(super) fn at_seal(&self, sealing: &mut Sealing<'_>) {
        let mut sealed = self.sealed.lock();
        for core in self.cores.iter() {
            let mut core = core.lock();
            for local in core.touched.drain(..) {
                if let Some(buffer) = local.hand_over(sealing.tid()) {
                    sealed.push((local, buffer));
                }
            }
            if core.known.len() > MOST_KNOWN {
                core.known.clear();
            }
        }
        for (local, buffer) in sealed.drain(..) {
            let usage = mem::take(&mut *local.dquot.sealed.lock());
            if usage.is_none() {
                // Its entry may have been idle before as well.
                self.idle.note(local.dquot.key);
                continue;
            }
            let write = |bytes: &mut [u8]| local.dquot.write(bytes, usage);
            match sealing.modify(&buffer, entry_tag(), write) {
                Ok(true) => self.idle.note(local.dquot.key),
                Ok(false) => {}
                Err(_) => self.fail(sealing, local.block()),
            }
        }
    }

    #[cold]
    fn fail(&self, sealing: &Sealing<'_>, block: PhysBlock) {
        let damage = refused::freed_in_use(block);
        tracing::error!(error = %damage, "usage cannot be written");
        // The first one is noted.
        let _ = self.damage.set(damage);
        sealing.fail();
    }

    /// Removes the identifier from the tables of all cores. Counts that plans have found, or that
    /// wait for the seal, still add to its entry.
    pub(super) fn forget(&self, key: Key) {
        for core in self.cores.iter() {
            core.lock().known.remove(&key);
        }
    }

    /// As [`Counts::forget`] for all identifiers.
    pub(super) fn forget_all(&self) {
        for core in self.cores.iter() {
            core.lock().known.clear();
        }
    }

    /// Why a seal has aborted the journal, if it has.
    pub(super) fn damage(&self) -> Option<&Corrupt> {
        self.damage.get()
    }
}

impl Local {
    /// Adds the count to the sum over all cores, and returns the block of the entry.
    fn hand_over(&self, tid: Tid) -> Option<Arc<Buffer>> {
        let mut state = self.state.lock();
        debug_assert_eq!(state.tid, Some(tid), "counts of one transaction");
        state.tid = None;
        let usage = mem::take(&mut state.usage);
        self.dquot.sealed.lock().add(usage);
        state.buffer.take()
    }
}
