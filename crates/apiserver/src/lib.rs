//! The embedded Kubernetes API server, as a library.
//!
//! ```text
//!  TLS listener ──┐
//!                 ├─> recover ─> authn ─> authz ─> route ─┬─> discovery, OpenAPI, health
//!  in-process ────┘                                       ├─> aggregation (APIService handlers and servers)
//!                                                         └─> rest: one path for every resource
//!                                                               schema ─> admission ─> store
//! ```
//!
//! **Invariant:** there is no handler per kind. A resource is a row of the registry (built-in table or CRD) plus, for the
//! few kinds that Kubernetes itself treats specially, a hook in [`registry::Special`].
//!
//! **Invariant:** identity of in-process callers is a request extension. The TLS path overwrites it, so no client can forge it.

mod admission;
mod aggregation;
mod attempts;
mod audit;
mod authn;
mod authz;
mod bootstrap;
mod controllers;
mod crd;
mod discovery;
mod fairness;
mod front_proxy;
mod http;
mod object;
mod openapi;
mod pipeline;
mod quota;
mod registry;
mod rest;
mod revocation;
mod server;
mod service;
mod status;
mod storage;
mod tokens;

pub use admission::addresses::{ExternalAddresses, Network, NetworkError};
pub use admission::maker::CREATED_BY;
pub use audit::{Policy as AuditPolicy, PolicyError as AuditPolicyError, Rotation as AuditRotation};
pub use authn::{CredentialExpiry, StaticTokens, TokenFileError, User};
pub use fairness::Shares;
pub use ferrovirt_serve::Limits;
pub use front_proxy::{FrontProxy, identify, identify_nobody};
pub use http::body::{Body, BoxError};
pub use http::certificate::ServingCertificate;
pub use http::request::Query;
pub use http::serve::TlsConfig;
pub use registry::printers::human_duration;
pub use rest::ServiceNetwork;
pub use revocation::{RevocationList, Revocations, RevokedUser};
pub use server::{ApiServer, Config, Handler, STORE_DIR, StartError};
pub use service::{ApiService, ClientService};
