//! Nobody's requests keep others' from being served.
//!
//! Each *flow* (a user; all service accounts of a namespace together, since its editors can make any number of them) has some
//! requests in work and a queue for more. How many are in work depends on how many flows there are, so one that hammers gives
//! way as soon as another comes. Administrators (`system:masters`), callers in this process and health checks never wait.
//!
//! Watches, streams and everything else without an end are not in work, but their number is bounded by flow.

use std::collections::{HashMap, VecDeque};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use ferrovirt_serve::{Counted, Guest};
use http::{Response, StatusCode};
use http_body::Body as _;
use http_body_util::BodyExt as _;
use tokio::sync::oneshot;

use crate::authn::{MASTERS, User};
use crate::http::body::Body;
use crate::http::request::RequestInfo;
use crate::status::ApiError;

/// Answers up to here are handed over at once; larger ones stay in work until their client took them.
const SMALL: u64 = 128 << 10;
/// What a request counts for whose body is large or of unknown length: one flow has less than half of what may arrive at a time.
pub const LARGE_BODY: usize = 4;
/// Objects in a list for each seat that it takes, as upstream has it.
const OBJECTS_PER_SEAT: usize = 100;

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Shares {
    /// What all flows together have in work.
    pub total: usize,
    /// What one flow has in work at most, and at least.
    pub most: usize,
    pub least: usize,
    /// What may wait in one flow, and for how long.
    pub queue: usize,
    pub patience: Duration,
    /// Answers without an end, by flow.
    pub watches: usize,
    /// Upgraded connections (exec, console, port-forward), by flow.
    pub streams: usize,
    /// The most that one request counts for.
    pub widest: usize,
}

impl Default for Shares {
    fn default() -> Self {
        Self {
            total: 256,
            most: 64,
            least: 8,
            queue: 1024,
            patience: Duration::from_secs(15),
            watches: 4000,
            streams: 256,
            widest: 8,
        }
    }
}

#[derive(Default)]
pub struct Fairness {
    shares: Shares,
    flows: Mutex<Flows>,
}

#[derive(Default)]
struct Flows {
    by_name: HashMap<String, Flow>,
    /// Those with something in work or waiting.
    active: usize,
}

#[derive(Default)]
struct Flow {
    busy: usize,
    waiting: VecDeque<Waiting>,
    watches: usize,
    streams: usize,
}

struct Waiting {
    width: usize,
    turn: oneshot::Sender<Turn>,
}

impl Flows {
    /// Changes a flow, which is there afterwards if there is anything to know of it.
    fn change<T>(&mut self, name: &str, change: impl FnOnce(&mut Flow, usize) -> T) -> T {
        let flow = match self.by_name.get_mut(name) {
            Some(flow) => flow,
            None => self.by_name.entry(name.to_owned()).or_default(),
        };
        let others = self.active - usize::from(flow.is_active());
        let done = change(flow, others + 1);
        self.active = others + usize::from(flow.is_active());
        if flow.is_gone() {
            self.by_name.remove(name);
        }
        done
    }
}

impl Flow {
    fn is_gone(&self) -> bool {
        self.busy == 0 && self.waiting.is_empty() && self.watches == 0 && self.streams == 0
    }

    fn is_active(&self) -> bool {
        self.busy > 0 || !self.waiting.is_empty()
    }
}

/// The flow of a request; None for those that never wait.
pub fn flow<'a>(user: &'a User, guest: Option<&Guest>, info: &RequestInfo) -> Option<&'a str> {
    let health = || matches!(info.path.split('/').nth(1), Some("healthz" | "livez" | "readyz"));
    if guest.is_none() || user.in_group(MASTERS) || (info.target.is_none() && health()) {
        return None;
    }
    Some(owner(&user.name))
}

/// A user, or the namespace of a service account.
fn owner(name: &str) -> &str {
    match name.strip_prefix("system:serviceaccount:").and_then(|_| name.rsplit_once(':')) {
        Some((namespace, _)) => namespace,
        None => name,
    }
}

impl Fairness {
    pub fn new(shares: Shares) -> Self {
        Self { shares, flows: Mutex::default() }
    }

    fn lock(&self) -> MutexGuard<'_, Flows> {
        self.flows.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// How wide a list of this many objects is.
    pub fn width(&self, objects: usize) -> usize {
        (objects / OBJECTS_PER_SEAT).clamp(1, self.shares.widest.max(1))
    }

    /// Waits for the turn of a request.
    pub async fn enter(self: &Arc<Self>, name: &str, width: usize) -> Result<Turn, ApiError> {
        let refused = || ApiError::too_many_requests("too many requests, please try again later");
        let entered = self.lock().change(name, |flow, active| {
            if flow.waiting.is_empty() && self.shares.admits(flow.busy, width, active) {
                flow.busy += width;
                return Ok(None);
            }
            if flow.waiting.len() >= self.shares.queue {
                // Some may have gone away meanwhile.
                flow.waiting.retain(|waiting| !waiting.turn.is_closed());
            }
            if flow.waiting.len() >= self.shares.queue {
                return Err(refused());
            }
            let (turn, mine) = oneshot::channel();
            flow.waiting.push_back(Waiting { width, turn });
            Ok(Some(mine))
        })?;
        match entered {
            None => Ok(self.turn(name, width)),
            Some(turn) => match tokio::time::timeout(self.shares.patience, turn).await {
                Ok(Ok(turn)) => Ok(turn),
                Ok(Err(_)) | Err(_) => Err(refused()),
            },
        }
    }

    /// For somebody who was counted already.
    fn turn(self: &Arc<Self>, name: &str, width: usize) -> Turn {
        Turn { fairness: self.clone(), name: name.to_owned(), width }
    }

    fn leave(self: &Arc<Self>, name: &str, width: usize) {
        self.lock().change(name, |flow, active| {
            flow.busy = flow.busy.saturating_sub(width);
            while let Some(next) = flow.waiting.pop_front_if(|next| self.shares.admits(flow.busy, next.width, active)) {
                // The turn itself is sent, so that one whose receiver goes away just now ends like any other.
                match next.turn.send(self.turn(name, next.width)) {
                    Ok(()) => flow.busy += next.width,
                    Err(unwanted) => unwanted.forget(),
                }
            }
        });
    }

    fn begin_endless(self: &Arc<Self>, name: &str, stream: bool) -> Result<Endless, ApiError> {
        self.lock().change(name, |flow, _| {
            let (count, most) = match stream {
                true => (&mut flow.streams, self.shares.streams),
                false => (&mut flow.watches, self.shares.watches),
            };
            if *count >= most {
                let what = if stream { "streams" } else { "watches" };
                return Err(ApiError::too_many_requests(format!("too many open {what}, please close some")));
            }
            *count += 1;
            Ok(Endless { fairness: self.clone(), name: name.to_owned(), stream })
        })
    }

    fn end_endless(&self, name: &str, stream: bool) {
        self.lock().change(name, |flow, _| {
            let count = if stream { &mut flow.streams } else { &mut flow.watches };
            *count = count.saturating_sub(1);
        });
    }
}

impl Shares {
    fn admits(&self, busy: usize, width: usize, active: usize) -> bool {
        let part = (self.total / active.max(1)).clamp(self.least, self.most);
        // However wide it is: alone it may always go.
        busy == 0 || busy + width <= part
    }
}

/// A request that is in work, until this is dropped.
pub struct Turn {
    fairness: Arc<Fairness>,
    name: String,
    width: usize,
}

impl Turn {
    /// Nobody got it, so it was never counted. Called with the flows locked.
    fn forget(mut self) {
        self.width = 0;
    }
}

impl Drop for Turn {
    fn drop(&mut self) {
        if self.width > 0 {
            self.fairness.leave(&self.name, self.width);
        }
    }
}

/// A watch or a stream, until this is dropped.
pub struct Endless {
    fairness: Arc<Fairness>,
    name: String,
    stream: bool,
}

impl Drop for Endless {
    fn drop(&mut self) {
        self.fairness.end_endless(&self.name, self.stream);
    }
}

impl Turn {
    /// Before anything is begun whose answer may be a stream.
    pub fn stream(&self) -> Result<Endless, ApiError> {
        self.fairness.begin_endless(&self.name, true)
    }

    /// Ends the turn when the answer is on its way: at once if it is small, with its last byte if it is large. An answer without
    /// an end counts as one, for as long as it lasts.
    pub fn follow(
        self,
        response: Response<Body>,
        upgrade: Option<(Endless, Guest)>,
    ) -> Result<Response<Body>, ApiError> {
        if let Some((stream, guest)) = upgrade.filter(|_| response.status() == StatusCode::SWITCHING_PROTOCOLS) {
            guest.keep(Box::new(stream));
            return Ok(response);
        }
        match response.body().size_hint().exact() {
            Some(length) if length <= SMALL => Ok(response),
            Some(_) => Ok(response.map(|inner| Counted::new(inner, self).boxed_unsync())),
            None => {
                let watch = self.fairness.begin_endless(&self.name, false)?;
                Ok(response.map(|inner| Counted::new(inner, watch).boxed_unsync()))
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use bytes::Bytes;
    use futures::FutureExt as _;
    use http_body::Frame;

    use super::*;
    use crate::http::body::BoxError;

    fn fairness() -> Arc<Fairness> {
        let shares =
            Shares { total: 8, most: 6, least: 2, queue: 3, watches: 2, streams: 1, widest: 4, ..Shares::default() };
        Arc::new(Fairness::new(shares))
    }

    fn now(fairness: &Arc<Fairness>, name: &str, width: usize) -> Option<Result<Turn, u16>> {
        fairness.enter(name, width).now_or_never().map(|result| result.map_err(|error| error.code))
    }

    #[tokio::test]
    async fn a_tenant_that_hammers_waits_for_itself_and_others_do_not() {
        let fairness = fairness();
        let mut busy: Vec<_> = (0..6).map(|_| now(&fairness, "greedy", 1).unwrap().unwrap()).collect();
        let mut waiting: Vec<_> = (0..3).map(|_| Box::pin(fairness.enter("greedy", 1))).collect();
        for waiting in &mut waiting {
            assert!(futures::poll!(waiting).is_pending());
        }
        assert_eq!(now(&fairness, "greedy", 1).unwrap().err(), Some(429));
        let others: Vec<_> = (0..4).map(|_| now(&fairness, "modest", 1).unwrap().unwrap()).collect();
        // With two at work each has half; the greedy one gets a turn again when it is below that.
        for _ in 0..2 {
            busy.pop();
            assert!(futures::poll!(&mut waiting[0]).is_pending());
        }
        busy.pop();
        let first = waiting.remove(0).await.unwrap();
        drop((others, busy, first));
        for waiting in waiting {
            drop(waiting.await.unwrap());
        }
        let flows = fairness.lock();
        assert!(flows.by_name.is_empty() && flows.active == 0, "nothing stays behind");
    }

    #[tokio::test]
    async fn those_who_gave_up_waiting_are_passed_over() {
        let fairness = fairness();
        let busy: Vec<_> = (0..6).map(|_| now(&fairness, "a", 1).unwrap().unwrap()).collect();
        assert!(now(&fairness, "a", 1).is_none());
        let mut waiting = Box::pin(fairness.enter("a", 1));
        assert!(futures::poll!(&mut waiting).is_pending());
        drop(busy);
        drop(waiting.await.unwrap());
        assert!(fairness.lock().by_name.is_empty());
    }

    #[tokio::test]
    async fn large_lists_count_for_many_and_alone_they_may_always_go() {
        let fairness = fairness();
        assert_eq!((fairness.width(0), fairness.width(250), fairness.width(1_000_000)), (1, 2, 4));
        let one = now(&fairness, "a", 4).unwrap().unwrap();
        assert!(now(&fairness, "a", 4).is_none());
        drop(one);
        assert!(now(&fairness, "b", 1000).unwrap().is_ok());
    }

    #[tokio::test]
    async fn watches_and_streams_have_an_end_by_user() {
        let fairness = fairness();
        let watch = || {
            let body = http_body_util::StreamBody::new(futures::stream::pending::<Result<Frame<Bytes>, BoxError>>());
            let turn = now(&fairness, "a", 1).unwrap().unwrap();
            turn.follow(Response::new(body.boxed_unsync()), None)
        };
        let first = watch().unwrap();
        let _second = watch().unwrap();
        assert_eq!(watch().unwrap_err().code, 429);
        assert!(now(&fairness, "a", 6).unwrap().is_ok(), "watches are not in work");
        drop(first);
        assert!(watch().is_ok());
        let turn = now(&fairness, "a", 1).unwrap().unwrap();
        let stream = turn.stream().unwrap();
        assert_eq!(turn.stream().err().unwrap().code, 429);
        drop(stream);
        assert!(turn.stream().is_ok());
    }

    /// An editor makes service accounts by the hundred; they are one.
    #[test]
    fn service_accounts_of_a_namespace_are_one() {
        assert_eq!(owner("system:serviceaccount:tenant:a"), owner("system:serviceaccount:tenant:b"));
        assert_ne!(owner("system:serviceaccount:tenant:a"), owner("system:serviceaccount:other:a"));
        assert_eq!(owner("alice"), "alice");
    }
}
