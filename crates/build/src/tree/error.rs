//! **Purpose.** Errors of inserting an entry of a source into the tree.

/// Why an entry of a source cannot be inserted into the tree. Each error names the entry.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum TreeError {
    /// A name of over 255 bytes.
    #[error("{}: the name has {length} bytes, ext4 allows 255", escaped(path))]
    NameTooLong {
        /// The path.
        path: Vec<u8>,
        /// The length of the name.
        length: usize,
    },
    /// An empty name, or one with a NUL or a slash.
    #[error("{}: ext4 does not allow this name", escaped(path))]
    BadName {
        /// The path.
        path: Vec<u8>,
    },
    /// A path with `..` in it.
    #[error("{}: the path leaves its tree", escaped(path))]
    Climbs {
        /// The path.
        path: Vec<u8>,
    },
    /// A component of the path is not a directory.
    #[error("{}: a part of the path is not a directory", escaped(path))]
    NotADirectory {
        /// The path.
        path: Vec<u8>,
    },
    /// A path with too many symbolic links.
    #[error("{}: too many symbolic links", escaped(path))]
    SymlinkLoop {
        /// The path.
        path: Vec<u8>,
    },
    /// A hard link to a missing object.
    #[error(
        "{}: a link to {}, which does not exist",
        escaped(path),
        escaped(target)
    )]
    NoTarget {
        /// The path of the link.
        path: Vec<u8>,
        /// The path of the link target.
        target: Vec<u8>,
    },
    /// A hard link to a directory.
    #[error("{}: a hard link to the directory {}", escaped(path), escaped(target))]
    LinkToDirectory {
        /// The path of the link.
        path: Vec<u8>,
        /// The path of the directory.
        target: Vec<u8>,
    },
    /// The root can only be a directory.
    #[error("the root of the tree must be a directory")]
    Root,
    /// A link target that is empty, longer than 4095 bytes or holds a NUL.
    #[error(
        "{}: the link target has {length} bytes or contains a NUL; ext4 allows 1 to 4095 bytes",
        escaped(path)
    )]
    BadTarget {
        /// The path of the symbolic link.
        path: Vec<u8>,
        /// The length of the target.
        length: usize,
    },
    /// The data pieces of a file are not sorted, overlap, or extend past the end of the file.
    #[error("{}: pieces of the file overlap or extend past its end", escaped(path))]
    BadPieces {
        /// The path of the file.
        path: Vec<u8>,
    },
    /// The tree has 4 GiB of names or 2^32 objects.
    #[error("the tree has too many names or objects")]
    Full,
}

impl TreeError {
    /// Prepends the directory, for an error that has the name alone.
    pub(crate) fn in_directory(mut self, directory: &[u8]) -> Self {
        match &mut self {
            Self::NameTooLong { path, .. }
            | Self::BadName { path }
            | Self::Climbs { path }
            | Self::NotADirectory { path }
            | Self::SymlinkLoop { path }
            | Self::NoTarget { path, .. }
            | Self::LinkToDirectory { path, .. }
            | Self::BadTarget { path, .. }
            | Self::BadPieces { path } => {
                path.splice(0..0, [directory, b"/"].concat());
            }
            Self::Root | Self::Full => {}
        }
        self
    }
}

/// Escapes a path for a message.
pub(crate) fn escaped(path: &[u8]) -> String {
    path.escape_ascii().to_string()
}
