//! **Purpose.** The core of the calling thread, and a working directory of its own, by calls of
//! Linux.

/// The number of the CPU this thread runs on, not yet checked against the count.
#[cfg_attr(feature = "shuttle", expect(dead_code, reason = "a model has its own"))]
#[inline]
pub(crate) fn current_index() -> usize {
    // SAFETY: the call has no preconditions. It fails (-1) only on kernels without getcpu.
    let cpu = unsafe { libc::sched_getcpu() };
    usize::try_from(cpu).unwrap_or(0)
}

/// As [`crate::thread::own_working_directory`].
pub(crate) fn own_working_directory() -> std::io::Result<()> {
    // SAFETY: unshare(CLONE_FS) parts the caller from the process's working directory, root and
    // file mode mask. It touches neither memory nor descriptors.
    match unsafe { libc::unshare(libc::CLONE_FS) } {
        0 => Ok(()),
        _ => Err(std::io::Error::last_os_error()),
    }
}
