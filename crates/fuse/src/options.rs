//! **Purpose.** The words of mount(8) that concern a mount and not the file system in it.
//!
//! **Not here.** Those of ext4: `fourscore::MountOptions::parse`, which also refuses what nobody
//! knows.

use std::ffi::OsString;

/// What the kernel does with what is written.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Cache {
    /// Keeps it, and hands it on when the file is closed or synced, when there is much of it, or
    /// after a while. That there is no space is told by fsync(2) and close(2).
    #[default]
    Writeback,
    /// Hands it on at once (`nowriteback`, `nodelalloc`). write(2) tells that there is no space.
    Writethrough,
}

/// Who decides what users may do.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Permissions {
    /// The kernel, from owners, modes and access control lists.
    #[default]
    Kernel,
    /// Nobody: who can reach the mount may do everything, as root may (`fakeroot`).
    Nobody,
}

/// What is durable when a call returns, without fsync(2).
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord)]
pub enum Durability {
    /// Nothing.
    #[default]
    OnDemand,
    /// What calls change of directories (`dirsync`).
    Names,
    /// Everything that calls change (`sync`), but for what is written to memory (mmap(2)).
    Everything,
}

/// How requests come from the kernel.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Transport {
    /// Through rings where the kernel has them, else through `/dev/fuse`.
    #[default]
    Auto,
    /// Through `/dev/fuse`, as all kernels can (`transport=classic`).
    Classic,
    /// Through a ring of each processor, or not at all (`transport=ring`).
    Ring,
}

/// How a file system is mounted.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct SessionOptions {
    /// What the mount is called in `/proc/mounts`: the image.
    pub source: OsString,
    /// Nothing is written (`ro`).
    pub is_read_only: bool,
    /// What the kernel does with what is written.
    pub cache: Cache,
    /// How requests come from the kernel.
    pub transport: Transport,
    /// Set-id bits of programs count (`suid`); only root can have that.
    pub honours_set_id: bool,
    /// Device nodes are devices (`dev`); only root can have that.
    pub honours_devices: bool,
    /// Programs are run (not `noexec`).
    pub runs_programs: bool,
    /// All users may use the mount, as far as owners and permissions let them (`allow_other`); else
    /// only the one who made it.
    pub is_for_all: bool,
    /// The mount point may have something in it (`nonempty`).
    pub may_hide: bool,
    /// Who decides what users may do.
    pub permissions: Permissions,
    /// What is durable when a call returns.
    pub durability: Durability,
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
        }
    }
}

impl SessionOptions {
    /// Takes the words that it knows out of `words`, which are separated by commas, and returns the
    /// others.
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
                // The library allocates what it is given to write. Whether that is delayed is
                // whether the kernel keeps it.
                "nowriteback" | "nodelalloc" => self.cache = Cache::Writethrough,
                "delalloc" => self.cache = Cache::Writeback,
                "fakeroot" => self.permissions = Permissions::Nobody,
                "sync" => self.durability = Durability::Everything,
                "async" => self.durability = Durability::OnDemand,
                "dirsync" => self.durability = self.durability.max(Durability::Names),
                "transport=auto" => self.transport = Transport::Auto,
                "transport=classic" => self.transport = Transport::Classic,
                "transport=ring" => self.transport = Transport::Ring,
                // The kernel always asks for permissions.
                "default_permissions" => {}
                _ => match word.strip_prefix("fsname=") {
                    Some(name) => self.source = name.into(),
                    None => others.push(word),
                },
            }
        }
        others.join(",")
    }

    /// What the kernel does with what is written: it cannot hold back what is to be durable.
    pub(crate) fn cache(&self) -> Cache {
        match self.durability {
            Durability::Everything => Cache::Writethrough,
            _ => self.cache,
        }
    }

    /// The source as it is put among options: what would end it there is left out.
    pub(crate) fn source_word(&self) -> String {
        let source = self.source.to_string_lossy();
        source.replace([',', '\\', '\n', '\0'], "_")
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn words_of_the_mount_are_taken_and_others_left() {
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
}
