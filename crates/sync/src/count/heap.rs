//! **Purpose.** A heap in which no two pieces of memory share a cache line.
//!
//! **Model.** Threads that are on different cores have heaps of their own, so that what one core
//! makes lies beside what it made before. Virtual cores share a thread, and its heap puts side by
//! side what different cores make. A test whose question is not how heaps place things makes this
//! its global allocator.

use std::alloc::{GlobalAlloc, Layout, System};

const LINE_BYTES: usize = 64;

/// The system's heap, with whole cache lines for everything.
#[derive(Clone, Copy, Debug, Default)]
pub struct LineHeap;

/// The lines that something of this layout needs. What is too large for that cannot be had anyway.
fn whole_lines(layout: Layout) -> Layout {
    let lines = layout.align_to(LINE_BYTES);
    lines.map_or(layout, |lines| lines.pad_to_align())
}

// SAFETY: all is left to the system's heap, and each piece is given back with the layout with which
// it was asked for, since that follows from the caller's layout alone.
unsafe impl GlobalAlloc for LineHeap {
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        // SAFETY: promised by the caller; padding does not make a length zero.
        unsafe { System.alloc(whole_lines(layout)) }
    }

    unsafe fn alloc_zeroed(&self, layout: Layout) -> *mut u8 {
        // SAFETY: as above.
        unsafe { System.alloc_zeroed(whole_lines(layout)) }
    }

    unsafe fn dealloc(&self, pointer: *mut u8, layout: Layout) {
        // SAFETY: it came from `alloc` with the same layout, as the caller promises.
        unsafe { System.dealloc(pointer, whole_lines(layout)) }
    }
}
