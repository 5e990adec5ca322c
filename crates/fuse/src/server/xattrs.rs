//! **Purpose.** Extended attributes. The kernel has checked permissions; it reads access control
//! lists from here and evaluates them itself.

use fourscore::{Caller, SetXattr};

use super::{Call, Server};
use crate::abi::{
    GetxattrIn, GetxattrOut, OldSetxattrIn, SETXATTR_ACL_KILL_SGID, SetxattrIn, init,
};
use crate::reply::{Errno, Reply};

const XATTR_CREATE: u32 = 1;
const XATTR_REPLACE: u32 = 2;
const CREATE_AND_REPLACE: u32 = XATTR_CREATE | XATTR_REPLACE;

/// Replies with `bytes`, if the caller's buffer of `size_bytes` is long enough, or with their
/// number if that is 0.
fn push_value(bytes: &[u8], size_bytes: u32, reply: &mut Reply) -> Result<(), Errno> {
    let len = u32::try_from(bytes.len()).map_err(|_| Errno::RANGE)?;
    match size_bytes {
        0 => reply.push(&GetxattrOut {
            size: len,
            padding: 0,
        }),
        size_bytes if len > size_bytes => Err(Errno::RANGE),
        _ => reply.push_bytes(bytes),
    }
}

impl Server<'_> {
    pub(super) fn getxattr(&self, mut call: Call<'_>, reply: &mut Reply) -> Result<(), Errno> {
        let wanted: GetxattrIn = call.arguments.take()?;
        let value = self.fs.xattr(call.inode, call.arguments.name()?)?;
        push_value(&value, wanted.size, reply)
    }

    pub(super) fn listxattr(&self, mut call: Call<'_>, reply: &mut Reply) -> Result<(), Errno> {
        let wanted: GetxattrIn = call.arguments.take()?;
        let mut names = Vec::new();
        for attribute in self.fs.xattrs(call.inode)? {
            // Trusted attributes are visible to the super-user only.
            if call.header.uid == 0 || !attribute.name.starts_with(b"trusted.") {
                names.extend_from_slice(&attribute.name);
                names.push(0);
            }
        }
        push_value(&names, wanted.size, reply)
    }

    pub(super) fn setxattr(&self, mut call: Call<'_>) -> Result<(), Errno> {
        let wanted = match self.agreed.has(init::SETXATTR_EXT) {
            true => call.arguments.take()?,
            false => {
                let OldSetxattrIn { size, flags } = call.arguments.take()?;
                SetxattrIn {
                    size,
                    flags,
                    ..SetxattrIn::default()
                }
            }
        };
        let name = call.arguments.name()?;
        let value = call.arguments.bytes(wanted.size)?;
        let how = match wanted.flags {
            0 => SetXattr::Any,
            XATTR_CREATE => SetXattr::Create,
            XATTR_REPLACE => SetXattr::Replace,
            // It must be there and must not, so nothing is set; only the reason differs.
            CREATE_AND_REPLACE => {
                self.fs.xattr(call.inode, name)?;
                return Err(fourscore::Error::Exists.into());
            }
            _ => return Err(Errno::INVAL),
        };
        let caller = match wanted.setxattr_flags & SETXATTR_ACL_KILL_SGID {
            0 => Caller::ROOT,
            _ => Self::without_set_id(&call.header),
        };
        Ok(self
            .fs
            .set_xattr_as(&caller, call.inode, name, value, how)?)
    }

    pub(super) fn removexattr(&self, mut call: Call<'_>) -> Result<(), Errno> {
        Ok(self.fs.remove_xattr(call.inode, call.arguments.name()?)?)
    }
}
