//! **Purpose.** The fields of a finding: each as JSON, and as a number where it has one.

use std::fmt;

use fourscore_ondisk::dirent::DirentError;
use fourscore_ondisk::extent::ExtentError;
use fourscore_ondisk::group::GroupDescError;
use fourscore_ondisk::htree::HtreeError;
use fourscore_ondisk::inline::InlineError;
use fourscore_ondisk::mmp::MmpError;
use fourscore_ondisk::orphan::OrphanError;
use fourscore_ondisk::xattr::XattrError;
use fourscore_ondisk::{ChecksumMismatch, GroupNr, InodeNr, LogicalBlock, PhysBlock};
use serde_json::Value;

use crate::text::escaped;

/// A field of a finding: as JSON, and as a number where it has one.
pub(super) trait Field {
    fn json(&self) -> Value;
    fn number(&self) -> Option<u64> {
        None
    }
}

macro_rules! number_fields {
    ($($kind:ty => $number:expr;)*) => {$(
        impl Field for $kind {
            fn json(&self) -> Value {
                self.number().into()
            }
            fn number(&self) -> Option<u64> {
                let number: fn(&$kind) -> u64 = $number;
                Some(number(self))
            }
        }
    )*};
}

number_fields! {
    InodeNr => |nr| nr.0.into();
    GroupNr => |nr| nr.0.into();
    PhysBlock => |nr| nr.0;
    LogicalBlock => |nr| nr.0.into();
    u16 => |&n| n.into();
    u32 => |&n| n.into();
    u64 => |&n| n;
}

macro_rules! text_fields {
    ($($kind:ty),* $(,)?) => {$(
        impl Field for $kind {
            fn json(&self) -> Value {
                self.to_string().into()
            }
        }
    )*};
}

text_fields! {
    &'static str, String, ChecksumMismatch, DirentError, ExtentError, GroupDescError, HtreeError,
    InlineError, MmpError, OrphanError, XattrError, Name, Inodes,
}

/// A name of a directory entry, as stored. It may be any bytes.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Name(pub Box<[u8]>);

impl From<&[u8]> for Name {
    fn from(bytes: &[u8]) -> Self {
        Self(bytes.into())
    }
}

impl fmt::Display for Name {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&escaped(&self.0))
    }
}

/// Inodes that have something in common.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Inodes(pub Vec<InodeNr>);

impl fmt::Display for Inodes {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for (nth, inode) in self.0.iter().enumerate() {
            let comma = if nth == 0 { "" } else { ", " };
            write!(f, "{comma}{inode}")?;
        }
        Ok(())
    }
}
