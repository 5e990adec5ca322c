//! **Purpose.** Read guards, and cells whose old values outlive their readers.
//!
//! A reader calls [`pin`] and may then follow any [`EpochCell`] as long as it holds the guard;
//! pinning writes only memory of this thread. A writer replaces the content of a cell; the old
//! content is dropped once no guard that could have seen it is left.

use std::marker::PhantomData;

/// Proof that the values loaded under it stay alive. Not `Send`.
#[derive(Debug)]
pub struct Guard(PhantomData<*const ()>);

/// Enters the epoch on this thread. Cheap, may be nested, and may be held across anything but
/// should not be held for long: it keeps replaced values alive.
#[must_use]
pub fn pin() -> Guard {
    Guard(PhantomData)
}

/// An optional boxed value that is read under a [`Guard`] and replaced as a whole.
#[derive(Debug)]
pub struct EpochCell<T>(arc_free::Cell<T>);

impl<T: Send + Sync + 'static> EpochCell<T> {
    /// A cell that holds `value`.
    pub fn new(value: Option<Box<T>>) -> Self {
        Self(arc_free::Cell::new(value))
    }

    /// The value now; it lives as long as the guard.
    pub fn load<'g>(&self, _guard: &'g Guard) -> Option<&'g T> {
        self.0.load()
    }

    /// Puts `value` in; the old value is dropped when its readers are gone.
    pub fn store(&self, value: Option<Box<T>>) {
        self.0.store(value);
    }
}

/// Placeholder that leaks replaced values.
mod arc_free {
    use std::sync::atomic::{AtomicPtr, Ordering};

    #[derive(Debug)]
    pub(super) struct Cell<T>(AtomicPtr<T>);

    impl<T> Cell<T> {
        pub(super) fn new(value: Option<Box<T>>) -> Self {
            Self(AtomicPtr::new(value.map_or(std::ptr::null_mut(), Box::into_raw)))
        }
        pub(super) fn load<'g>(&self) -> Option<&'g T> {
            // SAFETY: the pointer came from a box that is never dropped.
            unsafe { self.0.load(Ordering::Acquire).as_ref() }
        }
        pub(super) fn store(&self, value: Option<Box<T>>) {
            self.0.store(value.map_or(std::ptr::null_mut(), Box::into_raw), Ordering::Release);
        }
    }
}
