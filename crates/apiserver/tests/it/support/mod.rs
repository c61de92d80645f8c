//! A server on a scratch directory, asked in process.
#![allow(dead_code)]

use std::time::{Duration, Instant};

use bytes::Bytes;
use ferrovirt_apiserver::{ApiServer, ClientService, Config, User};
use http::{Method, Request, StatusCode};
use http_body_util::{BodyExt as _, Full};
use serde_json::{Value, json};
use tower::ServiceExt as _;

pub mod hooks;
pub mod kubectl;

pub struct Server {
    pub api: ApiServer,
    pub dir: tempfile::TempDir,
}

impl Server {
    pub async fn start() -> Self {
        Self::start_with(Config::default()).await
    }

    pub async fn start_with(config: Config) -> Self {
        Self::start_in(tempfile::tempdir().unwrap(), config).await
    }

    /// With what is stored there.
    pub async fn start_in(dir: tempfile::TempDir, config: Config) -> Self {
        let api = ApiServer::start(Config { data_dir: dir.path().to_owned(), ..config }).await.unwrap();
        Self { api, dir }
    }

    /// Stops, and starts again with what is stored.
    pub async fn restart(self) -> Self {
        self.api.shutdown().await;
        let Self { api, dir } = self;
        drop(api);
        Self::start_in(dir, Config::default()).await
    }

    pub fn admin(&self) -> Client {
        self.user("admin", &["system:masters"])
    }

    pub fn user(&self, name: &str, groups: &[&str]) -> Client {
        Client { service: self.api.client_service(User::new(name, groups)) }
    }
}

#[derive(Clone)]
pub struct Client {
    service: ClientService,
}

/// What a request came back with.
#[derive(Debug)]
pub struct Answer {
    pub status: StatusCode,
    pub warnings: Vec<String>,
    pub body: Value,
}

impl Answer {
    #[track_caller]
    pub fn expect(self, status: u16) -> Value {
        assert_eq!(self.status.as_u16(), status, "{:#}", self.body);
        self.body
    }
}

impl Client {
    pub async fn send(
        &self,
        method: Method,
        path: &str,
        headers: &[(&str, &str)],
        body: impl Into<Bytes>,
    ) -> http::Response<ferrovirt_apiserver::Body> {
        let mut request = Request::builder().method(method).uri(path);
        for (name, value) in headers {
            request = request.header(*name, *value);
        }
        self.service.clone().oneshot(request.body(Full::new(body.into())).unwrap()).await.unwrap()
    }

    pub async fn raw(&self, method: Method, path: &str, headers: &[(&str, &str)], body: impl Into<Bytes>) -> Answer {
        let response = self.send(method, path, headers, body).await;
        let status = response.status();
        let warnings = response.headers().get_all("warning").iter().map(|w| w.to_str().unwrap().to_owned()).collect();
        let bytes = response.into_body().collect().await.unwrap().to_bytes();
        Answer {
            status,
            warnings,
            body: serde_json::from_slice(&bytes).unwrap_or_else(|_| String::from_utf8_lossy(&bytes).into()),
        }
    }

    pub async fn get(&self, path: &str) -> Answer {
        self.raw(Method::GET, path, &[], "").await
    }

    pub async fn post(&self, path: &str, body: &Value) -> Answer {
        self.raw(Method::POST, path, &[("content-type", "application/json")], body.to_string()).await
    }

    pub async fn put(&self, path: &str, body: &Value) -> Answer {
        self.raw(Method::PUT, path, &[("content-type", "application/json")], body.to_string()).await
    }

    pub async fn patch(&self, path: &str, kind: &str, body: &Value) -> Answer {
        self.raw(Method::PATCH, path, &[("content-type", kind)], body.to_string()).await
    }

    pub async fn merge(&self, path: &str, body: &Value) -> Answer {
        self.patch(path, "application/merge-patch+json", body).await
    }

    pub async fn delete(&self, path: &str, options: &Value) -> Answer {
        self.raw(Method::DELETE, path, &[("content-type", "application/json")], options.to_string()).await
    }

    /// Events of a watch, as they come.
    pub async fn watch(&self, path: &str) -> Watch {
        self.watch_as(path, &[]).await
    }

    pub async fn watch_as(&self, path: &str, headers: &[(&str, &str)]) -> Watch {
        let response = self.send(Method::GET, path, headers, "").await;
        assert_eq!(response.status(), 200, "{path}");
        Watch { body: response.into_body(), buffer: Vec::new() }
    }

    /// Asks until the answer has this status.
    pub async fn until(&self, path: &str, status: u16) -> Value {
        self.until_that(path, |answer| answer.status.as_u16() == status).await
    }

    pub async fn until_that(&self, path: &str, wanted: impl Fn(&Answer) -> bool) -> Value {
        let mut last = self.get(path).await;
        let deadline = Instant::now() + Duration::from_secs(10);
        while !wanted(&last) {
            assert!(Instant::now() < deadline, "{path} stayed {}: {:#}", last.status, last.body);
            tokio::time::sleep(Duration::from_millis(5)).await;
            last = self.get(path).await;
        }
        last.body
    }
}

pub struct Watch {
    body: ferrovirt_apiserver::Body,
    buffer: Vec<u8>,
}

impl Watch {
    /// The next event, or None at the end of the stream.
    pub async fn next(&mut self) -> Option<Value> {
        loop {
            if let Some(end) = self.buffer.iter().position(|b| *b == b'\n') {
                let line: Vec<u8> = self.buffer.drain(..=end).collect();
                return Some(serde_json::from_slice(&line).unwrap());
            }
            let frame =
                tokio::time::timeout(Duration::from_secs(10), self.body.frame()).await.expect("an event in time")?;
            self.buffer.extend_from_slice(&frame.unwrap().into_data().unwrap());
        }
    }

    /// The next event as "TYPE name".
    pub async fn brief(&mut self) -> String {
        match self.next().await {
            None => "END".to_owned(),
            Some(event) => {
                let name = event["object"]["metadata"]["name"].as_str().unwrap_or_default();
                format!("{} {name}", event["type"].as_str().unwrap_or_default())
            }
        }
    }
}

pub fn configmap(name: &str) -> Value {
    json!({"apiVersion": "v1", "kind": "ConfigMap", "metadata": {"name": name}, "data": {"a": "1"}})
}

/// A small CRD with a status subresource, a default, an enum and a printer column.
pub fn widgets() -> Value {
    json!({
        "apiVersion": "apiextensions.k8s.io/v1", "kind": "CustomResourceDefinition",
        "metadata": {"name": "widgets.example.com"},
        "spec": {
            "group": "example.com", "scope": "Namespaced",
            "names": {"plural": "widgets", "kind": "Widget", "shortNames": ["wd"], "categories": ["all"]},
            "versions": [
                {
                    "name": "v1", "served": true, "storage": true,
                    "subresources": {"status": {}, "scale": {"specReplicasPath": ".spec.replicas", "statusReplicasPath": ".status.replicas"}},
                    "additionalPrinterColumns": [
                        {"name": "Size", "type": "string", "jsonPath": ".spec.size"},
                        {"name": "Age", "type": "date", "jsonPath": ".metadata.creationTimestamp"},
                    ],
                    "schema": {"openAPIV3Schema": {
                        "type": "object", "description": "A widget.", "required": ["spec"],
                        "properties": {
                            "spec": {
                                "type": "object", "description": "What is wanted.",
                                "properties": {
                                    "size": {"type": "string", "enum": ["small", "large"], "default": "small", "description": "How big."},
                                    "replicas": {"type": "integer", "minimum": 0},
                                    "parts": {"type": "array", "items": {"type": "object", "properties": {"name": {"type": "string"}}}},
                                },
                            },
                            "status": {"type": "object", "properties": {"phase": {"type": "string"}, "replicas": {"type": "integer"}}},
                        },
                    }},
                },
                {
                    "name": "v1beta1", "served": true, "storage": false,
                    "schema": {"openAPIV3Schema": {"type": "object", "x-kubernetes-preserve-unknown-fields": true}},
                },
            ],
        },
    })
}

pub fn widget(name: &str) -> Value {
    json!({"apiVersion": "example.com/v1", "kind": "Widget", "metadata": {"name": name}, "spec": {}})
}
