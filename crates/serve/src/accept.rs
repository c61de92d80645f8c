//! The loop that takes connections, and what it does when there are no descriptors left for them.

use std::fs::File;
use std::future::Future;
use std::io;
use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;

use futures::FutureExt as _;
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::io::Errno;
use tokio::net::{TcpListener, TcpStream};
use tokio_util::sync::CancellationToken;
use tokio_util::task::TaskTracker;

use crate::door::Door;
use crate::held::Held;
use crate::http::{Connection, Reception, converse};
use crate::limits::Limits;

/// Descriptors that a listener keeps for the time when there are no others.
const SPARES: usize = 4;
const FIRST_PAUSE: Duration = Duration::from_millis(20);
const LAST_PAUSE: Duration = Duration::from_millis(500);

/// Serves until `shutdown` resolves, then lets open requests end. `stop` is what handlers see as [`crate::Peer::draining`]; it
/// is cancelled then.
pub async fn serve(
    listener: TcpListener,
    limits: Limits,
    receive: impl Fn() -> Reception + Send,
    stop: CancellationToken,
    shutdown: impl Future<Output = ()>,
) {
    let door = Door::new(limits);
    let connections = TaskTracker::new();
    let mut desk = Desk { listener, door: door.clone(), spares: Vec::new(), pause: None };
    tokio::pin!(shutdown);
    loop {
        let accepted = tokio::select! {
            () = &mut shutdown => break,
            accepted = desk.next() => accepted,
        };
        let (stream, address) = accepted.from;
        let _ = stream.set_nodelay(true);
        // Nobody who could be replaced: the client finds its connection closed.
        let Some(guest) = door.enter(address.ip()) else {
            tracing::debug!(%address, "a connection too many");
            continue;
        };
        let connection = Connection { limits, address, stop: stop.child_token(), scarce: accepted.scarce };
        connections.spawn(converse(connection, Held { stream, guest }, receive()));
    }
    drop(desk);
    stop.cancel();
    connections.close();
    if tokio::time::timeout(limits.drain, connections.wait()).await.is_err() {
        tracing::warn!(open = connections.len(), "connections still open at the end of the drain");
    }
}

struct Accepted {
    from: (TcpStream, SocketAddr),
    scarce: bool,
}

struct Desk {
    listener: TcpListener,
    door: Arc<Door>,
    spares: Vec<File>,
    /// How long the last failure was waited for; None while all is well.
    pause: Option<Duration>,
}

impl Desk {
    async fn next(&mut self) -> Accepted {
        loop {
            self.keep_spares();
            match self.listener.accept().await {
                Ok(from) => {
                    self.pause = None;
                    return Accepted { from, scarce: false };
                }
                Err(error) => {
                    if let Some(from) = self.recover(&error).await {
                        return Accepted { from, scarce: true };
                    }
                }
            }
        }
    }

    fn keep_spares(&mut self) {
        while self.pause.is_none() && self.spares.len() < SPARES {
            match File::open("/dev/null") {
                Ok(file) => self.spares.push(file),
                Err(_) => return,
            }
        }
    }

    fn is_anybody_there(&self) -> bool {
        let mut polled = [PollFd::new(&self.listener, PollFlags::IN)];
        let now = Timespec { tv_sec: 0, tv_nsec: 0 };
        poll(&mut polled, Some(&now)).is_ok_and(|ready| ready > 0)
    }

    /// After a failure to accept: a connection on a spare descriptor, or none after a pause.
    async fn recover(&mut self, error: &io::Error) -> Option<(TcpStream, SocketAddr)> {
        let code = Errno::from_io_error(error);
        if !matches!(code, Some(Errno::MFILE | Errno::NFILE | Errno::NOBUFS | Errno::NOMEM)) {
            // The fault of one client, mostly: it went away before its turn came.
            tokio::task::yield_now().await;
            if matches!(code, Some(Errno::CONNABORTED | Errno::INTR | Errno::PROTO)) {
                return None;
            }
            tracing::warn!(%error, "cannot accept a connection");
            tokio::time::sleep(FIRST_PAUSE).await;
            return None;
        }
        // The kernel wants a descriptor before it looks whether anybody waits.
        if !self.is_anybody_there() {
            tokio::time::sleep(FIRST_PAUSE).await;
            return None;
        }
        if self.pause.is_none() {
            tracing::warn!(%error, "cannot accept connections; quiet ones are ended");
        }
        if self.spares.pop().is_some()
            && let Some(Ok(from)) = self.listener.accept().now_or_never()
        {
            self.door.evict();
            // With a pause in force no new spares are taken, so each is used once until there are descriptors again.
            self.pause.get_or_insert(FIRST_PAUSE);
            return Some(from);
        }
        self.door.evict();
        let pause = self.pause.map_or(FIRST_PAUSE, |pause| (pause * 2).min(LAST_PAUSE));
        self.pause = Some(pause);
        tokio::time::sleep(pause).await;
        None
    }
}
