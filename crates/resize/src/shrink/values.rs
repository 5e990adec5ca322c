//! **Purpose.** Redirects attributes whose values are inodes (`ea_inode`) to new inode numbers.

use std::collections::{BTreeMap, BTreeSet};

use fourscore_ondisk::features::Incompat;
use fourscore_ondisk::inode::Inode;
use fourscore_ondisk::xattr::{self, Value, Xattrs};
use fourscore_ondisk::{InodeNr, PhysBlock};

use super::relocate::Relocation;
use crate::error::{ResizeError, Result};
use crate::inodes;

/// The offset of `e_value_inum` in an entry.
const VALUE_INUM_AT: usize = 4;

impl Relocation<'_, '_> {
    /// The inodes with attributes whose values are those of `moving`.
    pub(super) fn find_users_of_values<T>(
        &self,
        moving: &BTreeMap<InodeNr, T>,
    ) -> Result<BTreeMap<InodeNr, BTreeSet<InodeNr>>> {
        let mut users = BTreeMap::<_, BTreeSet<_>>::new();
        if !self
            .volume
            .sb()
            .features()
            .incompat
            .contains(Incompat::EA_INODE)
        {
            return Ok(users);
        }
        let groups = self.volume.geometry().groups();
        inodes::visit(self.volume, 0..groups, &mut |inode| {
            let mut add = |(value, _): (InodeNr, usize)| {
                if moving.contains_key(&value) {
                    users.entry(value).or_default().insert(inode.number());
                }
            };
            if let Some(area) = inode.xattr_area() {
                values(&Xattrs::in_inode(area))?
                    .into_iter()
                    .for_each(&mut add);
            }
            if let Some(block) = inode.file_acl() {
                let bytes = self.volume.read(block)?;
                let xattrs = Xattrs::in_block(&bytes).map_err(ResizeError::corrupt)?;
                values(&xattrs)?.into_iter().for_each(&mut add);
            }
            Ok(())
        })?;
        Ok(users)
    }

    /// Makes the attributes of an inode refer to `new` instead of `old`.
    pub(super) fn redirect_values(
        &mut self,
        user: InodeNr,
        old: InodeNr,
        new: InodeNr,
    ) -> Result<()> {
        let inode: Inode = inodes::read(self.volume, user)?;
        if let Some(area) = inode.xattr_area() {
            let found = values(&Xattrs::in_inode(area))?;
            inodes::change(self.volume, user, |inode| {
                if let Some(area) = inode.xattr_area_mut() {
                    replace(area, &found, old, new);
                }
                Ok(())
            })?;
        }
        match inode.file_acl() {
            Some(block) => self.redirect_block(block, old, new),
            None => Ok(()),
        }
    }

    fn redirect_block(&mut self, block: PhysBlock, old: InodeNr, new: InodeNr) -> Result<()> {
        let mut bytes = self.volume.read(block)?;
        let found = values(&Xattrs::in_block(&bytes).map_err(ResizeError::corrupt)?)?;
        if found.iter().all(|(value, _)| *value != old) {
            return Ok(());
        }
        replace(&mut bytes, &found, old, new);
        if self.volume.sb().has_metadata_csum() {
            let seed = self.volume.sb().checksum_seed();
            xattr::seal_block(&mut bytes, block, seed).map_err(ResizeError::corrupt)?;
        }
        self.volume.set(block, bytes);
        Ok(())
    }
}

/// The values that are inodes, with the offsets of their entries.
fn values(xattrs: &Xattrs<'_>) -> Result<Vec<(InodeNr, usize)>> {
    let mut found = Vec::new();
    for entry in xattrs.entries() {
        let entry = entry.map_err(ResizeError::corrupt)?;
        if let Value::Inode { inode, .. } = entry.value {
            found.push((inode, entry.at));
        }
    }
    Ok(found)
}

fn replace(area: &mut [u8], found: &[(InodeNr, usize)], old: InodeNr, new: InodeNr) {
    for (value, at) in found {
        let at = at.saturating_add(VALUE_INUM_AT);
        if *value == old
            && let Some(field) = area.get_mut(at..).and_then(|rest| rest.get_mut(..4))
        {
            field.copy_from_slice(&new.0.to_le_bytes());
        }
    }
}
