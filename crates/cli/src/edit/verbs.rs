//! **Purpose.** The verbs of `fourscore edit`, in the spelling of the programs of the same names.

use std::ffi::OsString;
use std::fmt;
use std::os::unix::ffi::OsStrExt;

use clap::{Args, Parser, Subcommand};

/// A line of a script.
#[derive(Debug, Parser)]
#[command(no_binary_name = true, name = "edit", disable_help_flag = true)]
#[command(disable_help_subcommand = true)]
pub(super) struct Line {
    #[command(subcommand)]
    pub(super) verb: EditVerb,
}

/// A change of an image.
#[derive(Debug, Subcommand)]
#[command(disable_help_subcommand = true)]
pub(crate) enum EditVerb {
    /// Removes files, and with -r directories with everything in them
    Rm(Rm),
    /// Removes empty directories
    Rmdir(Paths),
    /// Makes directories
    Mkdir(Mkdir),
    /// Moves to a new path, or into a directory
    Mv(Mv),
    /// Makes a hard link, or with -s a symbolic link
    Ln(Ln),
    /// Makes a device, a fifo or a socket
    Mknod(Mknod),
    /// Replaces the data of a file with standard input, or in a script with <FILE
    Write(Write),
    /// Sets the size of a file, which is made if it is missing
    Truncate(Truncate),
    /// Sets the times of a file, which is made if it is missing
    #[command(disable_help_flag = true)]
    Touch(Touch),
    /// Changes permissions: octal, or as in u=rwX,go-w
    #[command(override_usage = "fourscore edit <IMAGE> chmod [-R] <MODE> <PATH>...")]
    Chmod(Loose),
    /// Changes owner and group: OWNER, OWNER:GROUP or :GROUP, numbers or names that the image has
    #[command(disable_help_flag = true)]
    Chown(Chown),
    /// Changes flags: +, - or =, and letters as lsattr prints them; -p sets the project
    #[command(
        override_usage = "fourscore edit <IMAGE> chattr [-R] [-p <PROJECT>] [+-=<FLAGS>] <PATH>..."
    )]
    Chattr(Loose),
    /// Sets an extended attribute, or removes one with -x
    #[command(disable_help_flag = true)]
    Setfattr(Setfattr),
    /// Changes access control lists, with the entries of setfacl
    Setfacl(Setfacl),
    /// Sets limits of a user, a group or a project
    Setquota(Setquota),
    /// Sets the label of the file system
    Label(Label),
    /// Sets the UUID of the file system: a UUID, random, time or clear
    Uuid(Uuid),
}

/// A path inside the image, which is absolute or begins at the root.
#[derive(Clone)]
pub(crate) struct InImage(pub(super) Vec<u8>);

impl fmt::Debug for InImage {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&crate::text::printable(&self.0))
    }
}

impl From<OsString> for InImage {
    fn from(text: OsString) -> Self {
        Self(text.as_bytes().to_vec())
    }
}

/// `rmdir`
#[derive(Debug, Args)]
pub(crate) struct Paths {
    /// Paths inside the image
    #[arg(required = true, value_name = "PATH")]
    pub(super) paths: Vec<InImage>,
}

/// `rm`
#[derive(Debug, Args)]
pub(crate) struct Rm {
    /// Removes directories with everything in them; links are not followed
    #[arg(short = 'r', short_alias = 'R', long)]
    pub(super) recursive: bool,
    /// What is missing is no error
    #[arg(short = 'f', long)]
    pub(super) force: bool,
    /// Paths inside the image
    #[arg(required = true, value_name = "PATH")]
    pub(super) paths: Vec<InImage>,
}

/// `mkdir`
#[derive(Debug, Args)]
pub(crate) struct Mkdir {
    /// Makes the directories above too; what exists is no error
    #[arg(short = 'p', long)]
    pub(super) parents: bool,
    /// Permissions, octal [default: 755]
    #[arg(short = 'm', long, value_name = "MODE")]
    pub(super) mode: Option<String>,
    /// Paths inside the image
    #[arg(required = true, value_name = "PATH")]
    pub(super) paths: Vec<InImage>,
}

/// `mv`
#[derive(Debug, Args)]
pub(crate) struct Mv {
    /// The destination is a name, even if it is a directory
    #[arg(short = 'T', long)]
    pub(super) no_target_directory: bool,
    /// Paths inside the image, the destination last
    #[arg(required = true, num_args = 2.., value_name = "SRC... DST")]
    pub(super) paths: Vec<InImage>,
}

/// `ln`
#[derive(Debug, Args)]
pub(crate) struct Ln {
    /// Makes a symbolic link; TARGET is stored as it is
    #[arg(short = 's', long)]
    pub(super) symbolic: bool,
    /// Replaces what is at LINK, unless it is a directory
    #[arg(short = 'f', long)]
    pub(super) force: bool,
    /// LINK is a name, even if it is a directory or a link to one
    #[arg(short = 'T', long, short_alias = 'n')]
    pub(super) no_target_directory: bool,
    /// What the link refers to
    pub(super) target: InImage,
    /// Path of the link inside the image, or a directory for it
    pub(super) link: InImage,
}

/// `mknod`
#[derive(Debug, Args)]
pub(crate) struct Mknod {
    /// Permissions, octal [default: 644]
    #[arg(short = 'm', long, value_name = "MODE")]
    pub(super) mode: Option<String>,
    /// Path inside the image
    pub(super) path: InImage,
    /// b (block device), c (character device), p (fifo) or s (socket)
    #[arg(value_parser = ["b", "c", "u", "p", "s"], hide_possible_values = true)]
    pub(super) kind: String,
    /// Major number of a device
    pub(super) major: Option<u32>,
    /// Minor number of a device
    pub(super) minor: Option<u32>,
}

/// `write`
#[derive(Debug, Args)]
pub(crate) struct Write {
    /// Adds the data to the end of the file
    #[arg(short = 'a', long)]
    pub(super) append: bool,
    /// Permissions of a new file, octal [default: 644]
    #[arg(short = 'm', long, value_name = "MODE")]
    pub(super) mode: Option<String>,
    /// Path inside the image; the file is made if it is missing
    pub(super) path: InImage,
}

/// `truncate`
#[derive(Debug, Args)]
pub(crate) struct Truncate {
    /// Bytes, with K, M, G or T; with + or - relative to the size
    #[arg(short = 's', long, value_name = "SIZE", allow_hyphen_values = true)]
    pub(super) size: String,
    /// Does not make files
    #[arg(short = 'c', long)]
    pub(super) no_create: bool,
    /// Paths inside the image
    #[arg(required = true, value_name = "PATH")]
    pub(super) paths: Vec<InImage>,
}

/// `touch`
#[derive(Debug, Args)]
pub(crate) struct Touch {
    /// Does not make files
    #[arg(short = 'c', long)]
    pub(super) no_create: bool,
    /// Sets only the time of the last access
    #[arg(short = 'a')]
    pub(super) access: bool,
    /// Sets only the time of the last change
    #[arg(short = 'm')]
    pub(super) modification: bool,
    /// Of a symbolic link itself
    #[arg(long, short = 'h')]
    pub(super) no_dereference: bool,
    /// @SECONDS, a date as YYYY-MM-DD, or with a time as YYYY-MM-DDTHH:MM:SSZ [default: now]
    #[arg(short = 'd', long, value_name = "TIME", allow_hyphen_values = true)]
    pub(super) date: Option<String>,
    /// Prints help
    #[arg(long, action = clap::ArgAction::Help)]
    help: Option<bool>,
    /// Paths inside the image
    #[arg(required = true, value_name = "PATH")]
    pub(super) paths: Vec<InImage>,
}

/// `chmod`, `chattr`: their arguments may begin with a minus that is no option.
#[derive(Debug, Args)]
pub(crate) struct Loose {
    /// -R for everything in directories, the change, and paths inside the image
    #[arg(required = true, trailing_var_arg = true, allow_hyphen_values = true)]
    pub(super) words: Vec<OsString>,
}

/// `chown`
#[derive(Debug, Args)]
pub(crate) struct Chown {
    /// Directories with everything in them; links are not followed
    #[arg(short = 'R', long)]
    pub(super) recursive: bool,
    /// Of a symbolic link itself
    #[arg(long, short = 'h')]
    pub(super) no_dereference: bool,
    /// OWNER, OWNER:GROUP or :GROUP
    pub(super) owner: String,
    /// Prints help
    #[arg(long, action = clap::ArgAction::Help)]
    help: Option<bool>,
    /// Paths inside the image
    #[arg(required = true, value_name = "PATH")]
    pub(super) paths: Vec<InImage>,
}

/// `setfattr`
#[derive(Debug, Args)]
pub(crate) struct Setfattr {
    /// Name, with user., trusted., security., gnu. or system.
    #[arg(short = 'n', long, required_unless_present = "remove")]
    pub(super) name: Option<OsString>,
    /// Value: text, "text", 0x and hexadecimal digits, or 0s and base64 [default: empty]
    #[arg(short = 'v', long, allow_hyphen_values = true, requires = "name")]
    pub(super) value: Option<OsString>,
    /// Removes the attribute
    #[arg(short = 'x', long, value_name = "NAME", conflicts_with = "name")]
    pub(super) remove: Option<OsString>,
    /// Of a symbolic link itself
    #[arg(long, short = 'h')]
    pub(super) no_dereference: bool,
    /// Takes the place of the option of all verbs, whose letter is that of the value here
    #[arg(long, hide = true, action = clap::ArgAction::Count)]
    verbose: u8,
    /// Prints help
    #[arg(long, action = clap::ArgAction::Help)]
    help: Option<bool>,
    /// Paths inside the image
    #[arg(required = true, value_name = "PATH")]
    pub(super) paths: Vec<InImage>,
}

/// `setfacl`
#[derive(Debug, Args)]
#[group(id = "change", required = true, multiple = true)]
pub(crate) struct Setfacl {
    /// Adds or changes entries: u:NAME:rwx, g:NAME:rx, m::rwx, d:u:NAME:r, ..
    #[arg(short = 'm', long, value_name = "ENTRIES", group = "change")]
    pub(super) modify: Vec<String>,
    /// Removes entries: u:NAME, g:NAME, m, d:u:NAME, ..
    #[arg(short = 'x', long, value_name = "ENTRIES", group = "change")]
    pub(super) remove: Vec<String>,
    /// Removes all entries but owner, group and others
    #[arg(short = 'b', long, group = "change")]
    pub(super) remove_all: bool,
    /// Removes the default list of directories
    #[arg(short = 'k', long, group = "change")]
    pub(super) remove_default: bool,
    /// Entries are those of the default list
    #[arg(short = 'd', long)]
    pub(super) default: bool,
    /// Directories with everything in them; links are not followed
    #[arg(short = 'R', long)]
    pub(super) recursive: bool,
    /// Paths inside the image
    #[arg(required = true, value_name = "PATH")]
    pub(super) paths: Vec<InImage>,
}

/// `setquota`
#[derive(Debug, Args)]
pub(crate) struct Setquota {
    /// Of a user (the default)
    #[arg(short = 'u', long, group = "kind")]
    pub(super) user: bool,
    /// Of a group
    #[arg(short = 'g', long, group = "kind")]
    pub(super) group: bool,
    /// Of a project
    #[arg(short = 'P', long, group = "kind")]
    pub(super) project: bool,
    /// Sets how long soft limits of this kind may be exceeded: for space and for inodes, in seconds
    #[arg(short = 't', long)]
    pub(super) edit_period: bool,
    /// Name or number, then soft and hard limit of space (KiB, or with K, M, G or T) and of inodes;
    /// 0 is no limit
    #[arg(required = true, value_name = "NAME BSOFT BHARD ISOFT IHARD")]
    pub(super) words: Vec<String>,
}

/// `label`
#[derive(Debug, Args)]
pub(crate) struct Label {
    /// At most 16 bytes
    pub(super) label: OsString,
}

/// `uuid`
#[derive(Debug, Args)]
pub(crate) struct Uuid {
    /// A UUID, random, time or clear
    pub(super) uuid: String,
}
