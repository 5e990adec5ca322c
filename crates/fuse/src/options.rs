//! **Purpose.** The mount options of FUSE, as words of mount(8).
//!
//! **Not here.** The mount options of ext4: `fourscore::MountOptions::parse`, which also refuses
//! unknown ones.

use std::ffi::OsString;

/// How the kernel caches writes.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Cache {
    /// Writeback: it keeps dirty pages, and writes them when the file is closed or synced, when
    /// there are many, or after a while. fsync(2) and close(2) report that there is no space.
    #[default]
    Writeback,
    /// Writethrough: it writes at once (`nowriteback`, `nodelalloc`). write(2) reports that there
    /// is no space.
    Writethrough,
}

/// How permissions are checked.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Permissions {
    /// By the kernel, from owners, modes and access control lists.
    #[default]
    Kernel,
    /// Not at all: all users of the mount may do everything, like root (`fakeroot`).
    Nobody,
}

/// Which changes are durable when a call returns, without fsync(2).
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord)]
pub enum Durability {
    /// None.
    #[default]
    OnDemand,
    /// Changes of directories (`dirsync`).
    Names,
    /// All changes (`sync`), except those through mmap(2).
    Everything,
}

/// The transport of requests from the kernel.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Transport {
    /// Ring queues if the kernel has them, else `/dev/fuse`.
    #[default]
    Auto,
    /// `/dev/fuse`, which all kernels have (`transport=classic`).
    Classic,
    /// Ring queues, one for each processor; the mount fails without them (`transport=ring`).
    Ring,
}

/// Options of a mount.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct SessionOptions {
    /// The source in `/proc/mounts`: the image.
    pub source: OsString,
    /// Read-only (`ro`).
    pub is_read_only: bool,
    /// How the kernel caches writes.
    pub cache: Cache,
    /// The transport of requests.
    pub transport: Transport,
    /// Honours set-id bits of programs (`suid`); for root only.
    pub honours_set_id: bool,
    /// Honours device nodes (`dev`); for root only.
    pub honours_devices: bool,
    /// Allows to run programs (not `noexec`).
    pub runs_programs: bool,
    /// All users may access the mount, within their permissions (`allow_other`); else only the user
    /// that made it.
    pub is_for_all: bool,
    /// The mount point need not be empty (`nonempty`).
    pub may_hide: bool,
    /// How permissions are checked.
    pub permissions: Permissions,
    /// Which changes are durable when a call returns.
    pub durability: Durability,
    /// Limits of quota are enforced (`usrquota`, `grpquota`, `prjquota`), so that writes are sent
    /// at once, by the process that makes them.
    pub keeps_limits: bool,
}

impl Default for SessionOptions {
    fn default() -> Self {
        Self {
            source: "fourscore".into(),
            is_read_only: false,
            cache: Cache::default(),
            transport: Transport::default(),
            honours_set_id: false,
            honours_devices: false,
            runs_programs: true,
            is_for_all: false,
            may_hide: false,
            permissions: Permissions::default(),
            durability: Durability::default(),
            keeps_limits: false,
        }
    }
}

impl SessionOptions {
    /// Sets the options that it knows in `words`, which are separated by commas, and returns the
    /// other words.
    pub fn take(&mut self, words: &str) -> String {
        let mut others = Vec::new();
        for word in words.split(',').filter(|word| !word.is_empty()) {
            match word {
                "ro" => self.is_read_only = true,
                "rw" => self.is_read_only = false,
                "suid" => self.honours_set_id = true,
                "nosuid" => self.honours_set_id = false,
                "dev" => self.honours_devices = true,
                "nodev" => self.honours_devices = false,
                "exec" => self.runs_programs = true,
                "noexec" => self.runs_programs = false,
                "allow_other" => self.is_for_all = true,
                "nonempty" => self.may_hide = true,
                // The library allocates at once, so allocation is delayed only if the kernel delays
                // the write.
                "nowriteback" | "nodelalloc" => self.cache = Cache::Writethrough,
                "delalloc" => self.cache = Cache::Writeback,
                "fakeroot" => self.permissions = Permissions::Nobody,
                "sync" => self.durability = Durability::Everything,
                "async" => self.durability = Durability::OnDemand,
                "dirsync" => self.durability = self.durability.max(Durability::Names),
                "transport=auto" => self.transport = Transport::Auto,
                "transport=classic" => self.transport = Transport::Classic,
                "transport=ring" => self.transport = Transport::Ring,
                "quota" | "usrquota" | "grpquota" | "prjquota" => {
                    self.keeps_limits = true;
                    others.push(word);
                }
                "noquota" => {
                    self.keeps_limits = false;
                    others.push(word);
                }
                // The kernel always checks permissions.
                "default_permissions" => {}
                _ => match word.strip_prefix("fsname=") {
                    Some(name) => self.source = name.into(),
                    None => others.push(word),
                },
            }
        }
        others.join(",")
    }

    /// How the kernel caches writes: writethrough if changes are to be durable at once, or if
    /// limits of quota are enforced, since a cached write does not name its caller.
    pub(crate) fn cache(&self) -> Cache {
        match self.durability {
            Durability::Everything => Cache::Writethrough,
            _ if self.keeps_limits => Cache::Writethrough,
            _ => self.cache,
        }
    }

    /// The source as a word among mount options: characters that would end it are replaced.
    pub(crate) fn source_word(&self) -> String {
        let source = self.source.to_string_lossy();
        source.replace([',', '\\', '\n', '\0'], "_")
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn known_options_are_set_and_others_returned() {
        let mut options = SessionOptions::default();
        let words = "ro,noatime,allow_other,,data=ordered,fsname=a b,dev,rw,nowriteback,\
                     transport=ring,transport=no,no_such,fakeroot,sync,dirsync";
        let others = options.take(words);
        assert_eq!(others, "noatime,data=ordered,transport=no,no_such");
        let expected = SessionOptions {
            source: "a b".into(),
            cache: Cache::Writethrough,
            transport: Transport::Ring,
            honours_devices: true,
            is_for_all: true,
            permissions: Permissions::Nobody,
            durability: Durability::Everything,
            ..SessionOptions::default()
        };
        assert_eq!(options, expected);
        assert_eq!(options.take("nodelalloc,delalloc,async"), "");
        assert_eq!(options.cache(), Cache::Writeback);
        options.source = "a,b\n".into();
        assert_eq!(options.source_word(), "a_b_");
    }

    #[test]
    fn limits_are_kept_with_writes_that_name_their_user() {
        let mut options = SessionOptions::default();
        assert_eq!(
            options.take("usrquota,delalloc,prjquota"),
            "usrquota,prjquota"
        );
        assert_eq!(options.cache(), Cache::Writethrough);
        assert_eq!(options.take("noquota"), "noquota");
        assert_eq!(options.cache(), Cache::Writeback);
    }
}
