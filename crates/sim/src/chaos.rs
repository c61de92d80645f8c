//! An unreliable way to the API: writes come late, come twice, and so overtake each other. And the dice for all faults.

use std::{
    sync::{
        Arc,
        atomic::{AtomicU64, Ordering},
    },
    task::{Context, Poll},
    time::Duration,
};

use bytes::Bytes;
use futures::future::BoxFuture;
use http::{Method, Request, Response};
use http_body_util::BodyExt;
use kube::client::Body;
use tower::Service;

/// Pseudo-random numbers from a seed that a failed test prints. Clones share one sequence.
#[derive(Clone)]
pub struct Dice(Arc<AtomicU64>);

impl Dice {
    pub fn new(seed: u64) -> Self {
        Self(Arc::new(AtomicU64::new(seed)))
    }

    /// A number below `bound`.
    pub fn below(&self, bound: usize) -> usize {
        // SplitMix64: the state only counts, so threads may share it.
        let mut z = self.0.fetch_add(0x9e37_79b9_7f4a_7c15, Ordering::Relaxed);
        z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        z ^= z >> 31;
        usize::try_from(z % (bound.max(1) as u64)).unwrap_or(0)
    }
}

/// What happens to writes, in percent.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Trouble {
    pub late: usize,
    pub twice: usize,
    pub longest: Duration,
}

/// A service whose writes are troubled.
#[derive(Clone)]
pub struct Troubled<S> {
    inner: S,
    trouble: Option<Trouble>,
    dice: Dice,
}

impl<S> Troubled<S> {
    pub fn new(inner: S, trouble: Option<Trouble>, dice: Dice) -> Self {
        Self { inner, trouble, dice }
    }
}

impl<S, B> Service<Request<Body>> for Troubled<S>
where
    S: Service<Request<Body>, Response = Response<B>> + Clone + Send + 'static,
    S::Future: Send,
    S::Error: Send,
    B: Send,
{
    type Response = Response<B>;
    type Error = S::Error;
    type Future = BoxFuture<'static, Result<Response<B>, S::Error>>;

    fn poll_ready(&mut self, context: &mut Context<'_>) -> Poll<Result<(), S::Error>> {
        self.inner.poll_ready(context)
    }

    fn call(&mut self, request: Request<Body>) -> Self::Future {
        let trouble = self.trouble.filter(|_| *request.method() != Method::GET);
        let mut inner = self.inner.clone();
        let Some(trouble) = trouble else { return Box::pin(inner.call(request)) };
        let dice = self.dice.clone();
        Box::pin(async move {
            let (parts, body) = request.into_parts();
            let bytes = body.collect().await.map(|body| body.to_bytes()).unwrap_or_else(|_| Bytes::new());
            let again = |parts: &http::request::Parts| {
                let mut request = Request::new(Body::from(bytes.clone()));
                *request.method_mut() = parts.method.clone();
                *request.uri_mut() = parts.uri.clone();
                *request.headers_mut() = parts.headers.clone();
                request
            };
            if dice.below(100) < trouble.late {
                let micros = usize::try_from(trouble.longest.as_micros()).unwrap_or(usize::MAX);
                tokio::time::sleep(Duration::from_micros(dice.below(micros) as u64)).await;
            }
            if dice.below(100) < trouble.twice {
                // As after an answer that got lost: the client only ever sees the second one.
                drop(inner.call(again(&parts)).await);
            }
            inner.call(again(&parts)).await
        })
    }
}
