//! **Purpose.** Confines a server that reads an untrusted image: an attacker who takes over the
//! server through a bug can reach only the image and the mount.
//!
//! **Model.** A process confines itself in two steps. Each irrevocably drops:
//!
//! - [`enclose`], when image and mount are open and before the image is read: privileges and ways
//!   to gain new ones, core dumps (which would expose file data), all files except `/dev/fuse` and
//!   reading `/sys`, connections, signals to other processes.
//! - [`Enclosed::lock`], when everything else is open and before the first request: the rest of the
//!   files, and every system call except those of `calls`.
//!
//! The first step applies to the calling thread and to those that it starts, so it must come before
//! there are other threads. The second one applies to all threads. A system call that is not
//! allowed fails with `EPERM` and does not kill the process: a refused call does no harm, and a
//! library that can do without it continues to work.
//!
//! Rings of io_uring execute system calls that the filter does not see. So they are made before the
//! second step, after which none can be made, and restricted. Opening a file or connecting through
//! a ring is still subject to Landlock, which checks the operation and not the system call.
//!
//! **Not here.** Unmounting, which a confined process cannot do: another process must do it.
//! Memory, which the budgets of the caches bound.
//!
//! **References.** landlock(7), seccomp(2), capabilities(7), `PR_SET_DUMPABLE` of prctl(2).

mod calls;

use landlock::{
    ABI, Access, AccessFs, AccessNet, CompatLevel, Compatible, Ruleset, RulesetAttr,
    RulesetCreatedAttr, RulesetStatus, Scope, path_beneath_rules,
};
use rustix::process::{DumpableBehavior, Resource, Rlimit};
use rustix::thread::{CapabilitySet, CapabilitySets};

/// The newest version of Landlock that is used. Older kernels apply the rules that they know.
const LANDLOCK: ABI = ABI::V7;

/// The error of confining a process.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum SandboxError {
    /// Privileges or core dumps could not be dropped.
    #[error("privileges: {0}")]
    Privileges(std::io::Error),
    /// The kernel refuses the rules for files and connections.
    #[error("landlock: {0}")]
    Landlock(#[from] landlock::RulesetError),
    /// The kernel refuses the filter for system calls.
    #[error("seccomp: {0}")]
    Seccomp(#[from] seccompiler::Error),
}

/// The state after the first step.
#[derive(Debug)]
pub struct Enclosed(());

/// Drops everything that is not needed to open a file system and to prepare its workers. Must be
/// called while there is one thread.
///
/// On a kernel without Landlock (before 5.13, or disabled) only the second step denies files.
///
/// # Errors
/// See [`SandboxError`]; a part may be dropped then.
pub fn enclose() -> Result<Enclosed, SandboxError> {
    drop_privileges().map_err(|errno| SandboxError::Privileges(errno.into()))?;
    // Workers open `/dev/fuse`, and read the list of processors.
    restrict(&["/dev/fuse"], &["/sys"])?;
    Ok(Enclosed(()))
}

impl Enclosed {
    /// Drops everything that is not needed to serve, in all threads of the process.
    ///
    /// # Errors
    /// See [`SandboxError`].
    pub fn lock(self) -> Result<(), SandboxError> {
        restrict(&[], &[])?;
        Ok(calls::filter()?)
    }
}

fn drop_privileges() -> rustix::io::Result<()> {
    let none = CapabilitySet::empty();
    let nothing = CapabilitySets {
        effective: none,
        permitted: none,
        inheritable: none,
    };
    rustix::thread::set_no_new_privs(true)?;
    rustix::thread::set_capabilities(None, nothing)?;
    rustix::process::set_dumpable_behavior(DumpableBehavior::NotDumpable)?;
    let no_core = Rlimit {
        current: Some(0),
        maximum: Some(0),
    };
    rustix::process::setrlimit(Resource::Core, no_core)
}

/// Denies this thread all files except those beneath `written`, and reading those beneath `read`.
fn restrict(written: &[&str], read: &[&str]) -> Result<(), SandboxError> {
    let everything = AccessFs::from_all(LANDLOCK);
    let status = Ruleset::default()
        .set_compatibility(CompatLevel::BestEffort)
        .handle_access(everything)?
        .handle_access(AccessNet::from_all(LANDLOCK))?
        .scope(Scope::from_all(LANDLOCK))?
        .create()?
        .add_rules(path_beneath_rules(written, everything))?
        .add_rules(path_beneath_rules(read, AccessFs::from_read(LANDLOCK)))?
        .restrict_self()?;
    if status.ruleset != RulesetStatus::FullyEnforced {
        tracing::info!(
            ?status,
            "this kernel enforces only a part of the Landlock rules"
        );
    }
    Ok(())
}
