//! **Purpose.** Default mount options, behaviour on errors, and the hash of directories.

use fourscore_ondisk::superblock::{DefaultMountOpts, ErrorPolicy};

use super::wishes::Wishes;
use crate::error::{FormatError, FormatResult};

impl Wishes<'_> {
    /// The default mount options.
    pub(super) fn mount_opts(&self) -> FormatResult<DefaultMountOpts> {
        let mut opts = DefaultMountOpts::empty();
        if self.revision == 0 {
            return Ok(opts);
        }
        let text = self.string("default_mntopts");
        for word in text.unwrap_or("acl,user_xattr").split([',', ' ']) {
            let (name, set) = match word.strip_prefix(['^', '-']) {
                Some(name) => (name, false),
                None => (word, true),
            };
            if name.is_empty() {
                continue;
            }
            let opt = mount_option(name).ok_or_else(|| {
                let why = format!("{name} is not a mount option");
                FormatError::option("default_mntopts in the profile", why)
            })?;
            opts.set(opt, set);
        }
        Ok(opts)
    }

    /// What the kernel does when it finds an error.
    pub(super) fn error_policy(&self) -> FormatResult<ErrorPolicy> {
        if let Some(policy) = self.options.errors {
            return Ok(policy);
        }
        let Some(name) = self.string("errors") else {
            return Ok(ErrorPolicy::Continue);
        };
        ErrorPolicy::named(name).ok_or_else(|| {
            let why = format!("{name} is not continue, remount-ro or panic");
            FormatError::option("errors in the profile", why)
        })
    }

    /// The number of the hash function for directories, by the name the profile gives it.
    pub(super) fn hash_version(&self) -> u8 {
        match self.string("hash_alg") {
            Some("legacy") => 0,
            Some("tea") => 2,
            _ => 1,
        }
    }
}

/// The default mount option of this name.
pub(crate) fn mount_option(name: &str) -> Option<DefaultMountOpts> {
    Some(match name {
        "debug" => DefaultMountOpts::DEBUG,
        "bsdgroups" => DefaultMountOpts::BSDGROUPS,
        "user_xattr" => DefaultMountOpts::XATTR_USER,
        "acl" => DefaultMountOpts::ACL,
        "uid16" => DefaultMountOpts::UID16,
        "journal_data" => DefaultMountOpts::JMODE_DATA,
        "journal_data_ordered" => DefaultMountOpts::JMODE_ORDERED,
        "journal_data_writeback" => DefaultMountOpts::JMODE,
        "nobarrier" => DefaultMountOpts::NOBARRIER,
        "block_validity" => DefaultMountOpts::BLOCK_VALIDITY,
        "discard" => DefaultMountOpts::DISCARD,
        "nodelalloc" => DefaultMountOpts::NODELALLOC,
        _ => return None,
    })
}
