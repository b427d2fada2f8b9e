//! The replies of requests that change content, so that a retransmission is answered and not carried out once more: the
//! machine is [`ClientReplies`].
//!
//! Changes of records have their replies beside them, in the same transaction ([`crate::session`]). A write of content
//! has no transaction; its reply is kept in memory, and lost with the daemon: behind a kill, a retransmitted write is
//! carried out once more.

use std::collections::HashMap;
use std::time::{Duration, Instant};

use bivouac_net::{Generation, before_waiting};
use bivouac_ranks::{Condvar, Mutex};
use bivouac_session::{ClientReplies, Connection, KnownReply};
use bivouac_types::{ClientId, Errno, FsError, FsResult, OpId};
use bivouac_wire::{Decode, Encode};

use crate::session::Ctx;

/// The replies of all clients.
#[derive(Debug)]
pub struct ReplyCache {
    clients: Mutex<HashMap<ClientId, ClientReplies<Generation>>>,
    /// A request is over.
    over: Condvar,
    /// Longest time for which a client transmits a request again.
    patience: Duration,
}

/// A request that is being carried out. Dropped without a reply, it may be carried out again.
struct RunningRequest<'a> {
    cache: &'a ReplyCache,
    client: ClientId,
    id: OpId,
}

impl Drop for RunningRequest<'_> {
    fn drop(&mut self) {
        let mut clients = self.cache.clients.lock();
        if let Some(client) = clients.get_mut(&self.client) {
            client.end(self.id);
            if client.is_empty() {
                clients.remove(&self.client);
            }
        }
        drop(clients);
        // Also if it failed: one of those that wait for it carries the request out then.
        self.cache.over.notify_all();
    }
}

impl ReplyCache {
    /// Creates a cache for clients that retransmit for at most `patience`.
    pub fn new(patience: Duration) -> ReplyCache {
        ReplyCache { clients: Mutex::default(), over: Condvar::new(), patience }
    }

    /// Carries a request out, or returns the reply that it had before. While another transmission of it is carried out,
    /// waits for that one's reply. What failed is carried out again.
    ///
    /// # Errors
    /// The errors of `act`; `EIO` if another transmission takes longer than the client waits; `EPROTO` for a number
    /// that the client has used for a request of another kind.
    pub fn once<R: Encode + for<'a> Decode<'a>>(
        &self,
        ctx: &Ctx<'_>,
        act: impl FnOnce() -> FsResult<R>,
    ) -> FsResult<R> {
        // A caller in this process sends everything once; number 0 is for requests that any number of times is right
        // for.
        let Some((slot, generation)) = ctx.connection.connection().filter(|_| ctx.id != OpId(0)) else {
            return act();
        };
        let (client, id, deadline) = (ctx.client, ctx.id, Instant::now() + self.patience);
        let mut clients = self.clients.lock();
        let mut has_let_others_work = false;
        loop {
            match clients.entry(client).or_default().find(id) {
                KnownReply::Given(reply) => {
                    // The number of another kind of request, which only a broken client uses.
                    return R::from_bytes(reply).map_err(|_| {
                        FsError::with(Errno::EPROTO, "a request has the number of another one of its client")
                    });
                }
                KnownReply::Awaited if !has_let_others_work => {
                    // This thread may be the last of its lane: another one has to take its place.
                    drop(clients);
                    before_waiting();
                    has_let_others_work = true;
                    clients = self.clients.lock();
                }
                KnownReply::Awaited => {
                    if self.over.wait_until(&mut clients, deadline).timed_out() {
                        let text = "an earlier transmission of the request is still carried out";
                        return Err(FsError::with(Errno::EIO, text));
                    }
                }
                KnownReply::None => break,
            }
        }
        // Under the lock under which no reply was found: of two transmissions one carries the request out.
        clients.entry(client).or_default().begin(id);
        drop(clients);
        let running = RunningRequest { cache: self, client, id };
        let reply = act()?;
        if let Some(client) = self.clients.lock().get_mut(&client) {
            let is_superseded = generation.is_superseded();
            let over = Connection { slot, generation, is_superseded };
            client.answer(over, id, reply.to_bytes(), (Instant::now(), self.patience));
        }
        drop(running);
        Ok(reply)
    }

    /// Drops the replies to a client that retransmits nothing any more. Requests under way go on.
    pub fn forget(&self, client: ClientId) {
        let mut clients = self.clients.lock();
        let Some(replies) = clients.get_mut(&client) else { return };
        replies.forget();
        if replies.is_empty() {
            clients.remove(&client);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use bivouac_net::RequestOrigin;
    use bivouac_wire::Written;
    use std::cell::Cell;
    use std::os::fd::AsFd;

    const REPLY: Written = Written { accepted: true, epoch: 7 };
    const PATIENCE: Duration = Duration::from_secs(20);

    /// Sends a request over a connection of this generation, and counts how often it is carried out.
    fn send(cache: &ReplyCache, (client, id): (u64, u64), generation: &Generation, count: &Cell<u32>) {
        let socket = std::io::stdin();
        let connection = RequestOrigin::over(socket.as_fd(), generation);
        let ctx = Ctx { id: OpId(id), connection, ..Ctx::of_node(ClientId(client)) };
        let act = || {
            count.set(count.get() + 1);
            Ok(REPLY)
        };
        assert_eq!(cache.once(&ctx, act).unwrap(), REPLY);
    }

    #[test]
    fn a_request_is_carried_out_once_and_answered_as_often_as_it_comes() {
        let (cache, count, former) = (ReplyCache::new(PATIENCE), Cell::new(0), Generation::default());
        (0..3).for_each(|_| send(&cache, (1, 5), &former, &count));
        assert_eq!(count.get(), 1);
        former.supersede();
        let present = Generation::default();
        // Many others first.
        (100..3000).for_each(|id| send(&cache, (1, id), &present, &count));
        assert_eq!(count.replace(0), 2901);
        send(&cache, (1, 5), &present, &count);
        assert_eq!(count.get(), 0, "its reply may not have arrived");
        // Another client with the same number.
        send(&cache, (2, 5), &present, &count);
        assert_eq!(count.replace(0), 1);
        cache.forget(ClientId(1));
        send(&cache, (1, 5), &present, &count);
        assert_eq!(count.get(), 1);
    }

    #[test]
    fn a_reply_is_kept_until_it_has_arrived_or_nobody_waits_for_it() {
        let (cache, count, former) = (ReplyCache::new(Duration::ZERO), Cell::new(0), Generation::default());
        let kept = || cache.clients.lock()[&ClientId(1)].len();
        (1..100).for_each(|id| send(&cache, (1, id), &former, &count));
        assert_eq!(kept(), 1, "one connection");
        former.supersede();
        let present = Generation::default();
        (1..100).for_each(|id| send(&cache, (1, 1000 + id), &present, &count));
        assert_eq!(kept(), 1);
        // One that was carried out behind the client's new connection.
        send(&cache, (1, 2000), &former, &count);
        send(&cache, (1, 2001), &present, &count);
        assert_eq!(kept(), 1);
    }

    #[test]
    fn what_failed_is_carried_out_again() {
        let (cache, generation, socket) =
            (ReplyCache::new(PATIENCE), Generation::default(), std::io::stdin());
        let connection = RequestOrigin::over(socket.as_fd(), &generation);
        let ctx = Ctx { id: OpId(5), connection, ..Ctx::of_node(ClientId(1)) };
        let failed = cache.once::<Written>(&ctx, || Err(Errno::ENOSPC.into()));
        assert_eq!(failed.unwrap_err().errno(), Errno::ENOSPC);
        let panicked = std::panic::catch_unwind(std::panic::AssertUnwindSafe(|| {
            cache.once::<Written>(&ctx, || panic!("a fault of the handler"))
        }));
        assert!(panicked.is_err());
        assert!(cache.clients.lock().is_empty(), "nothing is left of it");
        assert_eq!(cache.once(&ctx, || Ok(REPLY)).unwrap(), REPLY);
    }

    #[test]
    fn a_retransmission_waits_for_the_first_transmission_also_of_a_client_that_was_forgotten() {
        let cache = &ReplyCache::new(PATIENCE);
        let (begun, is_begun) = std::sync::mpsc::channel();
        let (go, goes) = std::sync::mpsc::channel::<()>();
        std::thread::scope(|scope| {
            let first = scope.spawn(move || {
                let (socket, generation) = (std::io::stdin(), Generation::default());
                let connection = RequestOrigin::over(socket.as_fd(), &generation);
                let ctx = Ctx { id: OpId(5), connection, ..Ctx::of_node(ClientId(1)) };
                let act = || {
                    begun.send(()).unwrap();
                    goes.recv().unwrap();
                    Ok(REPLY)
                };
                assert_eq!(cache.once(&ctx, act).unwrap(), REPLY);
            });
            is_begun.recv().unwrap();
            cache.forget(ClientId(1));
            let second = scope.spawn(move || {
                let count = Cell::new(0);
                send(cache, (1, 5), &Generation::default(), &count);
                assert_eq!(count.get(), 0, "it is carried out twice");
            });
            go.send(()).unwrap();
            first.join().unwrap();
            second.join().unwrap();
        });
    }
}
