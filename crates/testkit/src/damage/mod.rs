//! **Purpose.** Damaged images: a seeded mutator that knows the on-disk structures, changes one of
//! them, and renews the checksums, so that readers meet the damage itself and not a wrong checksum.
//!
//! **Model.** An [`Anatomy`] lists the structures of a sound image. A seed chooses a kind of
//! structure, an instance, a field, and a value: near the old one, extreme, or that of a neighbour,
//! because checkers miss plausible values. One in sixteen seeds leaves checksums unchanged. The
//! change is made in the image file itself and can be undone, so that one image serves for hundreds
//! of seeds. A test for one certain damage names the structure and the field ([`Patient::change`]).
//!
//! **Not here.** Several faults at once, random bytes: the fuzz targets do that.
//!
//! | module | responsibility |
//! |---|---|
//! | `anatomy` | the structures of an image and their places |
//! | `fields` | the fields of each structure |
//! | `seal` | renewing checksums |

mod anatomy;
mod fields;
mod seal;

use std::fmt;
use std::fs::{File, OpenOptions};
use std::ops::Range;
use std::os::unix::fs::FileExt;
use std::path::Path;

use anyhow::{Context, Result};

pub use anatomy::{Anatomy, Kind, Site};

use crate::explore::rng::{Rng, mix};
use fields::Field;

/// One in this number of seeds leaves checksums unchanged.
const UNSEALED_ONE_IN: usize = 16;

/// An image that is damaged repeatedly.
#[derive(Debug)]
pub struct Patient {
    file: File,
    anatomy: Anatomy,
}

/// A damage to an image.
#[derive(Debug)]
pub struct Damage {
    /// The structure.
    pub kind: Kind,
    /// The field.
    pub field: &'static str,
    /// The old and the new value.
    pub change: (u64, u64),
    /// Its offset in the image, in bytes.
    pub at: u64,
    /// Whether checksums were renewed.
    pub sealed: Sealed,
    /// Offsets and old bytes in the order of the writes, for undo.
    before: Vec<(u64, Vec<u8>)>,
}

/// A changed field of a structure.
#[derive(Clone, Copy)]
struct Changed {
    field: &'static str,
    /// Its offset in the structure, in bytes.
    at: usize,
    /// Old and new.
    values: (u64, u64),
}

/// Whether the checksums around a damage were renewed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Sealed {
    /// They match the damaged bytes.
    Yes,
    /// They are those of the original bytes.
    No,
}

impl Damage {
    /// The ranges of the image that were written, in bytes: the field, and checksums.
    pub fn written(&self) -> impl Iterator<Item = Range<u64>> {
        let writes = self.before.iter();
        writes.map(|(at, bytes)| *at..*at + bytes.len() as u64)
    }
}

impl fmt::Display for Damage {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let (old, new) = self.change;
        let unsealed = match self.sealed {
            Sealed::Yes => "",
            Sealed::No => ", checksum not renewed",
        };
        write!(
            f,
            "{:?} at byte {}: {} {old:#x} -> {new:#x}{unsealed}",
            self.kind, self.at, self.field
        )
    }
}

impl Patient {
    /// Opens a sound image and finds its structures.
    ///
    /// # Errors
    /// If it cannot be read, or is not sound enough to be followed.
    pub fn new(image: &Path) -> Result<Self> {
        let file = OpenOptions::new().read(true).write(true).open(image);
        let file = file.with_context(|| image.display().to_string())?;
        let anatomy = Anatomy::of(&file)?;
        Ok(Self { file, anatomy })
    }

    /// The structures of the image.
    #[must_use]
    pub fn anatomy(&self) -> &Anatomy {
        &self.anatomy
    }

    /// Damages the image as the seed chooses.
    ///
    /// # Errors
    /// If the image cannot be read or written.
    pub fn damage(&self, seed: u64) -> Result<Damage> {
        let mut rng = Rng::new(mix(seed));
        loop {
            if let Some(damage) = self.try_damage(&mut rng)? {
                return Ok(damage);
            }
        }
    }

    fn try_damage(&self, rng: &mut Rng) -> Result<Option<Damage>> {
        let kinds = self.anatomy.kinds();
        let kind = *rng.pick(&kinds);
        let site = rng.pick(self.anatomy.sites(kind));
        let mut bytes = self.bytes(site)?;
        let fields = fields::of(&self.anatomy, site, &bytes);
        if fields.is_empty() {
            return Ok(None);
        }
        let field = *rng.pick(&fields);
        let old = field.get(&bytes);
        let new = self.new_value(rng, field, old);
        if new == old {
            return Ok(None);
        }
        let sealed = if rng.happens(1, UNSEALED_ONE_IN) {
            Sealed::No
        } else {
            Sealed::Yes
        };
        field.put(&mut bytes, new);
        let changed = Changed {
            field: field.name,
            at: field.at,
            values: (old, new),
        };
        self.put(site, &mut bytes, changed, sealed).map(Some)
    }

    /// Changes the `nth` field called `name` of a structure, counted from 0.
    ///
    /// # Errors
    /// If it has no such field, or the image cannot be read or written.
    pub fn change(
        &self,
        site: &Site,
        name: &str,
        nth: usize,
        sealed: Sealed,
        to: impl FnOnce(u64) -> u64,
    ) -> Result<Damage> {
        let (mut bytes, field) = self.field(site, name, nth)?;
        let old = field.get(&bytes);
        let new = to(old) & field.mask();
        field.put(&mut bytes, new);
        let changed = Changed {
            field: field.name,
            at: field.at,
            values: (old, new),
        };
        self.put(site, &mut bytes, changed, sealed)
    }

    /// The current value of the `nth` field called `name`.
    ///
    /// # Errors
    /// If there is no such field, or the image cannot be read.
    pub fn value(&self, site: &Site, name: &str, nth: usize) -> Result<u64> {
        let (bytes, field) = self.field(site, name, nth)?;
        Ok(field.get(&bytes))
    }

    /// The current bytes of a structure, and its `nth` field called `name`.
    fn field(&self, site: &Site, name: &str, nth: usize) -> Result<(Vec<u8>, Field)> {
        let bytes = self.bytes(site)?;
        let fields = fields::of(&self.anatomy, site, &bytes);
        let mut of_name = fields.into_iter().filter(|field| field.name == name);
        let field = of_name.nth(nth);
        let field = field.with_context(|| format!("{:?} has no {name} {nth}", site.kind))?;
        Ok((bytes, field))
    }

    /// Overwrites bytes of a structure from `at` on.
    ///
    /// # Errors
    /// If it is shorter, or the image cannot be read or written.
    pub fn overwrite(&self, site: &Site, at: usize, with: &[u8], sealed: Sealed) -> Result<Damage> {
        let mut bytes = self.bytes(site)?;
        let place = bytes.get_mut(at..at + with.len());
        place
            .with_context(|| format!("{:?} ends before byte {at}", site.kind))?
            .copy_from_slice(with);
        let changed = Changed {
            field: "bytes",
            at,
            values: (0, 0),
        };
        self.put(site, &mut bytes, changed, sealed)
    }

    /// The current bytes of a structure.
    ///
    /// # Errors
    /// If the image cannot be read.
    pub fn bytes(&self, site: &Site) -> Result<Vec<u8>> {
        let mut bytes = vec![0; site.length];
        self.file.read_exact_at(&mut bytes, site.at)?;
        Ok(bytes)
    }

    /// Writes a structure, and renews the checksums around it if `sealed` says so.
    fn put(
        &self,
        site: &Site,
        bytes: &mut [u8],
        changed: Changed,
        sealed: Sealed,
    ) -> Result<Damage> {
        let mut damage = Damage {
            kind: site.kind,
            field: changed.field,
            change: changed.values,
            at: site.at + changed.at as u64,
            sealed,
            before: Vec::new(),
        };
        if sealed == Sealed::Yes {
            seal::site(&self.anatomy, site, bytes);
        }
        self.write(&mut damage, site.at, bytes)?;
        if sealed == Sealed::Yes {
            for (at, bytes) in seal::around(&self.anatomy, site, &self.file)? {
                self.write(&mut damage, at, &bytes)?;
            }
        }
        Ok(damage)
    }

    /// Draws a value for the field, valid or just invalid.
    fn new_value(&self, rng: &mut Rng, field: Field, old: u64) -> u64 {
        let blocks = self.anatomy.superblock().geometry().blocks().0;
        let inodes = u64::from(self.anatomy.superblock().geometry().inodes());
        let value = match rng.below(10) {
            0 => 0,
            1 => old.wrapping_add(1),
            2 => old.wrapping_sub(1),
            3 => u64::MAX,
            4 | 5 => old ^ 1 << (rng.bits() % field.bits()),
            6 => rng.bits() % blocks,
            7 => rng.bits() % inodes + 1,
            8 => self.anatomy.some_block(rng.bits()),
            _ => rng.bits(),
        };
        value & field.mask()
    }

    fn write(&self, damage: &mut Damage, at: u64, bytes: &[u8]) -> Result<()> {
        let mut before = vec![0; bytes.len()];
        self.file.read_exact_at(&mut before, at)?;
        damage.before.push((at, before));
        self.file.write_all_at(bytes, at)?;
        Ok(())
    }

    /// Undoes a damage.
    ///
    /// # Errors
    /// If it cannot be written.
    pub fn undo(&self, damage: Damage) -> Result<()> {
        for (at, bytes) in damage.before.into_iter().rev() {
            self.file.write_all_at(&bytes, at)?;
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::image::{Image, MiB};
    use crate::oracle::{assert_clean, e2fsck};
    use crate::require;
    use crate::tools::Need;

    #[test]
    fn damage_is_met_and_can_be_undone() {
        require!(Need::Program("mke2fs"), Need::Program("e2fsck"));
        let image = Image::builder(MiB(16)).kind("ext4").make().unwrap();
        let before = std::fs::read(image.path()).unwrap();
        let patient = Patient::new(image.path()).unwrap();
        let mut met = 0;
        for seed in 0..20 {
            let damage = patient.damage(seed).unwrap();
            assert_ne!(std::fs::read(image.path()).unwrap(), before, "{damage}");
            met += u32::from(!e2fsck(image.path()).unwrap().is_clean());
            patient.undo(damage).unwrap();
        }
        assert!(met >= 10, "e2fsck met {met} of 20");
        assert_eq!(std::fs::read(image.path()).unwrap(), before);
        assert_clean(image.path());
    }
}
