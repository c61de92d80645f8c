//! This server as the front proxy of extension API servers: it has authenticated the caller, and says who that is in
//! headers that they believe because of the certificate it shows.

use std::sync::Arc;

use http::{HeaderMap, HeaderName, HeaderValue, Request, Response, StatusCode, Version, header};
use hyper_util::rt::TokioIo;
use serde_json::{Value, json};

use crate::authn::User;
use crate::http::body::{self, Body};
use crate::http::outbound::{ClientIdentity, Destination};
use crate::server::Server;

const USER: &str = "x-remote-user";
const UID: &str = "x-remote-uid";
const GROUP: &str = "x-remote-group";
const EXTRA: &str = "x-remote-extra-";

/// What belongs to one connection and not to the request.
const HOP_BY_HOP: [HeaderName; 9] = [
    header::CONNECTION,
    header::PROXY_AUTHENTICATE,
    header::PROXY_AUTHORIZATION,
    header::TE,
    header::TRAILER,
    header::TRANSFER_ENCODING,
    header::UPGRADE,
    HeaderName::from_static("keep-alive"),
    HeaderName::from_static("proxy-connection"),
];

/// With what this server shows that it is the front proxy, as PEM texts.
#[derive(Debug, Clone)]
pub struct FrontProxy {
    pub certificate_pem: String,
    pub key_pem: String,
    /// Signed the certificate, and nobody else's.
    pub authority_pem: String,
    /// Signs the certificates of clients, who may ask extension servers directly, too.
    pub client_authority_pem: String,
}

impl FrontProxy {
    fn identity(&self) -> ClientIdentity {
        ClientIdentity { certificate_pem: self.certificate_pem.clone(), key_pem: self.key_pem.clone() }
    }

    /// The object in which extension servers look up whom to believe.
    pub fn config_map(&self) -> Value {
        let list = |items: &[&str]| json!(items).to_string();
        json!({
            "apiVersion": "v1", "kind": "ConfigMap",
            "metadata": {"name": "extension-apiserver-authentication", "namespace": "kube-system"},
            "data": {
                "client-ca-file": self.client_authority_pem,
                "requestheader-allowed-names": list(&["front-proxy-client"]),
                "requestheader-client-ca-file": self.authority_pem,
                "requestheader-extra-headers-prefix": list(&["X-Remote-Extra-"]),
                "requestheader-group-headers": list(&["X-Remote-Group"]),
                "requestheader-uid-headers": list(&["X-Remote-Uid"]),
                "requestheader-username-headers": list(&["X-Remote-User"]),
            },
        })
    }
}

/// Sends a request on in the name of `user`. An upgrade of the connection joins both sides.
pub async fn pass_on(
    server: &Arc<Server>,
    destination: &Destination,
    user: &User,
    mut request: Request<Body>,
) -> Result<Response<Body>, String> {
    let protocol = request.headers().get(header::UPGRADE).cloned();
    let ours = protocol.is_some().then(|| hyper::upgrade::on(&mut request));
    let (mut parts, content) = request.into_parts();
    let path = parts.uri.path_and_query().map_or("/", |p| p.as_str()).to_owned();
    parts.uri = path.parse().map_err(|e| format!("{e}"))?;
    parts.version = Version::HTTP_11;
    remove_hop_by_hop(&mut parts.headers);
    identify(&mut parts.headers, user);
    if let Some(protocol) = &protocol {
        parts.headers.insert(header::CONNECTION, HeaderValue::from_static("Upgrade"));
        parts.headers.insert(header::UPGRADE, protocol.clone());
    }
    parts.extensions.clear();
    let identity = server.front_proxy.as_ref().map(FrontProxy::identity);
    let mut response = destination.pass_on(server, identity.as_ref(), Request::from_parts(parts, content)).await?;
    if response.status() != StatusCode::SWITCHING_PROTOCOLS {
        remove_hop_by_hop(response.headers_mut());
        return Ok(response);
    }
    let Some(ours) = ours else {
        return Err("it upgraded a connection that nobody asked to be".to_owned());
    };
    let theirs = hyper::upgrade::on(&mut response);
    tokio::spawn(async move {
        let (ours, theirs) = match futures::try_join!(ours, theirs) {
            Ok(both) => both,
            Err(error) => return tracing::debug!(%error, "an upgraded connection to an extension server broke"),
        };
        let (mut ours, mut theirs) = (TokioIo::new(ours), TokioIo::new(theirs));
        if let Err(error) = tokio::io::copy_bidirectional(&mut ours, &mut theirs).await {
            tracing::debug!(%error, "an upgraded connection to an extension server ended");
        }
    });
    *response.body_mut() = body::empty();
    Ok(response)
}

/// Replaces whatever a client claims to be by what it is.
fn identify(headers: &mut HeaderMap, user: &User) {
    let claimed: Vec<HeaderName> = headers
        .keys()
        .filter(|name| {
            // Some servers take an underscore for a dash.
            let name = name.as_str().replace('_', "-");
            name.starts_with("x-remote-") || name.starts_with("impersonate-")
        })
        .cloned()
        .collect();
    for name in claimed {
        headers.remove(name);
    }
    headers.remove(header::AUTHORIZATION);
    let mut add = |name: &str, value: &str| {
        if let (Ok(name), Ok(value)) = (HeaderName::try_from(name), HeaderValue::from_str(value)) {
            headers.append(name, value);
        }
    };
    add(USER, &user.name);
    if let Some(uid) = &user.uid {
        add(UID, uid);
    }
    for group in &user.groups {
        add(GROUP, group);
    }
    for (key, values) in &user.extra {
        for value in values {
            add(&format!("{EXTRA}{}", escaped(key)), value);
        }
    }
}

/// A key of `extra` as part of a header's name: what such a name cannot hold is percent-encoded.
fn escaped(key: &str) -> String {
    let plain = |byte: u8| byte.is_ascii_alphanumeric() || b"!#$&'*+-.^_`|~".contains(&byte);
    key.bytes().map(|b| if plain(b) { char::from(b).to_string() } else { format!("%{b:02X}") }).collect()
}

fn remove_hop_by_hop(headers: &mut HeaderMap) {
    let named: Vec<HeaderName> = headers
        .get_all(header::CONNECTION)
        .iter()
        .filter_map(|v| v.to_str().ok())
        .flat_map(|v| v.split(','))
        .filter_map(|name| HeaderName::try_from(name.trim()).ok())
        .collect();
    for name in named.iter().chain(&HOP_BY_HOP) {
        headers.remove(name);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_the_server_says_who_is_asking() {
        let mut headers = HeaderMap::new();
        for (name, value) in [
            ("x-remote-user", "root"),
            ("x-remote-group", "system:masters"),
            ("x-remote-extra-a", "b"),
            ("x_remote_user", "root"),
            ("X-Remote_Group", "system:masters"),
            ("X_REMOTE-EXTRA_a", "b"),
            ("authorization", "Bearer x"),
            ("impersonate-user", "root"),
            ("connection", "close, x-private"),
            ("x-private", "1"),
            ("accept", "*/*"),
        ] {
            headers.append(HeaderName::try_from(name).unwrap(), HeaderValue::from_static(value));
        }
        let mut user = User::new("jane", &["dev", "ops"]);
        user.uid = Some("7".into());
        user.extra.insert("example.com/scopes".into(), vec!["a".into(), "b".into()]);
        remove_hop_by_hop(&mut headers);
        identify(&mut headers, &user);
        let mut got: Vec<String> =
            headers.iter().map(|(name, value)| format!("{name}={}", value.to_str().unwrap())).collect();
        got.sort();
        let expected = [
            "accept=*/*",
            "x-remote-extra-example.com%2fscopes=a",
            "x-remote-extra-example.com%2fscopes=b",
            "x-remote-group=dev",
            "x-remote-group=ops",
            "x-remote-uid=7",
            "x-remote-user=jane",
        ];
        assert_eq!(got, expected);
    }
}
