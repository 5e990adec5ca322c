//! **Purpose.** Damages structures by paths and field names, and undoes it.
//!
//! **Model.** Paths are resolved in a copy of the sound image, because names in the damaged one may
//! be invalid.

use anyhow::{Context, Result};
use fourscore::{Follow, Fs, OpenOptions};
use fourscore_block::{DeviceOptions, open_path};
use fourscore_ondisk::{GroupNr, InodeNr, PhysBlock};
use fourscore_sync::Arc;
use fourscore_testkit::Image;
use fourscore_testkit::damage::{Damage, Kind, Patient, Sealed, Site};

/// An image with its damages.
pub(crate) struct Surgery {
    patient: Patient,
    sound: Arc<Fs>,
    /// Lives as long as the file system that is read from it.
    _copy: Image,
    done: Vec<Damage>,
}

impl Surgery {
    pub(crate) fn new(image: &Image) -> Result<Self> {
        let copy = image.copy()?;
        let device = open_path(copy.path(), DeviceOptions::default())?;
        Ok(Self {
            patient: Patient::new(image.path())?,
            sound: Fs::open(Arc::new(device), &OpenOptions::new())?,
            _copy: copy,
            done: Vec::new(),
        })
    }

    /// Undoes all damages.
    pub(crate) fn undo(&mut self) -> Result<()> {
        while let Some(damage) = self.done.pop() {
            self.patient.undo(damage)?;
        }
        Ok(())
    }

    /// The inode of a path; a symbolic link at its end is not followed.
    pub(crate) fn number(&self, path: &str) -> Result<InodeNr> {
        let found = self.sound.resolve(path.as_bytes(), Follow::No);
        found.with_context(|| path.to_owned())
    }

    /// Changes a field of a structure.
    pub(crate) fn change(
        &mut self,
        site: &Site,
        field: &str,
        nth: usize,
        to: impl FnOnce(u64) -> u64,
    ) -> Result<()> {
        let damage = self.patient.change(site, field, nth, Sealed::Yes, to)?;
        self.done.push(damage);
        Ok(())
    }

    /// Changes a field of a structure without renewing checksums.
    pub(crate) fn unsealed(
        &mut self,
        site: &Site,
        field: &str,
        nth: usize,
        to: impl FnOnce(u64) -> u64,
    ) -> Result<()> {
        let damage = self.patient.change(site, field, nth, Sealed::No, to)?;
        self.done.push(damage);
        Ok(())
    }

    /// Overwrites bytes of a structure.
    pub(crate) fn overwrite(&mut self, site: &Site, at: usize, with: &[u8]) -> Result<()> {
        let damage = self.patient.overwrite(site, at, with, Sealed::Yes)?;
        self.done.push(damage);
        Ok(())
    }

    /// Overwrites bytes of a structure without renewing checksums.
    pub(crate) fn overwrite_unsealed(&mut self, site: &Site, at: usize, with: &[u8]) -> Result<()> {
        let damage = self.patient.overwrite(site, at, with, Sealed::No)?;
        self.done.push(damage);
        Ok(())
    }

    pub(crate) fn bytes(&self, site: &Site) -> Result<Vec<u8>> {
        self.patient.bytes(site)
    }

    /// The current value of the `nth` field called `field`.
    pub(crate) fn value(&self, site: &Site, field: &str, nth: usize) -> Result<u64> {
        self.patient.value(site, field, nth)
    }

    /// The structures of a kind.
    pub(crate) fn sites(&self, kind: Kind) -> Vec<Site> {
        self.patient.anatomy().sites(kind).to_vec()
    }

    /// The `nth` structure of a kind.
    pub(crate) fn nth(&self, kind: Kind, nth: usize) -> Result<Site> {
        let site = self.sites(kind).get(nth).copied();
        site.with_context(|| format!("no {kind:?} {nth}"))
    }

    /// An inode, in use or not.
    pub(crate) fn inode_site(&self, nr: InodeNr) -> Result<Site> {
        let site = self.patient.anatomy().inode_site(nr);
        site.with_context(|| format!("no inode {nr}"))
    }

    /// A block of a kind that the mutator does not know: no checksum is renewed.
    pub(crate) fn block(&self, block: PhysBlock) -> Site {
        self.patient.anatomy().block_site(Kind::Quota, block, None)
    }

    pub(crate) fn superblock(&self) -> &fourscore_ondisk::Superblock {
        self.patient.anatomy().superblock()
    }

    /// Changes a field of the superblock.
    pub(crate) fn sb(&mut self, field: &str, to: impl FnOnce(u64) -> u64) -> Result<()> {
        self.change(&self.nth(Kind::Superblock, 0)?, field, 0, to)
    }

    /// The descriptor of a group.
    pub(crate) fn descriptor(&self, group: GroupNr) -> Result<Site> {
        self.nth(Kind::Descriptor, group.0 as usize)
    }

    /// Changes a field of the first group's descriptor.
    pub(crate) fn desc(&mut self, field: &str, to: impl FnOnce(u64) -> u64) -> Result<()> {
        self.change(&self.descriptor(GroupNr(0))?, field, 0, to)
    }

    /// Changes a field of an inode.
    pub(crate) fn inode(
        &mut self,
        path: &str,
        field: &str,
        to: impl FnOnce(u64) -> u64,
    ) -> Result<()> {
        self.reserved(self.number(path)?, field, to)
    }

    /// Changes a field of an inode that has no path.
    pub(crate) fn reserved(
        &mut self,
        nr: InodeNr,
        field: &str,
        to: impl FnOnce(u64) -> u64,
    ) -> Result<()> {
        self.change(&self.inode_site(nr)?, field, 0, to)
    }

    /// The first block of entries of a directory without an index.
    pub(crate) fn leaf(&self, path: &str) -> Result<Site> {
        let nr = self.number(path)?;
        let leaves = self.sites(Kind::Leaf).into_iter();
        let mut own = leaves.filter(|site| site.inode == Some(nr));
        own.next().with_context(|| format!("{path}: no leaf"))
    }

    /// Changes a field of a record of a directory without an index; record 2 is the first
    /// after `..`.
    pub(crate) fn record(
        &mut self,
        path: &str,
        nth: usize,
        field: &str,
        to: impl FnOnce(u64) -> u64,
    ) -> Result<()> {
        self.change(&self.leaf(path)?, field, nth, to)
    }

    /// The first structure of a kind that belongs to an inode.
    pub(crate) fn of(&self, kind: Kind, path: &str) -> Result<Site> {
        let nr = self.number(path)?;
        let mut own = self.sites(kind).into_iter();
        own.find(|site| site.inode == Some(nr))
            .with_context(|| format!("{path}: no {kind:?}"))
    }

    /// The first inode in use of a file type that has all of `flags`.
    pub(crate) fn inode_with(&self, file_type: u16, flags: u32) -> Result<Site> {
        for site in self.sites(Kind::Inode) {
            let bytes = self.bytes(&site)?;
            let mode = u16::from_le_bytes([bytes[0], bytes[1]]);
            let word = [bytes[32], bytes[33], bytes[34], bytes[35]];
            let own = u32::from_le_bytes(word);
            if mode & 0xf000 == file_type && own & flags == flags {
                return Ok(site);
            }
        }
        anyhow::bail!("no inode of type {file_type:#x} with flags {flags:#x}")
    }

    /// A deleted inode.
    pub(crate) fn deleted(&self) -> Result<InodeNr> {
        let last = self.superblock().geometry().inodes();
        for nr in (self.superblock().first_inode().0..=last).map(InodeNr) {
            let bytes = self.bytes(&self.inode_site(nr)?)?;
            let (links, dtime) = (&bytes[0x1a..0x1c], &bytes[0x14..0x18]);
            if links == [0; 2] && dtime != [0; 4] {
                return Ok(nr);
            }
        }
        anyhow::bail!("nothing was deleted")
    }
}
