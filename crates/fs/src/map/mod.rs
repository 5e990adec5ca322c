//! **Purpose.** TODO-HEADER.

pub(crate) mod clusters;
pub(crate) mod extents;
pub(crate) mod form;
pub(crate) mod lookup;
pub(crate) mod pointers;
pub(crate) mod update;
