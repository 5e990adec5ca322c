//! **Purpose.** Atomics that note their accesses. They have the size and alignment of the
//! originals, because [`Trace`] is zero-sized.

use std::fmt;
use std::sync::atomic as plain;
use std::sync::atomic::Ordering;

use super::Trace;

/// The part that all atomics have in common.
macro_rules! atomic {
    ($name:ident [$($param:ident)?], $value:ty) => {
        #[doc = concat!("A counted `", stringify!($name), "`.")]
        #[repr(C)]
        pub struct $name $(<$param>)? {
            trace: Trace,
            inner: plain::$name $(<$param>)?,
        }

        #[allow(missing_docs, reason = "the names and meanings of std")]
        impl $(<$param>)? $name $(<$param>)? {
            #[must_use]
            pub const fn new(value: $value) -> Self {
                Self { trace: Trace::new(), inner: plain::$name::new(value) }
            }

            pub fn get_mut(&mut self) -> &mut $value {
                self.inner.get_mut()
            }

            #[must_use]
            pub fn into_inner(self) -> $value {
                self.inner.into_inner()
            }

            #[track_caller]
            pub fn load(&self, order: Ordering) -> $value {
                self.trace.read();
                self.inner.load(order)
            }

            #[track_caller]
            pub fn store(&self, value: $value, order: Ordering) {
                self.trace.write();
                self.inner.store(value, order);
            }

            #[track_caller]
            pub fn swap(&self, value: $value, order: Ordering) -> $value {
                self.trace.write();
                self.inner.swap(value, order)
            }

            #[track_caller]
            pub fn compare_exchange(
                &self,
                current: $value,
                new: $value,
                success: Ordering,
                failure: Ordering,
            ) -> Result<$value, $value> {
                self.trace.write();
                self.inner.compare_exchange(current, new, success, failure)
            }

            #[track_caller]
            pub fn compare_exchange_weak(
                &self,
                current: $value,
                new: $value,
                success: Ordering,
                failure: Ordering,
            ) -> Result<$value, $value> {
                self.trace.write();
                self.inner.compare_exchange_weak(current, new, success, failure)
            }

            #[track_caller]
            pub fn fetch_update(
                &self,
                set_order: Ordering,
                fetch_order: Ordering,
                change: impl FnMut($value) -> Option<$value>,
            ) -> Result<$value, $value> {
                self.trace.write();
                self.inner.fetch_update(set_order, fetch_order, change)
            }
        }

        impl $(<$param>)? fmt::Debug for $name $(<$param>)? {
            fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                self.inner.fmt(f)
            }
        }

        impl $(<$param>)? From<$value> for $name $(<$param>)? {
            fn from(value: $value) -> Self {
                Self::new(value)
            }
        }
    };
}

/// The given read-modify-write operations.
macro_rules! fetch_operations {
    ($name:ident, $value:ty: $($operation:ident)*) => {
        #[allow(missing_docs, reason = "the names and meanings of std")]
        impl $name {
            $(
                #[track_caller]
                pub fn $operation(&self, value: $value, order: Ordering) -> $value {
                    self.trace.write();
                    self.inner.$operation(value, order)
                }
            )*
        }

        impl Default for $name {
            fn default() -> Self {
                Self::new(<$value>::default())
            }
        }
    };
}

macro_rules! integer {
    ($($name:ident $value:ty),*) => {
        $(
            atomic!($name [], $value);
            fetch_operations!($name, $value: fetch_add fetch_sub fetch_and fetch_nand fetch_or
                fetch_xor fetch_max fetch_min);
        )*
    };
}

integer!(AtomicU8 u8, AtomicU16 u16, AtomicU32 u32, AtomicU64 u64);
integer!(AtomicUsize usize, AtomicI64 i64);
atomic!(AtomicBool [], bool);
fetch_operations!(AtomicBool, bool: fetch_and fetch_nand fetch_or fetch_xor);
atomic!(AtomicPtr[T], *mut T);

impl<T> Default for AtomicPtr<T> {
    fn default() -> Self {
        Self::new(std::ptr::null_mut())
    }
}
