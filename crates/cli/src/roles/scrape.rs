//! What a component tells Prometheus: `/metrics` on a port of its own, without TLS. It holds counts and names of machines, no
//! secrets; a NetworkPolicy can close it.

use std::{convert::Infallible, net::SocketAddr, sync::Arc, time::Duration};

use anyhow::{Context, Result};
use clap::Args;
use ferrovirt_metrics::Family;
use futures::future::BoxFuture;
use http::{Method, Request, Response, StatusCode, header};
use hyper::body::Incoming;
use hyper_util::rt::{TokioIo, TokioTimer};
use tokio::net::{TcpListener, TcpStream};

/// How long a connection may take to say what it wants.
const HEADER_TIMEOUT: Duration = Duration::from_secs(10);
const CONTENT_TYPE: &str = "text/plain; version=0.0.4; charset=utf-8";

/// Makes the answer to one scrape.
pub type Collect = Arc<dyn Fn() -> BoxFuture<'static, Vec<Family>> + Send + Sync>;

#[derive(Args, Clone)]
pub struct MetricsArgs {
    /// Where to answer Prometheus
    #[arg(long, default_value = "[::]:8080")]
    metrics_listen: SocketAddr,
}

impl MetricsArgs {
    /// Listens at once, so that a port that is taken is noticed, and answers for as long as the process lives.
    pub async fn serve(&self, collect: Collect) -> Result<()> {
        let listen = self.metrics_listen;
        let listener = TcpListener::bind(listen).await.with_context(|| format!("cannot listen on {listen}"))?;
        tokio::spawn(async move {
            loop {
                match listener.accept().await {
                    Ok((stream, _)) => drop(tokio::spawn(connection(stream, collect.clone()))),
                    Err(error) => {
                        tracing::warn!(%error, "cannot accept a connection");
                        tokio::time::sleep(Duration::from_millis(50)).await;
                    }
                }
            }
        });
        Ok(())
    }
}

async fn connection(stream: TcpStream, collect: Collect) {
    let handler = hyper::service::service_fn(move |request: Request<Incoming>| {
        let collect = collect.clone();
        async move { Ok::<_, Infallible>(answer(request.method(), request.uri().path(), &collect).await) }
    });
    let connection = hyper::server::conn::http1::Builder::new()
        .timer(TokioTimer::new())
        .header_read_timeout(HEADER_TIMEOUT)
        .serve_connection(TokioIo::new(stream), handler);
    if let Err(error) = connection.await {
        tracing::debug!(%error, "a scrape ended early");
    }
}

async fn answer(method: &Method, path: &str, collect: &Collect) -> Response<String> {
    let mut response = Response::new(String::new());
    if method != Method::GET || path != "/metrics" {
        *response.status_mut() = StatusCode::NOT_FOUND;
        *response.body_mut() = "only GET /metrics is answered here\n".into();
        return response;
    }
    response.headers_mut().insert(header::CONTENT_TYPE, header::HeaderValue::from_static(CONTENT_TYPE));
    *response.body_mut() = ferrovirt_metrics::to_text(&collect().await);
    response
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn a_scrape_is_collected_when_it_is_asked_for() {
        let collect: Collect = Arc::new(|| Box::pin(async { vec![Family::gauge("a_b", "Help.").with([], 3.0)] }));
        let said = answer(&Method::GET, "/metrics", &collect).await;
        assert!(said.body().contains("a_b 3"), "{}", said.body());
        assert_eq!(said.headers()[header::CONTENT_TYPE], CONTENT_TYPE);
        for (method, path) in [(Method::POST, "/metrics"), (Method::GET, "/")] {
            assert_eq!(answer(&method, path, &collect).await.status(), StatusCode::NOT_FOUND, "{method} {path}");
        }
    }
}
