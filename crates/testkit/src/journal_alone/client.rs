//! **Purpose.** A client of the journal that uses all of its operations, from several threads, and
//! updates the model.
//!
//! # Model
//! The block of a slot passes through these roles. A thread takes a slot and puts it back:
//!
//! ```text
//! shared metadata: changed by all threads, never freed
//! free --create--> metadata --forget + revoke--> freed --commit--> free
//! free --write in place, refer to it--> data --remove the reference--> dropped --commit--> free
//! freed --create, before the commit--> metadata
//! ```
//! The last line cancels a revoke record: the new copy of the block must be replayed. Data is
//! written before the handle that refers to it, or by the transaction itself before it commits.
//!
//! # Locking
//! One lock guards the model, another one the roles. The model is changed under the buffer's lock,
//! so it records the changes of a block in the same order as the buffer.

use std::io;

use anyhow::{Context, Result};
use fourscore_block::{
    BlockDevice, BufferCache, CacheOptions, RecordingDevice, Structure, VerifiedAs,
};
use fourscore_journal::{Credits, Extended, Handle, Journal, ModifyError, SealHook, Sealing};
use fourscore_ondisk::{InodeNr, PhysBlock, Tid};
use fourscore_sync::{Arc, Mutex, thread};

use super::model::{MOST_TRANSACTIONS, Model, Note, Slot, Version};
use super::place::Place;
use crate::explore::rng::Rng;

/// The most shared blocks that one operation changes.
const MOST_CHANGES: usize = 4;
/// How often an operation looks for a block in the wanted role before it gives up.
const LOOKS: usize = 6;
/// How many transactions may follow the start of the last operation.
const IN_FLIGHT: u32 = 10;

/// The role of a slot's block.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Role {
    Shared,
    Metadata,
    Free,
    Data,
    /// Freed, by the n-th freeing of this history, in a transaction that may not be durable yet.
    Freed(usize),
    /// As `Freed`, for data.
    Dropped(usize),
    /// A thread works on it.
    Taken,
}

/// The state that all threads share.
#[derive(Debug)]
pub(super) struct Client {
    place: Place,
    /// The first slots, which hold metadata that is never freed.
    shared: usize,
    device: Arc<RecordingDevice>,
    cache: BufferCache,
    model: Mutex<Model>,
    roles: Mutex<Roles>,
}

#[derive(Debug)]
struct Roles {
    of: Vec<Role>,
    freed: usize,
}

/// Changes one block at every seal, as a file system does with its counts.
#[derive(Debug)]
pub(super) struct CountingHook(pub(super) Arc<Client>);

impl SealHook for CountingHook {
    fn at_seal(&self, sealing: &mut Sealing<'_>) {
        let (client, slot, tid) = (&self.0, Slot(0), sealing.tid());
        let buffer = client.cache.load(client.block(slot)).expect("in memory");
        sealing
            .modify(&buffer, tag(), |bytes| client.fill(slot, tid, bytes))
            .expect("the block was changed before, or there is a credit for it");
    }
}

fn tag() -> VerifiedAs {
    VerifiedAs::new(Structure::DirectoryLeaf, InodeNr(2))
}

impl Client {
    /// A client whose first `shared` slots hold metadata that is never freed; `model` says what
    /// the others are. Its cache keeps `cache_bytes` of clean buffers.
    pub(super) fn new(
        place: &Place,
        device: &Arc<RecordingDevice>,
        model: Model,
        shared: usize,
        cache_bytes: usize,
    ) -> Self {
        let role = |slot| match model.initial(Slot(slot)) {
            Some(_) if slot < shared => Role::Shared,
            Some(_) => Role::Metadata,
            None => Role::Free,
        };
        let of = (0..model.slots()).map(role).collect();
        let home: Arc<dyn BlockDevice> = device.clone();
        let options = CacheOptions {
            budget_bytes: cache_bytes,
            ..CacheOptions::default()
        };
        Self {
            place: place.clone(),
            shared,
            device: Arc::clone(device),
            cache: BufferCache::new(home, place.block_size, options),
            model: Mutex::new(model),
            roles: Mutex::new(Roles { of, freed: 0 }),
        }
    }

    /// Commits all blocks as they are, `transactions` times.
    ///
    /// # Errors
    /// The journal was aborted.
    pub(super) fn warm_up(&self, journal: &Journal, transactions: u32) -> Result<()> {
        for _ in 0..transactions {
            let mut handle = journal.start(Credits(u32::try_from(self.place.slots.len())?))?;
            for &block in &self.place.slots {
                let buffer = self.cache.load(block)?;
                handle.modify(&buffer, tag(), |_| ())?;
            }
            journal.commit_and_wait(handle.stop())?;
        }
        Ok(())
    }

    /// Runs `operations` on each of `threads` threads.
    ///
    /// # Errors
    /// The journal was aborted.
    pub(super) fn run(
        self: &Arc<Self>,
        journal: &Journal,
        threads: usize,
        operations: usize,
        rng: &mut Rng,
    ) -> Result<()> {
        let seeds: Vec<_> = (0..threads).map(|_| Rng::new(rng.bits())).collect();
        thread::scope(|scope| {
            let start = |rng| {
                let client = Arc::clone(self);
                let mut worker = Worker {
                    client,
                    journal,
                    rng,
                };
                scope.spawn(move || worker.run(operations))
            };
            let workers: Vec<_> = seeds.into_iter().map(start).collect();
            workers
                .into_iter()
                .try_for_each(|worker| worker.join().expect("a worker panicked"))
        })
    }

    /// A copy of the model.
    pub(super) fn model(&self) -> Model {
        self.model.lock().clone()
    }

    /// Reads every block through the cache, which must work after an abort.
    ///
    /// # Errors
    /// A block cannot be read.
    pub(super) fn read_everything(&self) -> Result<()> {
        for &block in &self.place.slots {
            self.cache.read(block, <[u8]>::len)?;
        }
        Ok(())
    }

    /// Notes in the history that `tid` and all before it are acknowledged.
    pub(super) fn acknowledged(&self, tid: Tid) {
        let after = self.model.lock().place(tid);
        self.device.note(Note::Acknowledged { after }.to_number());
    }

    fn block(&self, slot: Slot) -> PhysBlock {
        self.place.slots[slot.0]
    }

    /// Puts a new version into the bytes of a slot's buffer, within `tid`.
    fn fill(&self, slot: Slot, tid: Tid, bytes: &mut [u8]) {
        let mut model = self.model.lock();
        let version = model.new_version(slot);
        model.wrote(slot, tid, version);
        bytes.copy_from_slice(model.content(version));
    }

    /// Takes a slot with a role that `wanted` accepts, among a few random ones.
    fn take(&self, rng: &mut Rng, wanted: impl Fn(Role) -> bool) -> Option<Slot> {
        let mut roles = self.roles.lock();
        let slots = roles.of.len();
        let found = (0..LOOKS)
            .map(|_| rng.below(slots))
            .find(|&slot| wanted(roles.of[slot]))?;
        roles.of[found] = Role::Taken;
        Some(Slot(found))
    }

    fn put(&self, slot: Slot, role: Role) {
        self.roles.lock().of[slot.0] = role;
    }

    /// Marks a slot as free after its commit; returns the role that identifies this freeing.
    fn put_freed(&self, slot: Slot, freed: fn(usize) -> Role) -> Role {
        let mut roles = self.roles.lock();
        roles.freed += 1;
        let role = freed(roles.freed);
        roles.of[slot.0] = role;
        role
    }

    /// Makes a slot free after the commit, unless it was used again meanwhile.
    fn committed_free(&self, slot: Slot, freed: Role) {
        let role = &mut self.roles.lock().of[slot.0];
        if *role == freed {
            *role = Role::Free;
        }
    }

    /// Writes a new version of data to the slot's block, in place.
    fn write_in_place(&self, slot: Slot, version: Version) -> io::Result<()> {
        let bytes = {
            let mut model = self.model.lock();
            model.writes_data(slot, version);
            model.content(version).to_vec()
        };
        let offset = self.place.block_size.offset(self.block(slot));
        self.device.write_at(&bytes, offset)?;
        self.device.note(Note::Data { slot, version }.to_number());
        Ok(())
    }
}

/// One thread.
struct Worker<'j> {
    client: Arc<Client>,
    journal: &'j Journal,
    rng: Rng,
}

impl<'j> Worker<'j> {
    fn run(&mut self, operations: usize) -> Result<()> {
        for _ in 0..operations {
            if self.client.model.lock().transactions() + IN_FLIGHT > MOST_TRANSACTIONS {
                break;
            }
            match self.rng.below(16) {
                0..=4 => self.change_shared()?,
                5..=6 => self.create()?,
                7..=8 => self.free()?,
                9..=10 => self.write_data()?,
                11 => self.drop_data()?,
                12..=13 => self.sync()?,
                14 => drop(self.journal.commit()?),
                _ if self.rng.happens(1, 8) => self.journal.checkpoint()?,
                _ if self.rng.happens(1, 4) => self.client.device.flush()?,
                _ => thread::yield_now(),
            }
        }
        Ok(())
    }

    fn start(&self, credits: usize) -> Result<Handle<'j>> {
        Ok(self.journal.start(Credits(u32::try_from(credits)?))?)
    }

    /// Fills a block with a new version, in the cache and in the model. `Ok(false)` if the
    /// transaction has no credits for it.
    fn change(&self, handle: &mut Handle<'_>, slot: Slot) -> Result<bool> {
        let client = &self.client;
        if handle.credits() == Credits(0) && handle.extend(Credits(1)) == Extended::No {
            return Ok(false);
        }
        let tid = handle.tid();
        loop {
            let buffer = client.cache.load(client.block(slot))?;
            match handle.modify(&buffer, tag(), |bytes| client.fill(slot, tid, bytes)) {
                Ok(()) => return Ok(true),
                Err(ModifyError::Retired(_)) => {}
                Err(error) => return Err(error).context("changing a block"),
            }
        }
    }

    /// Changes some shared blocks and sometimes another one, in one transaction, or in the next
    /// when credits run out.
    fn change_shared(&mut self) -> Result<()> {
        let changes = 1 + self.rng.below(MOST_CHANGES);
        let credits = 1 + self.rng.below(changes);
        let mut handle = self.start(credits)?;
        for _ in 0..changes {
            let slot = Slot(self.rng.below(self.client.shared));
            if !self.change(&mut handle, slot)? {
                handle = handle.restart(Credits(1))?;
            }
        }
        let is_metadata = |role| role == Role::Metadata;
        if let Some(slot) = self.client.take(&mut self.rng, is_metadata) {
            self.change(&mut handle, slot)?;
            self.client.put(slot, Role::Metadata);
        }
        Ok(())
    }

    /// Makes metadata of a free block, or of one whose freeing is not committed.
    fn create(&mut self) -> Result<()> {
        let mut handle = self.start(1)?;
        let is_free = |role| matches!(role, Role::Free | Role::Freed(_));
        if let Some(slot) = self.client.take(&mut self.rng, is_free) {
            drop(self.client.cache.create(self.client.block(slot)));
            self.change(&mut handle, slot)?;
            self.client.put(slot, Role::Metadata);
        }
        Ok(())
    }

    /// Frees metadata, sometimes right after a change.
    fn free(&mut self) -> Result<()> {
        let mut handle = self.start(2)?;
        let is_metadata = |role| role == Role::Metadata;
        let Some(slot) = self.client.take(&mut self.rng, is_metadata) else {
            return Ok(());
        };
        if self.rng.happens(1, 2) {
            self.change(&mut handle, slot)?;
        }
        self.client.model.lock().freed(slot, handle.tid());
        let block = self.client.block(slot);
        handle.forget(&self.client.cache, block)?;
        self.free_on_commit(&mut handle, slot, Role::Freed);
        Ok(())
    }

    fn free_on_commit(&self, handle: &mut Handle<'_>, slot: Slot, freed: fn(usize) -> Role) {
        let client = Arc::clone(&self.client);
        let freed = client.put_freed(slot, freed);
        handle.on_commit(Box::new(move |tid| {
            client.acknowledged(tid);
            client.committed_free(slot, freed);
        }));
    }

    /// Writes data to a free block, in place, and makes metadata refer to it.
    fn write_data(&mut self) -> Result<()> {
        let Some(slot) = self.client.take(&mut self.rng, |role| role == Role::Free) else {
            return Ok(());
        };
        let by = Slot(self.rng.below(self.client.shared));
        let version = self.client.model.lock().new_version(slot);
        let by_itself = self.rng.happens(1, 2);
        if by_itself {
            if self.rng.happens(1, 4) {
                let older = self.client.model.lock().new_version(slot);
                self.client.write_in_place(slot, older)?;
            }
            self.client.write_in_place(slot, version)?;
        }
        let mut handle = self.start(1)?;
        self.change(&mut handle, by)?;
        if !by_itself {
            let client = Arc::clone(&self.client);
            handle.before_commit(Box::new(move || client.write_in_place(slot, version)));
        }
        let tid = handle.tid();
        self.client.model.lock().named(slot, version, tid);
        self.client.put(slot, Role::Data);
        Ok(())
    }

    /// Metadata no longer names some data, whose block becomes free with the commit.
    fn drop_data(&mut self) -> Result<()> {
        let mut handle = self.start(1)?;
        let Some(slot) = self.client.take(&mut self.rng, |role| role == Role::Data) else {
            return Ok(());
        };
        let by = Slot(self.rng.below(self.client.shared));
        self.change(&mut handle, by)?;
        self.client.model.lock().unnamed(slot, handle.tid());
        self.free_on_commit(&mut handle, slot, Role::Dropped);
        Ok(())
    }

    /// An operation whose caller waits until it is durable.
    fn sync(&mut self) -> Result<()> {
        let mut handle = self.start(1)?;
        let slot = Slot(self.rng.below(self.client.shared));
        self.change(&mut handle, slot)?;
        let tid = handle.stop();
        self.journal.commit_and_wait(tid)?;
        self.client.acknowledged(tid);
        Ok(())
    }
}
