//! The controllers that the API implies. They work through the pipeline like any client, with identities of their own.

mod api_services;
mod budgets;
mod client;
mod crds;
mod endpoint;
mod events;
mod follow;
mod gc;
mod lists;
mod local_api_services;
mod namespaces;
mod policies;
mod quotas;
mod roles;
mod root_ca;
mod service_accounts;
mod token_secrets;

use std::sync::Arc;

pub use api_services::refresh as refresh_api_services;
pub use client::Client;
pub use endpoint::advertise;

use crate::server::Server;

/// Deletes an object only after its dependents.
pub const FOREGROUND: &str = "foregroundDeletion";
/// Deletes an object and lets its dependents live.
pub const ORPHAN: &str = "orphan";

/// Starts all of them. They end with the server.
pub fn spawn(server: &Arc<Server>) {
    server.tasks.spawn(gc::run(server.clone()));
    server.tasks.spawn(namespaces::run(server.clone()));
    server.tasks.spawn(crds::run(server.clone()));
    server.tasks.spawn(roles::run(server.clone()));
    server.tasks.spawn(service_accounts::run(server.clone()));
    server.tasks.spawn(events::run(server.clone()));
    server.tasks.spawn(quotas::run(server.clone()));
    server.tasks.spawn(budgets::run(server.clone()));
    server.tasks.spawn(root_ca::run(server.clone()));
    server.tasks.spawn(token_secrets::run(server.clone()));
    server.tasks.spawn(local_api_services::run(server.clone()));
    server.tasks.spawn(api_services::run(server.clone()));
    server.tasks.spawn(policies::run(server.clone()));
    server.tasks.spawn(lists::run(server.clone()));
}
