//! **Purpose.** Threads, and what is local to one.
//!
//! In the model a task is a coroutine: a thread-local of the standard library would be shared by
//! all of them, so `thread_local!` comes from here as well.

#[cfg(not(feature = "shuttle"))]
pub use std::thread::{
    Builder, JoinHandle, LocalKey, Scope, ScopedJoinHandle, Thread, ThreadId, current, park,
    park_timeout, scope, sleep, spawn, yield_now,
};
#[cfg(not(feature = "shuttle"))]
pub use std::thread_local;

#[cfg(feature = "shuttle")]
pub use shuttle::thread::{
    Builder, JoinHandle, LocalKey, Scope, ScopedJoinHandle, Thread, ThreadId, current, park, scope,
    sleep, spawn, yield_now,
};
#[cfg(feature = "shuttle")]
pub use shuttle::thread_local;

pub use std::thread::{available_parallelism, panicking};

/// As [`park`]: in the model the time never passes, so that a wake-up that only the timeout makes
/// up for shows as a deadlock.
#[cfg(feature = "shuttle")]
pub fn park_timeout(_timeout: std::time::Duration) {
    park();
}

/// Starts a thread of `scope`; unlike [`Scope::spawn`] it does not panic where the host refuses
/// one.
///
/// # Errors
/// The host's, when it gives this process no further thread.
pub fn spawn_scoped<'scope, T: Send + 'scope>(
    scope: &'scope Scope<'scope, '_>,
    act: impl FnOnce() -> T + Send + 'scope,
) -> std::io::Result<ScopedJoinHandle<'scope, T>> {
    #[cfg(not(feature = "shuttle"))]
    let thread = Builder::new().spawn_scoped(scope, act);
    // The scheduler of the model refuses no thread.
    #[cfg(feature = "shuttle")]
    let thread = Ok(scope.spawn(act));
    thread
}

/// Lets a moment pass before something is looked at again that another thread is changing: some
/// ten nanoseconds after the first attempt (0), longer after each further one, and from the fifth
/// on until other threads of this core have run.
pub fn back_off(attempt: u32) {
    #[cfg(not(feature = "shuttle"))]
    if attempt < 4 {
        (0..16_u32 << attempt).for_each(|_| std::hint::spin_loop());
        return;
    }
    let _ = attempt;
    yield_now();
}

/// Gives the calling thread a working directory of its own: what it changes to afterwards is
/// nobody else's. For threads made for one job; there is no way back.
///
/// # Errors
/// The host's, where a sandbox does not let a thread do this.
pub fn own_working_directory() -> std::io::Result<()> {
    // SAFETY: unshare(CLONE_FS) parts the caller from the process's working directory, root and
    // file mode mask. It touches neither memory nor descriptors.
    match unsafe { libc::unshare(libc::CLONE_FS) } {
        0 => Ok(()),
        _ => Err(std::io::Error::last_os_error()),
    }
}

#[cfg(all(test, not(feature = "shuttle")))]
mod tests {
    use std::env::{current_dir, set_current_dir};

    #[test]
    fn what_a_thread_does_with_its_own_directory_is_nobody_elses() {
        let before = current_dir().expect("a directory");
        let inside = super::spawn(|| {
            // A sandbox may forbid it; then there is nothing to show.
            super::own_working_directory().ok()?;
            set_current_dir("/").expect("everybody may");
            current_dir().ok()
        });
        let inside = inside.join().expect("no panic");
        assert!(inside.is_none_or(|path| path.as_os_str() == "/"));
        assert_eq!(current_dir().expect("a directory"), before);
    }
}
