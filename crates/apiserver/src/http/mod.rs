//! HTTP: bodies, content negotiation, what a URL asks for, and the TLS listener. Knows nothing of resources' contents.

mod anyone;
pub mod body;
pub mod certificate;
pub mod negotiate;
pub mod outbound;
pub mod request;
pub mod serve;
