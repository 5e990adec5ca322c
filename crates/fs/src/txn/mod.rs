//! **Purpose.** TODO-HEADER.

pub(crate) mod apply;
pub(crate) mod block_locks;
pub(crate) mod faults;
pub(crate) mod grace;
pub(crate) mod memory;
pub(crate) mod order;
pub(crate) mod plan;
pub(crate) mod refused;
pub(crate) mod seal;
pub(crate) mod slot;
pub(crate) mod space;
