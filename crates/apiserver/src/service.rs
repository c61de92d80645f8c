//! The server as tower services.

use std::convert::Infallible;
use std::sync::Arc;
use std::task::{Context, Poll};

use bytes::Bytes;
use futures::future::BoxFuture;
use http::{Request, Response};
use http_body_util::BodyExt as _;
use tower::Service;

use crate::authn::User;
use crate::http::body::{Body, BoxError};
use crate::pipeline;
use crate::revocation::Revocations;
use crate::server::Server;

/// Takes any request; identity is the [`User`] extension, if there is one.
#[derive(Clone)]
pub struct ApiService {
    server: Arc<Server>,
}

impl ApiService {
    pub(crate) fn new(server: Arc<Server>) -> Self {
        Self { server }
    }

    pub(crate) fn revocations(&self) -> &Revocations {
        &self.server.revocations
    }

    /// Ends with the server, or earlier with one listener.
    pub(crate) fn stop_token(&self) -> tokio_util::sync::CancellationToken {
        self.server.stop.child_token()
    }
}

impl Service<Request<Body>> for ApiService {
    type Response = Response<Body>;
    type Error = Infallible;
    type Future = BoxFuture<'static, Result<Response<Body>, Infallible>>;

    fn poll_ready(&mut self, _: &mut Context<'_>) -> Poll<Result<(), Infallible>> {
        Poll::Ready(Ok(()))
    }

    fn call(&mut self, request: Request<Body>) -> Self::Future {
        let server = self.server.clone();
        Box::pin(async move { Ok(pipeline::handle(server, request).await) })
    }
}

/// Acts as one user, for in-process clients.
#[derive(Clone)]
pub struct ClientService {
    inner: ApiService,
    user: User,
}

impl ClientService {
    pub(crate) fn new(inner: ApiService, user: User) -> Self {
        Self { inner, user: user.authenticated() }
    }
}

impl<B> Service<Request<B>> for ClientService
where
    B: http_body::Body<Data = Bytes> + Send + 'static,
    B::Error: Into<BoxError>,
{
    type Response = Response<Body>;
    type Error = Infallible;
    type Future = BoxFuture<'static, Result<Response<Body>, Infallible>>;

    fn poll_ready(&mut self, _: &mut Context<'_>) -> Poll<Result<(), Infallible>> {
        Poll::Ready(Ok(()))
    }

    fn call(&mut self, request: Request<B>) -> Self::Future {
        let mut request = request.map(|b| b.map_err(Into::into).boxed_unsync());
        request.extensions_mut().insert(self.user.clone());
        self.inner.call(request)
    }
}
