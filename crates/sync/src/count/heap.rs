//! **Purpose.** An allocator in which no two allocations share a cache line.
//!
//! **Model.** In the normal build, threads on different cores allocate from arenas of their own, so
//! neighbouring allocations come from the same core. Virtual cores share one thread and so one
//! arena, in which allocations of different cores are neighbours, and one core gets the memory that
//! another one has freed. A test that does not measure the placement of allocations makes this its
//! global allocator: small allocations are taken from chunks of their own, one behind the other,
//! and are never given out again. So none of them has lines that an earlier object had.

use std::alloc::{GlobalAlloc, Layout, System};
use std::ptr::null_mut;
use std::sync::{Mutex, PoisonError};

const LINE_BYTES: usize = 64;
/// Allocations up to this size are small.
const MOST_KEPT_BYTES: usize = 1024;
/// So large a chunk is mapped by the system for itself.
const CHUNK_BYTES: usize = 64 << 20;

/// What is left of the chunk that small allocations are taken from.
static LEFT: Mutex<Left> = Mutex::new(Left { next: 0, end: 0 });

/// The addresses of free memory.
struct Left {
    next: usize,
    end: usize,
}

/// The system allocator, with whole cache lines for each allocation.
#[derive(Clone, Copy, Debug, Default)]
pub struct LineHeap;

/// `layout` rounded up to whole lines. A layout that is too large for that stays as it is: its
/// allocation fails anyway.
fn whole_lines(layout: Layout) -> Layout {
    let lines = layout.align_to(LINE_BYTES);
    lines.map_or(layout, |lines| lines.pad_to_align())
}

fn is_small(layout: Layout) -> bool {
    layout.size() <= MOST_KEPT_BYTES && layout.align() <= LINE_BYTES
}

/// Returns zeroed memory for a small allocation; null if there is none.
fn from_chunk(layout: Layout) -> *mut u8 {
    let bytes = whole_lines(layout).size();
    let mut left = LEFT.lock().unwrap_or_else(PoisonError::into_inner);
    if left.end - left.next < bytes {
        let Ok(chunk) = Layout::from_size_align(CHUNK_BYTES, LINE_BYTES) else {
            return null_mut();
        };
        // SAFETY: the length is not zero.
        let start = unsafe { System.alloc_zeroed(chunk) };
        if start.is_null() {
            return start;
        }
        let start = start.expose_provenance();
        *left = Left {
            next: start,
            end: start + CHUNK_BYTES,
        };
    }
    let at = left.next;
    left.next += bytes;
    std::ptr::with_exposed_provenance_mut(at)
}

// SAFETY: large allocations are those of the system allocator, each freed with the layout that it
// was made with, since that depends on the caller's layout alone. Small ones are parts of chunks,
// aligned to lines, do not overlap, and are never freed.
unsafe impl GlobalAlloc for LineHeap {
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        if is_small(layout) {
            return from_chunk(layout);
        }
        // SAFETY: the caller guarantees a non-zero length, and padding does not make it zero.
        unsafe { System.alloc(whole_lines(layout)) }
    }

    unsafe fn alloc_zeroed(&self, layout: Layout) -> *mut u8 {
        if is_small(layout) {
            return from_chunk(layout);
        }
        // SAFETY: as above.
        unsafe { System.alloc_zeroed(whole_lines(layout)) }
    }

    unsafe fn dealloc(&self, pointer: *mut u8, layout: Layout) {
        if is_small(layout) {
            return;
        }
        // SAFETY: the caller guarantees that `alloc` returned it for the same layout.
        unsafe { System.dealloc(pointer, whole_lines(layout)) }
    }
}
