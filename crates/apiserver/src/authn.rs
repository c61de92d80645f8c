//! Who is asking.

use std::collections::{BTreeMap, HashMap};

use x509_parser::prelude::FromDer;

/// The group whose members pass authorization unconditionally.
pub const MASTERS: &str = "system:masters";
pub const AUTHENTICATED: &str = "system:authenticated";
pub const UNAUTHENTICATED: &str = "system:unauthenticated";

/// An authenticated identity, as Kubernetes describes one.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct User {
    pub name: String,
    pub uid: Option<String>,
    pub groups: Vec<String>,
    pub extra: BTreeMap<String, Vec<String>>,
}

impl User {
    /// A user with groups and nothing else.
    pub fn new(name: impl Into<String>, groups: &[&str]) -> Self {
        Self { name: name.into(), groups: groups.iter().map(|g| (*g).to_owned()).collect(), ..Self::default() }
    }

    pub fn anonymous() -> Self {
        Self::new("system:anonymous", &[UNAUTHENTICATED])
    }

    /// The server acting on its own behalf (bootstrap, built-in controllers).
    pub(crate) fn system(component: &str) -> Self {
        Self::new(format!("system:{component}"), &[MASTERS, AUTHENTICATED])
    }

    pub fn is_anonymous(&self) -> bool {
        self.groups.iter().any(|g| g == UNAUTHENTICATED)
    }

    pub(crate) fn in_group(&self, group: &str) -> bool {
        self.groups.iter().any(|g| g == group)
    }

    /// Every caller that proved an identity belongs to `system:authenticated`, whoever vouched for it.
    pub(crate) fn authenticated(mut self) -> Self {
        if !self.is_anonymous() && !self.in_group(AUTHENTICATED) {
            self.groups.push(AUTHENTICATED.to_owned());
        }
        self
    }

    /// The `authentication.k8s.io` form: what reviews, webhooks and the audit log show.
    pub(crate) fn to_json(&self) -> serde_json::Value {
        let mut info = serde_json::json!({"username": self.name, "groups": self.groups});
        if let Some(uid) = &self.uid {
            info["uid"] = uid.clone().into();
        }
        if !self.extra.is_empty() {
            info["extra"] = serde_json::json!(self.extra);
        }
        info
    }

    pub(crate) fn from_json(spec: &serde_json::Value, name_field: &str) -> Self {
        let strings = |v: &serde_json::Value| -> Vec<String> {
            v.as_array()
                .map(|items| items.iter().filter_map(|s| s.as_str().map(str::to_owned)).collect())
                .unwrap_or_default()
        };
        Self {
            name: spec[name_field].as_str().unwrap_or_default().to_owned(),
            uid: spec["uid"].as_str().filter(|u| !u.is_empty()).map(str::to_owned),
            groups: strings(&spec["groups"]),
            extra: spec["extra"]
                .as_object()
                .map(|m| m.iter().map(|(k, v)| (k.clone(), strings(v))).collect())
                .unwrap_or_default(),
        }
    }
}

/// An extension of a request: until when what its caller proved to be someone with holds.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct CredentialExpiry(pub std::time::SystemTime);

pub(crate) fn expiry(der: &[u8]) -> Option<CredentialExpiry> {
    let (_, certificate) = x509_parser::certificate::X509Certificate::from_der(der).ok()?;
    let seconds = u64::try_from(certificate.validity().not_after.timestamp()).ok()?;
    Some(CredentialExpiry(std::time::UNIX_EPOCH + std::time::Duration::from_secs(seconds)))
}

/// Bearer tokens from a file, by their digest: looking one up takes the same time whatever it is.
#[derive(Clone, Debug, Default)]
pub struct StaticTokens {
    users: HashMap<[u8; 32], User>,
}

#[derive(Debug, thiserror::Error)]
pub enum TokenFileError {
    #[error("line {line} of the token file has {fields} fields; it needs token,user,uid and may have groups")]
    Fields { line: usize, fields: usize },
    #[error("line {line} of the token file has an empty {field}")]
    Empty { line: usize, field: &'static str },
    #[error("line {line} of the token file repeats a token")]
    Repeated { line: usize },
}

impl StaticTokens {
    /// Reads `token,user,uid,"group1,group2"`, one a line, as kube-apiserver's `--token-auth-file` has it.
    pub fn parse(text: &str) -> Result<Self, TokenFileError> {
        let mut users = HashMap::new();
        for (index, row) in text.lines().enumerate() {
            let line = index + 1;
            if row.trim().is_empty() || row.starts_with('#') {
                continue;
            }
            let fields = csv_fields(row);
            let [token, name, uid, ..] = fields.as_slice() else {
                return Err(TokenFileError::Fields { line, fields: fields.len() });
            };
            for (field, value) in [("token", token), ("user", name)] {
                if value.is_empty() {
                    return Err(TokenFileError::Empty { line, field });
                }
            }
            let groups = fields.get(3).map(String::as_str).unwrap_or_default().split(',').map(str::trim);
            let user = User {
                name: name.clone(),
                uid: Some(uid.clone()).filter(|u| !u.is_empty()),
                groups: groups.filter(|g| !g.is_empty()).map(str::to_owned).collect(),
                extra: BTreeMap::new(),
            };
            if users.insert(digest(token), user.authenticated()).is_some() {
                return Err(TokenFileError::Repeated { line });
            }
        }
        Ok(Self { users })
    }

    pub(crate) fn find(&self, token: &str) -> Option<&User> {
        if self.users.is_empty() {
            return None;
        }
        self.users.get(&digest(token))
    }
}

pub(crate) fn digest(token: &str) -> [u8; 32] {
    let mut bytes = [0; 32];
    bytes.copy_from_slice(ring::digest::digest(&ring::digest::SHA256, token.as_bytes()).as_ref());
    bytes
}

/// Fields of one line; a field in quotes may hold commas.
fn csv_fields(row: &str) -> Vec<String> {
    let mut fields = vec![String::new()];
    let mut quoted = false;
    for c in row.trim_end().chars() {
        match c {
            '"' => quoted = !quoted,
            ',' if !quoted => fields.push(String::new()),
            c => {
                if let Some(field) = fields.last_mut() {
                    field.push(c);
                }
            }
        }
    }
    fields.iter().map(|f| f.trim().to_owned()).collect()
}

/// The identity in a verified client certificate: common name and organisations.
pub(crate) fn from_certificate(der: &[u8]) -> Option<User> {
    let (_, cert) = x509_parser::certificate::X509Certificate::from_der(der).ok()?;
    let subject = cert.subject();
    // One name and no more, so that nobody reads another one than was signed for.
    let mut names = subject.iter_common_name();
    let name = names.next()?.as_str().ok().filter(|name| !name.is_empty())?.to_owned();
    if names.next().is_some() {
        return None;
    }
    let groups = subject.iter_organization().filter_map(|o| o.as_str().ok().map(str::to_owned)).collect();
    Some(User { name, groups, ..User::default() }.authenticated())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn token_files_read_as_upstream_reads_them() {
        let tokens = StaticTokens::parse("secret1,alice,u1,\"ops, dev\"\n\n# a comment\nsecret2,bob,,\n").unwrap();
        let alice = tokens.find("secret1").unwrap();
        assert_eq!((alice.name.as_str(), alice.uid.as_deref()), ("alice", Some("u1")));
        assert_eq!(alice.groups, ["ops", "dev", AUTHENTICATED]);
        assert_eq!(tokens.find("secret2").unwrap().uid, None);
        assert!(tokens.find("secret").is_none() && tokens.find("").is_none());
        for bad in ["only,two", ",user,1", "a,,1", "a,b,1\na,c,2"] {
            assert!(StaticTokens::parse(bad).is_err(), "{bad}");
        }
    }

    #[test]
    fn no_certificate_makes_the_reader_stumble() {
        let key = rcgen::KeyPair::generate().unwrap();
        let mut params = rcgen::CertificateParams::new(vec!["a".to_owned()]).unwrap();
        params.distinguished_name.push(rcgen::DnType::CommonName, "alice");
        params.distinguished_name.push(rcgen::DnType::OrganizationName, "ops");
        let der = params.self_signed(&key).unwrap().der().to_vec();
        assert_eq!(from_certificate(&der).unwrap().name, "alice");
        for at in 0..der.len() {
            for value in [0, 0x7f, 0x80, 0xff, der[at] ^ 1] {
                let mut damaged = der.clone();
                damaged[at] = value;
                let _ = (from_certificate(&damaged), expiry(&damaged));
            }
            let _ = (from_certificate(&der[..at]), expiry(&der[..at]));
        }
    }
}
