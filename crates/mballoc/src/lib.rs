//! **Purpose.** The multiblock allocator.
#![forbid(unsafe_code)]

pub mod bitset;
pub mod buddy;
pub mod geometry;
mod num;
pub mod order_index;
pub mod run_tree;
mod words;
