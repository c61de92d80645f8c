//! How bytes come from outside: a small HTTP client, images on web servers, and image registries.
//!
//! Nothing here knows of Kubernetes. What is fetched is foreign: lengths and digests are checked by whoever asked.

pub mod guard;
pub mod http;
pub mod registry;
pub mod web;
