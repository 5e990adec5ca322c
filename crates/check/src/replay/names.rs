//! **Purpose.** The names that fast commits add to directories and remove from them, and the names
//! that directories hold before the replay.
//!
//! **Invariants.** A directory is read once, however many records name it; memory follows the
//! records.

use std::collections::{BTreeMap, HashMap, HashSet};

use fourscore_ondisk::casefold::{Encoding, FoldedName};
use fourscore_ondisk::dirent::{DirFormat, Entry, NameForm};
use fourscore_ondisk::fast_commit::Record;
use fourscore_ondisk::inline::InlineData;
use fourscore_ondisk::inode::InodeFlags;
use fourscore_ondisk::xattr::Xattrs;
use fourscore_ondisk::{InodeNr, PhysBlock};

use crate::inode::InodeView;
use crate::pass1::orphans::Places;
use crate::volume::Volume;
use crate::walk::{Limits, Walker};

/// How the names of a directory differ from those on the device.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct DirChanges {
    /// The parent of a directory that the fast commits made: it has no block on the device.
    pub(crate) made_in: Option<InodeNr>,
    /// By the form in which names are compared.
    names: BTreeMap<Vec<u8>, Change>,
}

/// A name after the replay.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Change {
    /// It is gone.
    Removed,
    /// It refers to `inode`.
    Added {
        /// The name as it is stored.
        name: Box<[u8]>,
        inode: InodeNr,
    },
}

impl DirChanges {
    /// The changes of an empty directory that fast commits made in `parent`.
    pub(super) fn made_in(parent: InodeNr) -> Self {
        Self {
            made_in: Some(parent),
            names: BTreeMap::new(),
        }
    }

    /// The change of the name with this key; `None` if it is as on the device.
    pub(crate) fn of(&self, key: &[u8]) -> Option<&Change> {
        self.names.get(key)
    }

    pub(super) fn set(&mut self, key: Vec<u8>, change: Change) {
        self.names.insert(key, change);
    }

    /// All changes with their keys.
    pub(crate) fn all(&self) -> impl Iterator<Item = (&[u8], &Change)> {
        self.names.iter().map(|(key, change)| (&**key, change))
    }
}

/// The form in which names are compared: folded in a directory that ignores case.
pub(super) fn key(volume: &Volume, flags: InodeFlags, name: &[u8]) -> Vec<u8> {
    if flags.contains(InodeFlags::CASEFOLD_FL)
        && volume.sb.encoding().is_some()
        && let Ok(folded) = FoldedName::new(name, Encoding::Lenient)
    {
        return folded.hash_input().to_vec();
    }
    name.to_vec()
}

/// The names before the replay, as far as records mention them.
pub(super) struct StoredNames<'a> {
    volume: &'a Volume,
    mentioned: HashMap<InodeNr, HashSet<Vec<u8>>>,
    read: HashMap<InodeNr, HashMap<Vec<u8>, InodeNr>>,
    /// What the walks of all maps may still follow.
    limits: Limits,
}

impl<'a> StoredNames<'a> {
    /// Notes which names the records mention.
    pub(super) fn new<'r>(volume: &'a Volume, records: impl Iterator<Item = Record<'r>>) -> Self {
        let mut mentioned: HashMap<InodeNr, HashSet<Vec<u8>>> = HashMap::new();
        for record in records {
            if let Record::Creat(dentry) | Record::Link(dentry) | Record::Unlink(dentry) = record {
                let names = mentioned.entry(dentry.parent).or_default();
                names.insert(dentry.name.to_vec());
            }
        }
        Self {
            volume,
            mentioned,
            read: HashMap::new(),
            limits: Limits::of(volume),
        }
    }

    /// The inode that the name with this key refers to in directory `dir`.
    pub(super) fn find(&mut self, dir: InodeNr, key: &[u8]) -> Option<InodeNr> {
        if !self.read.contains_key(&dir) {
            let found = self.scan(dir).unwrap_or_default();
            self.read.insert(dir, found);
        }
        self.read.get(&dir)?.get(key).copied()
    }

    /// Reads all blocks of a directory and keeps the mentioned names. Blocks that cannot be read
    /// or parsed are skipped: pass 2 reports them.
    fn scan(&mut self, dir: InodeNr) -> Option<HashMap<Vec<u8>, InodeNr>> {
        let volume = self.volume;
        let mut bytes = Vec::new();
        volume.read_inode(dir, &mut bytes)?;
        let inode = InodeView::new(&bytes, dir).filter(InodeView::is_directory)?;
        let flags = inode.flags();
        let mentioned = self.mentioned.remove(&dir)?;
        let keys = mentioned.iter().map(|name| key(volume, flags, name));
        let keys: HashSet<Vec<u8>> = keys.collect();
        let mut found = HashMap::new();
        let mut keep = |entry: Entry<'_>| {
            let key = key(volume, flags, entry.name);
            if entry.inode.0 != 0 && keys.contains(&key) {
                found.entry(key).or_insert(entry.inode);
            }
        };
        let format = volume.dir_format(NameForm::Plain, inode.seed(&volume.sb));
        if flags.contains(InodeFlags::INLINE_DATA_FL) {
            let xattrs = Xattrs::in_inode(inode.xattr_area().unwrap_or(&[]));
            let data = InlineData::find(&inode.base.i_block, &xattrs).ok()?;
            let entries = data.directory(&format).ok()?.entries();
            entries.map_while(Result::ok).for_each(&mut keep);
        } else {
            let mut places = Places::default();
            let mut walker = Walker::within(volume, self.limits);
            walker.follow(&inode, &mut places);
            self.limits = walker.left();
            in_blocks(volume, &places, &format, &mut keep);
        }
        Some(found)
    }
}

/// Calls `keep` with each record of a directory's blocks. Blocks of its index hold no names.
fn in_blocks(
    volume: &Volume,
    places: &Places,
    format: &DirFormat,
    keep: &mut impl FnMut(Entry<'_>),
) {
    let mut block = vec![0; volume.block_bytes()];
    for (_, run) in &places.runs {
        for at in (run.start.0..run.end.0).map(PhysBlock) {
            if volume.read(at, &mut block).is_ok() {
                let records = format.records(&block).map_while(Result::ok);
                records.for_each(&mut *keep);
            }
        }
    }
}
