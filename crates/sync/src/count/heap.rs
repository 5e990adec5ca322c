//! **Purpose.** An allocator in which no two allocations share a cache line.
//!
//! **Model.** In the normal build, threads on different cores allocate from arenas of their own, so
//! neighbouring allocations come from the same core. Virtual cores share one thread and so one
//! arena, in which allocations of different cores are neighbours, and one core gets the memory that
//! another one has freed. A test that does not measure the placement of allocations makes this its
//! global allocator: small allocations are never given out again.

use std::alloc::{GlobalAlloc, Layout, System};

const LINE_BYTES: usize = 64;
/// Allocations up to this size are not given out again.
const MOST_KEPT_BYTES: usize = 1024;

/// The system allocator, with whole cache lines for each allocation.
#[derive(Clone, Copy, Debug, Default)]
pub struct LineHeap;

/// `layout` rounded up to whole lines. A layout that is too large for that stays as it is: its
/// allocation fails anyway.
fn whole_lines(layout: Layout) -> Layout {
    let lines = layout.align_to(LINE_BYTES);
    lines.map_or(layout, |lines| lines.pad_to_align())
}

// SAFETY: all calls go to the system allocator. Each allocation is freed with the layout that it
// was made with, since that depends on the caller's layout alone.
unsafe impl GlobalAlloc for LineHeap {
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        // SAFETY: the caller guarantees a non-zero length, and padding does not make it zero.
        unsafe { System.alloc(whole_lines(layout)) }
    }

    unsafe fn alloc_zeroed(&self, layout: Layout) -> *mut u8 {
        // SAFETY: as above.
        unsafe { System.alloc_zeroed(whole_lines(layout)) }
    }

    unsafe fn dealloc(&self, pointer: *mut u8, layout: Layout) {
        if layout.size() <= MOST_KEPT_BYTES {
            return;
        }
        // SAFETY: the caller guarantees that `alloc` returned it for the same layout.
        unsafe { System.dealloc(pointer, whole_lines(layout)) }
    }
}
