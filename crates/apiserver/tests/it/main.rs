//! The server as its clients see it.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic)]

mod admission;
mod audit;
mod authorization;
mod bootstrap;
mod conversion;
mod custom;
mod escalation;
mod external;
mod fairness;
mod fuzz;
mod gc;
mod hostile;
mod kube_client;
mod kubectl;
mod kubectl_every_kind;
mod kubectl_everyday;
mod lists;
mod makers;
mod pod_security;
mod pods;
mod policies;
mod quotas;
mod revocation;
mod services;
mod siege;
mod ssrf;
mod streams;
mod support;
mod tokens;
mod verbs;
