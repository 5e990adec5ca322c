//! **Purpose.** Checks extended attributes: inside the inode, in blocks that inodes share, and in
//! inodes that hold one large value.
//!
//! **Locking.** The map of attribute blocks is sharded. The lock of a shard is not held while a
//! block is read: a thread that finds the block in the map afterwards drops what it read.

use fourscore_ondisk::crypt::Context;
use fourscore_ondisk::dirhash::CharSign;
use fourscore_ondisk::features::Compat;
use fourscore_ondisk::inode::InodeFlags;
use fourscore_ondisk::xattr::{self, EaInode, Entry, HashedValue, NameIndex, Value, Xattrs};
use fourscore_ondisk::{InodeNr, PhysBlock};

use super::Scanner;
use crate::finding::Finding;
use crate::inode::InodeView;
use crate::report::Findings;
use crate::state::{Charge, State, XattrBlock};

/// The name of the attribute with the encryption context.
const CONTEXT_NAME: &[u8] = b"c";

/// The place of an area of attributes.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Area {
    InInode,
    InBlock,
}

impl Scanner<'_> {
    /// Checks the attributes inside an inode. Returns the charge for their values in other inodes.
    pub(super) fn xattrs_in_inode(&mut self, inode: &InodeView<'_>, area: &[u8]) -> Charge {
        if let Err(why) = xattr::check_in_inode(area, self.volume.ea_inodes()) {
            let inode = inode.number;
            self.findings.push(Finding::XattrInInode { inode, why });
            return Charge::default();
        }
        self.entries(inode, &Xattrs::in_inode(area), Area::InInode)
    }

    /// Checks the attribute block of an inode; the first inode with it claims it. Returns the
    /// charge for its values in other inodes, or `None` without a valid block.
    pub(super) fn xattr_block(&mut self, inode: &InodeView<'_>) -> Option<Charge> {
        let block = inode.file_acl(&self.volume.sb);
        if block.0 == 0 {
            return None;
        }
        let has_feature = self.volume.compat(Compat::EXT_ATTR);
        if !has_feature || !self.volume.physical().contains(&block) {
            self.state.bad.insert(inode.number.0.into());
            let inode = inode.number;
            self.findings
                .push(Finding::XattrBlockPlace { inode, block });
            return None;
        }
        if let Some(charge) = add_user(self.state, block) {
            return Some(charge);
        }
        let limit = self.findings.limit();
        let own = std::mem::replace(&mut self.findings, Findings::new(limit));
        let new = self.read_xattr_block(inode, block);
        let found = std::mem::replace(&mut self.findings, own);
        let values = new.values;
        {
            let mut shard = self.state.xattr_shard(block).lock();
            if let Some(known) = shard.get_mut(&block) {
                known.users += 1;
                return Some(known.values);
            }
            shard.insert(block, new);
        }
        self.findings.merge(found);
        self.count_value_users();
        self.claim_attributes(inode.number, block);
        Some(values)
    }

    fn read_xattr_block(&mut self, inode: &InodeView<'_>, block: PhysBlock) -> XattrBlock {
        let nr = inode.number;
        let mut bytes = std::mem::take(&mut self.block);
        bytes.resize(self.volume.block_bytes(), 0);
        let mut new = XattrBlock {
            refcount: None,
            users: 1,
            values: Charge::default(),
        };
        if let Err(error) = self.volume.read(block, &mut bytes) {
            let why = error.to_string();
            self.findings.push(Finding::Unreadable { block, why });
        } else {
            let (ea_inodes, seed) = (self.volume.ea_inodes(), self.volume.seed());
            let checked = xattr::check_block(&bytes, block, ea_inodes, seed);
            match (checked, Xattrs::in_block(&bytes)) {
                (Ok(()), Ok(xattrs)) => {
                    new.refcount = xattr::block_header(&bytes)
                        .ok()
                        .map(|header| header.h_refcount.get());
                    new.values = self.entries(inode, &xattrs, Area::InBlock);
                }
                (Err(why), _) | (_, Err(why)) => {
                    let inode = nr;
                    self.findings
                        .push(Finding::XattrBlock { inode, block, why });
                }
            }
        }
        self.block = bytes;
        new
    }

    /// Counts a user of each inode that holds a value of the block in the buffer.
    fn count_value_users(&mut self) {
        let Ok(xattrs) = Xattrs::in_block(&self.block) else {
            return;
        };
        for entry in xattrs.entries().map_while(Result::ok) {
            if let Value::Inode { inode, .. } = entry.value {
                self.state.value_users.add(inode, 1);
            }
        }
    }

    /// Checks what parsing does not: that values do not overlap, and their hashes.
    fn entries(&mut self, inode: &InodeView<'_>, xattrs: &Xattrs<'_>, area: Area) -> Charge {
        let mut charge = Charge::default();
        let mut places = std::mem::take(&mut self.places);
        places.clear();
        let nr = inode.number;
        for entry in xattrs.entries().map_while(Result::ok) {
            let at = u32::try_from(entry.at).unwrap_or(u32::MAX);
            if area == Area::InBlock && entry.index == NameIndex(0) {
                self.findings.push(Finding::XattrName { inode: nr, at });
            }
            match entry.value {
                Value::Inline(value) => {
                    if let Some(start) = xattrs.value_place(&entry) {
                        places.push((start, start + value.len().next_multiple_of(4)));
                    }
                    let may_be_0 = area == Area::InInode && entry.hash == 0;
                    if !may_be_0 {
                        self.hash(nr, &entry, HashedValue::Inline(value));
                    }
                }
                Value::Inode {
                    inode: value,
                    bytes,
                } => {
                    if area == Area::InInode {
                        self.state.value_users.add(value, 1);
                    }
                    charge.inodes += 1;
                    charge.clusters += self.value_inode(inode, &entry, value, bytes);
                }
            }
        }
        places.sort_unstable();
        if let Some(pair) = places.windows(2).find(|pair| pair[1].0 < pair[0].1) {
            let at = u32::try_from(pair[1].0).unwrap_or(u32::MAX);
            self.findings
                .push(Finding::XattrCollision { inode: nr, at });
        }
        self.places = places;
        charge
    }

    /// Checks the hash of an entry against its name and value. Bytes may count as unsigned or
    /// signed.
    fn hash(&mut self, inode: InodeNr, entry: &Entry<'_>, value: HashedValue<'_>) -> bool {
        let found = entry.hash;
        let of = |chars| xattr::entry_hash(entry.name, value, chars);
        let expected = of(CharSign::Unsigned);
        if found == expected || found == of(CharSign::Signed) {
            return true;
        }
        if let HashedValue::Inline(_) = value {
            let at = u32::try_from(entry.at).unwrap_or(u32::MAX);
            self.findings.push(Finding::XattrHash {
                inode,
                at,
                found,
                expected,
            });
        }
        false
    }

    /// Checks an inode that an entry names for its value. Returns the clusters charged to users.
    ///
    /// The stored hash is compared with the entry, not with the bytes of the value: these are data,
    /// which is not read. e2fsck does the same.
    fn value_inode(
        &mut self,
        user: &InodeView<'_>,
        entry: &Entry<'_>,
        value: InodeNr,
        bytes: u32,
    ) -> u64 {
        let mut buffer = std::mem::take(&mut self.other_inode);
        let read = self.volume.read_inode(value, &mut buffer);
        let mut sound = false;
        let mut charged = false;
        if let Some(holder) = read.and_then(|()| InodeView::new(&buffer, value)) {
            let fields = EaInode::of(holder.base);
            sound = holder.has(InodeFlags::EA_INODE_FL);
            let hashed = HashedValue::Inode(fields.value_hash);
            charged = self.hash(user.number, entry, hashed);
            let lustre = fields.lustre_parent == user.number
                && holder.base.i_generation == user.base.i_generation;
            sound &= charged || lustre;
        }
        self.other_inode = buffer;
        if !sound {
            let inode = user.number;
            self.findings
                .push(Finding::XattrValueInode { inode, value });
        }
        let cluster = self.volume.geometry().cluster_size_bytes() as u64;
        if charged {
            u64::from(bytes).div_ceil(cluster)
        } else {
            0
        }
    }

    /// Checks that an encrypted inode has an encryption context, and collects its policy.
    pub(super) fn encryption(&mut self, inode: &InodeView<'_>) {
        let nr = inode.number;
        let area = Xattrs::in_inode(inode.xattr_area().unwrap_or(&[]));
        let mut found = self.context(nr, &area);
        let block = inode.file_acl(&self.volume.sb);
        if found.is_none() && self.volume.physical().contains(&block) {
            let mut bytes = std::mem::take(&mut self.block);
            bytes.resize(self.volume.block_bytes(), 0);
            if self.volume.read(block, &mut bytes).is_ok()
                && let Ok(xattrs) = Xattrs::in_block(&bytes)
            {
                found = self.context(nr, &xattrs);
            }
            self.block = bytes;
        }
        let why = match found {
            Some(Ok(())) => return,
            Some(Err(why)) => why,
            None => "missing",
        };
        let inode = inode.number;
        self.findings
            .push(Finding::EncryptionContext { inode, why });
    }

    /// Looks for the encryption context of an inode among attributes, and collects its policy.
    fn context(&mut self, inode: InodeNr, xattrs: &Xattrs<'_>) -> Option<Result<(), &'static str>> {
        let found = xattrs.find(NameIndex::ENCRYPTION, CONTEXT_NAME);
        let Value::Inline(value) = found.ok().flatten()?.value else {
            return Some(Err("its value is in another inode"));
        };
        let is_later = matches!(value.first(), Some(3..));
        if !is_later && Context::parse(value).is_err() {
            return Some(Err("cannot be read"));
        }
        self.policies.add(inode, value, &self.state.policies);
        Some(Ok(()))
    }
}

/// Counts one more user of a known block.
fn add_user(state: &State, block: PhysBlock) -> Option<Charge> {
    let mut shard = state.xattr_shard(block).lock();
    let known = shard.get_mut(&block)?;
    known.users += 1;
    Some(known.values)
}

/// Compares the reference counts of attribute blocks with their users.
pub(super) fn check_refcounts(state: &State, findings: &mut Findings) {
    for shard in &state.xattr_blocks {
        for (&block, known) in shard.lock().iter() {
            let Some(found) = known.refcount else {
                continue;
            };
            let expected = known.users;
            if u64::from(found) != expected {
                findings.push(Finding::XattrRefcount {
                    block,
                    found,
                    expected,
                });
            }
        }
    }
}
