//! What a component tells Prometheus: `/metrics` on a port of its own, without TLS. It holds counts and names of machines, no
//! secrets; a NetworkPolicy can close it.

use std::{net::SocketAddr, sync::Arc};

use anyhow::{Context, Result};
use clap::Args;
use ferrovirt_metrics::Family;
use ferrovirt_serve::{Handler, Limits, Peer, Reception};
use futures::future::BoxFuture;
use http::{Method, Response, StatusCode, header};
use http_body_util::{BodyExt as _, Full};
use tokio::net::TcpListener;
use tokio_util::sync::CancellationToken;

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
        tokio::spawn(ferrovirt_serve::serve(
            listener,
            Limits { strangers: 64, ..Limits::new(64, 0.125) },
            move || reception(collect.clone()),
            CancellationToken::new(),
            std::future::pending(),
        ));
        Ok(())
    }
}

fn reception(collect: Collect) -> Reception {
    let meet = move |_: Peer| -> Option<Handler> {
        Some(Box::new(move |request| {
            let collect = collect.clone();
            Box::pin(async move {
                let answer = answer(request.method(), request.uri().path(), &collect).await;
                answer.map(|text| Full::from(text).map_err(|never| match never {}).boxed_unsync())
            })
        }))
    };
    Reception { tls: None, meet: Box::new(meet) }
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
