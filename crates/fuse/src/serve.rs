//! **Purpose.** The interface between transports and servers.

use crate::reply::Reply;
use crate::request::Request;

/// Whether a request has a reply.
#[derive(Debug)]
pub(crate) enum Answered {
    WithReply,
    WithoutReply,
    /// With the last reply, to DESTROY: everything has been written to the device, or that failed,
    /// and nothing is written any more.
    Farewell(fourscore::Result<()>),
}

/// Called by a transport after it has sent the reply to DESTROY.
pub(crate) type Farewell<'f> = &'f (dyn Fn(fourscore::Result<()>) + Sync);

/// A server: answers requests, concurrently for all workers.
pub(crate) trait Serve: Sync {
    /// Answers a request: executes it, and makes the reply.
    fn answer(&self, request: &Request<'_>, reply: &mut Reply) -> Answered;

    /// Undoes the lookup counts of a reply that did not arrive.
    fn undo_lookups(&self, reply: &mut Reply);
}
