//! **Purpose.** How a file is opened: the options of `std::fs::OpenOptions`, for one file.

use crate::{Error, Result};

/// How a file is opened. The options are those of [`std::fs::OpenOptions`]; each is off until it is
/// called. ([`OpenOptions`](crate::OpenOptions) are those of a file system.)
///
/// ```no_run
/// # use fourscore::{FileOptions, Fs, Result};
/// # fn log(fs: &Fs) -> Result<()> {
/// let log = fs.paths().open_with("/var/log/messages", FileOptions::new().append().create())?;
/// # Ok(())
/// # }
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct FileOptions {
    pub(crate) access: Access,
    /// Whether the file's data is removed when it is opened.
    truncates: bool,
    pub(crate) creation: Creation,
    /// The permissions of a new file, before the umask.
    pub(crate) mode: u16,
}

/// What may be done with an open file.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Access {
    pub(crate) reads: bool,
    pub(crate) writes: bool,
    /// Whether every write goes to the end of the file.
    pub(crate) appends: bool,
}

/// Whether opening makes the file.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) enum Creation {
    #[default]
    Never,
    IfMissing,
    /// The file must be missing.
    Always,
}

impl Default for FileOptions {
    fn default() -> Self {
        Self {
            access: Access::default(),
            truncates: false,
            creation: Creation::Never,
            mode: 0o666,
        }
    }
}

impl FileOptions {
    /// Returns the options with nothing set. At least one of reading, writing and appending has to
    /// be added.
    #[must_use]
    pub fn new() -> Self {
        Self::default()
    }

    /// Opens for reading.
    #[must_use]
    pub fn read(mut self) -> Self {
        self.access.reads = true;
        self
    }

    /// Opens for writing. Writes begin at the file's start and overwrite its data.
    #[must_use]
    pub fn write(mut self) -> Self {
        self.access.writes = true;
        self
    }

    /// Opens for writing after the end of the file. Each write is atomic: no other write comes
    /// between finding the end and writing there.
    #[must_use]
    pub fn append(mut self) -> Self {
        self.access.appends = true;
        self
    }

    /// Removes the data of a file that exists. Needs [`FileOptions::write`].
    #[must_use]
    pub fn truncate(mut self) -> Self {
        self.truncates = true;
        self
    }

    /// Makes the file if it is missing, also where a symbolic link refers to a missing file. Needs
    /// [`FileOptions::write`] or [`FileOptions::append`].
    #[must_use]
    pub fn create(mut self) -> Self {
        if self.creation == Creation::Never {
            self.creation = Creation::IfMissing;
        }
        self
    }

    /// Makes the file, and fails with `Exists` if its name is taken, be it by a symbolic link. The
    /// check and the creation are one step.
    #[must_use]
    pub fn create_new(mut self) -> Self {
        self.creation = Creation::Always;
        self
    }

    /// Sets the permissions of a file that is made, from which the umask of [`Paths`](crate::Paths)
    /// is taken away: 0o666 unless set.
    #[must_use]
    pub fn mode(mut self, permissions: u16) -> Self {
        self.mode = permissions;
        self
    }

    pub(crate) fn truncates(&self) -> bool {
        self.truncates
    }

    /// Whether the file can be changed by what the options allow.
    pub(crate) fn changes(&self) -> bool {
        self.access.writes || self.access.appends
    }

    /// Refuses options that do not go together, as std does.
    pub(crate) fn check(&self) -> Result<()> {
        let Access {
            reads,
            writes,
            appends,
        } = self.access;
        if !(reads || writes || appends) {
            return Err(Error::InvalidArgument(
                "open for neither reading nor writing",
            ));
        }
        let makes = self.creation != Creation::Never;
        if !self.changes() && (self.truncates || makes) {
            return Err(Error::InvalidArgument(
                "made or truncated, but not open for writing",
            ));
        }
        if appends && self.truncates && self.creation != Creation::Always {
            return Err(Error::InvalidArgument("truncated, but open for appending"));
        }
        Ok(())
    }
}
