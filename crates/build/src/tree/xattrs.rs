//! **Purpose.** Stores extended attributes; equal sets are stored once.
//!
//! **Model.** A set is encoded as one byte string, sorted by name, so that equal sets have equal
//! encodings and share one number. Most trees have only a few sets (labels, capabilities, ACLs), so
//! a file costs 4 bytes.
//!
//! ```text
//! name_len u16 | name | value_len u32 | value | name_len u16 | ...
//! ```

use std::collections::HashMap;

use fourscore_ondisk::xattr::NameIndex;
use fourscore_sync::Arc;

/// Whether ext4 can store an attribute of this name, that is, whether Linux would list it for a
/// file on ext4. In the namespace `system.`, these are the two access control lists; others belong
/// to other file systems or, as `system.data`, to ext4 internally.
pub(crate) fn is_supported(name: &[u8]) -> bool {
    let index = NameIndex::split(name).map(|(index, _)| index);
    let is_foreign = matches!(index, None | Some(NameIndex::SYSTEM | NameIndex::RICHACL));
    !is_foreign && !name.contains(&0)
}

/// The extended attributes of one object, by their full names (`user.x`). ACLs have the format of
/// Linux attributes (`system.posix_acl_access`).
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Xattrs {
    sorted: Vec<(Vec<u8>, Vec<u8>)>,
}

impl Xattrs {
    /// An empty set.
    #[must_use]
    pub fn new() -> Self {
        Self::default()
    }

    /// Adds an attribute, or replaces its value.
    pub fn set(&mut self, name: &[u8], value: &[u8]) {
        match self.sorted.binary_search_by(|(own, _)| (**own).cmp(name)) {
            Ok(at) => self.sorted[at].1 = value.to_vec(),
            Err(at) => self.sorted.insert(at, (name.to_vec(), value.to_vec())),
        }
    }

    /// Whether the set is empty.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.sorted.is_empty()
    }

    /// Names and values, sorted by name.
    pub fn iter(&self) -> impl Iterator<Item = (&[u8], &[u8])> {
        self.sorted
            .iter()
            .map(|(name, value)| (name.as_slice(), value.as_slice()))
    }

    /// Removes all attributes, but keeps the allocation.
    pub fn clear(&mut self) {
        self.sorted.clear();
    }

    fn packed(&self) -> Vec<u8> {
        let mut bytes = Vec::new();
        for (name, value) in &self.sorted {
            // Linux limits names to 255 bytes and values to 64 KiB; longer ones are refused by the
            // layout.
            let name_len = u16::try_from(name.len()).unwrap_or(u16::MAX);
            let value_len = u32::try_from(value.len()).unwrap_or(u32::MAX);
            bytes.extend_from_slice(&name_len.to_le_bytes());
            bytes.extend(name.iter().take(name_len.into()));
            bytes.extend_from_slice(&value_len.to_le_bytes());
            bytes.extend(value.iter().take(value_len as usize));
        }
        bytes
    }
}

/// The number of a set; 0 is the empty set.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct XattrSet(pub(crate) u32);

/// All distinct sets of a tree.
#[derive(Debug)]
pub(crate) struct XattrSets {
    sets: Vec<Arc<[u8]>>,
    numbers: HashMap<Arc<[u8]>, u32>,
}

impl Default for XattrSets {
    fn default() -> Self {
        let empty: Arc<[u8]> = Arc::from([]);
        Self {
            sets: vec![Arc::clone(&empty)],
            numbers: HashMap::from([(empty, 0)]),
        }
    }
}

impl XattrSets {
    /// Returns the number of a set; `None` if there are 2^32.
    pub(crate) fn intern(&mut self, xattrs: &Xattrs) -> Option<XattrSet> {
        if xattrs.is_empty() {
            return Some(XattrSet(0));
        }
        let packed = xattrs.packed();
        if let Some(&number) = self.numbers.get(packed.as_slice()) {
            return Some(XattrSet(number));
        }
        let number = u32::try_from(self.sets.len()).ok()?;
        let packed: Arc<[u8]> = packed.into();
        self.sets.push(Arc::clone(&packed));
        self.numbers.insert(packed, number);
        Some(XattrSet(number))
    }

    /// Names and values of a set, sorted by name.
    pub(crate) fn iter(&self, set: XattrSet) -> XattrIter<'_> {
        let rest = self.sets.get(set.0 as usize).map_or(&[][..], |set| set);
        XattrIter { rest }
    }
}

/// Names and values of a set, sorted by name.
#[derive(Clone, Debug)]
pub struct XattrIter<'a> {
    rest: &'a [u8],
}

impl<'a> Iterator for XattrIter<'a> {
    type Item = (&'a [u8], &'a [u8]);

    fn next(&mut self) -> Option<Self::Item> {
        let (length, rest) = self.rest.split_first_chunk::<2>()?;
        let (name, rest) = rest.split_at_checked(u16::from_le_bytes(*length).into())?;
        let (length, rest) = rest.split_first_chunk::<4>()?;
        let (value, rest) = rest.split_at_checked(u32::from_le_bytes(*length) as usize)?;
        self.rest = rest;
        Some((name, value))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn xattrs(list: &[(&[u8], &[u8])]) -> Xattrs {
        let mut xattrs = Xattrs::new();
        for (name, value) in list {
            xattrs.set(name, value);
        }
        xattrs
    }

    #[test]
    fn equal_sets_share_a_number_in_any_order_of_insertion() {
        let mut sets = XattrSets::default();
        let one = sets.intern(&xattrs(&[(b"user.a", b"1"), (b"user.b", b"")]));
        let two = sets.intern(&xattrs(&[(b"user.b", b""), (b"user.a", b"1")]));
        let three = sets.intern(&xattrs(&[(b"user.b", b"2"), (b"user.a", b"1")]));
        assert_eq!(one, two);
        assert_ne!(one, three);
        assert_eq!(sets.intern(&Xattrs::new()), Some(XattrSet(0)));
        let found: Vec<_> = sets.iter(three.unwrap()).collect();
        assert_eq!(found, [(&b"user.a"[..], &b"1"[..]), (b"user.b", b"2")]);
        assert_eq!(sets.iter(XattrSet(0)).count(), 0);
    }

    #[test]
    fn a_later_value_replaces_an_earlier_one() {
        let found = xattrs(&[(b"user.a", b"1"), (b"user.a", b"2")]);
        assert_eq!(found, xattrs(&[(b"user.a", b"2")]));
    }
}
