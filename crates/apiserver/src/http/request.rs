//! What a URL asks for, before anything is known about the resource.

use std::collections::BTreeMap;

use http::{Method, Uri};

use crate::status::ApiError;

/// The verb, group, version, resource and name in a request, as authorization sees them.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct RequestInfo {
    pub path: String,
    pub verb: &'static str,
    /// None for discovery, health and the like.
    pub target: Option<Target>,
}

#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct Target {
    pub group: String,
    pub version: String,
    pub namespace: Option<String>,
    pub resource: String,
    pub name: Option<String>,
    pub subresource: Option<String>,
    /// What follows the subresource (`proxy/a/b`, `console/…`).
    pub rest: String,
}

/// Decoded query parameters. The first of a repeated key counts, as in Go's `url.Values.Get`.
#[derive(Debug, Clone, Default)]
pub struct Query(BTreeMap<String, Vec<String>>);

impl Query {
    pub fn parse(uri: &Uri) -> Self {
        let mut map: BTreeMap<String, Vec<String>> = BTreeMap::new();
        for pair in uri.query().unwrap_or_default().split('&').filter(|p| !p.is_empty()) {
            let (key, value) = pair.split_once('=').unwrap_or((pair, ""));
            map.entry(decode(key, true)).or_default().push(decode(value, true));
        }
        Self(map)
    }

    pub fn get(&self, key: &str) -> &str {
        self.0.get(key).and_then(|v| v.first()).map(String::as_str).unwrap_or_default()
    }

    pub fn all(&self, key: &str) -> &[String] {
        self.0.get(key).map(Vec::as_slice).unwrap_or_default()
    }

    pub fn flag(&self, key: &str) -> bool {
        self.0.contains_key(key) && !matches!(self.get(key), "false" | "0")
    }

    /// A number, if there is one.
    pub fn number<N: std::str::FromStr>(&self, key: &str) -> Result<Option<N>, ApiError> {
        match self.get(key) {
            "" => Ok(None),
            text => text
                .parse()
                .map(Some)
                .map_err(|_| ApiError::bad_request(format!("strconv.ParseInt: parsing \"{text}\": invalid syntax"))),
        }
    }
}

/// Percent-decoding; `plus` also turns `+` into a space.
fn decode(text: &str, plus: bool) -> String {
    let bytes = text.as_bytes();
    let mut out = Vec::with_capacity(bytes.len());
    let mut i = 0;
    while i < bytes.len() {
        let hex = (bytes[i] == b'%')
            .then(|| bytes.get(i + 1..i + 3))
            .flatten()
            .and_then(|h| std::str::from_utf8(h).ok())
            .and_then(|h| u8::from_str_radix(h, 16).ok());
        match (hex, bytes[i]) {
            (Some(byte), _) => {
                out.push(byte);
                i += 3;
                continue;
            }
            (None, b'+') if plus => out.push(b' '),
            (None, byte) => out.push(byte),
        }
        i += 1;
    }
    String::from_utf8_lossy(&out).into_owned()
}

impl RequestInfo {
    pub fn parse(method: &Method, uri: &Uri, query: &Query) -> Self {
        let path = uri.path().to_owned();
        let mut parts =
            path.split('/').filter(|p| !p.is_empty()).map(|p| decode(p, false)).collect::<Vec<_>>().into_iter();
        let plain = |path: String| Self { verb: plain_verb(method), path, target: None };
        let (group, version) = match parts.next().as_deref() {
            Some("api") => (Some(String::new()), parts.next()),
            Some("apis") => (parts.next(), parts.next()),
            _ => (None, None),
        };
        let (Some(group), Some(version)) = (group, version) else {
            return plain(path);
        };
        let mut parts: Vec<String> = parts.collect();
        // The old form `/api/v1/watch/…`.
        let mut legacy_watch = false;
        if parts.first().is_some_and(|p| p == "watch") {
            legacy_watch = true;
            parts.remove(0);
        }
        if parts.is_empty() {
            return plain(path);
        }
        let mut target = Target { group, version, ..Target::default() };
        let mut parts = parts.into_iter().peekable();
        let first = parts.next().unwrap_or_default();
        target.resource = if first == "namespaces" {
            let namespace = parts.next();
            match (&namespace, parts.peek().map(String::as_str)) {
                // The namespace itself and its subresources.
                (_, None) | (Some(_), Some("status" | "finalize")) => {
                    // Authorization of a namespace counts as being inside of it.
                    target.namespace.clone_from(&namespace);
                    target.name = namespace;
                    first
                }
                _ => {
                    target.namespace = namespace;
                    parts.next().unwrap_or_default()
                }
            }
        } else {
            first
        };
        if target.name.is_none() {
            target.name = parts.next();
        }
        target.subresource = parts.next();
        target.rest = parts.collect::<Vec<_>>().join("/");
        let named = target.name.is_some();
        let watching = legacy_watch || query.flag("watch");
        let verb = match *method {
            Method::GET | Method::HEAD if !named && watching => "watch",
            Method::GET | Method::HEAD if named && legacy_watch => "watch",
            Method::GET | Method::HEAD if named => "get",
            Method::GET | Method::HEAD => "list",
            Method::POST => "create",
            Method::PUT => "update",
            Method::PATCH => "patch",
            Method::DELETE if named => "delete",
            Method::DELETE => "deletecollection",
            _ => "",
        };
        Self { path, verb, target: Some(target) }
    }
}

fn plain_verb(method: &Method) -> &'static str {
    match *method {
        Method::GET => "get",
        Method::HEAD => "head",
        Method::POST => "post",
        Method::PUT => "put",
        Method::PATCH => "patch",
        Method::DELETE => "delete",
        Method::OPTIONS => "options",
        _ => "",
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn reads_paths_as_upstream_does() {
        // (method, uri, "verb group/version ns resource name sub rest")
        let cases = [
            ("GET", "/api/v1/namespaces", "list /v1 - namespaces - - "),
            ("GET", "/api/v1/namespaces/a", "get /v1 a namespaces a - "),
            ("PUT", "/api/v1/namespaces/a/finalize", "update /v1 a namespaces a finalize "),
            ("GET", "/api/v1/namespaces/a/pods?watch=true", "watch /v1 a pods - - "),
            ("GET", "/api/v1/namespaces/a/pods/p/log", "get /v1 a pods p log "),
            (
                "DELETE",
                "/apis/kubevirt.io/v1/namespaces/a/virtualmachines",
                "deletecollection kubevirt.io/v1 a virtualmachines - - ",
            ),
            ("GET", "/apis/x/v1/namespaces/a/vms/b/console/c/d", "get x/v1 a vms b console c/d"),
            (
                "PATCH",
                "/apis/rbac.authorization.k8s.io/v1/clusterroles/system%3Aadmin",
                "patch rbac.authorization.k8s.io/v1 - clusterroles system:admin - ",
            ),
            ("GET", "/api/v1/watch/namespaces/a/pods", "watch /v1 a pods - - "),
            ("GET", "/apis/x/v1", "get"),
            ("GET", "/healthz", "get"),
        ];
        for (method, uri, expected) in cases {
            let uri: Uri = uri.parse().unwrap();
            let info = RequestInfo::parse(&method.parse().unwrap(), &uri, &Query::parse(&uri));
            let or = |o: Option<String>| o.unwrap_or_else(|| "-".into());
            let got = match info.target {
                None => info.verb.to_owned(),
                Some(t) => format!(
                    "{} {}/{} {} {} {} {} {}",
                    info.verb,
                    t.group,
                    t.version,
                    or(t.namespace),
                    t.resource,
                    or(t.name),
                    or(t.subresource),
                    t.rest
                ),
            };
            assert_eq!(got, expected, "{uri}");
        }
    }
}
