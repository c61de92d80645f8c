//! Service account tokens: JSON web tokens that the server signs on request and recognizes later.
//!
//! A token is good as long as its signature, its times and its audience are, and the objects it is bound to are still the
//! ones it was made for. Nothing about a token is stored.

use std::collections::{BTreeMap, HashMap};
use std::sync::{Mutex, MutexGuard, PoisonError};

use base64::Engine as _;
use base64::engine::general_purpose::URL_SAFE_NO_PAD;
use ferrovirt_store::Key;
use ring::rand::SystemRandom;
use ring::signature::{self, EcdsaKeyPair, KeyPair as _, UnparsedPublicKey};
use rustls_pki_types::PrivatePkcs8KeyDer;
use rustls_pki_types::pem::PemObject as _;
use serde::{Deserialize, Serialize};
use serde_json::json;

use crate::authn::{User, digest};
use crate::storage::Store;

/// Who signs, and the audience of tokens that name none.
pub const ISSUER: &str = "https://kubernetes.default.svc.cluster.local";
/// Longer tokens are none of ours.
pub const MAX_TOKEN: usize = 16 * 1024;
/// Tokens whose signature is remembered. Who has more of them has them checked again.
const MAX_KNOWN: usize = 4096;
const LARGEST_KNOWN: usize = 4096;

#[derive(Debug, thiserror::Error)]
pub enum KeyError {
    #[error("the key of service account tokens is not PKCS#8 PEM")]
    Pem(#[source] rustls_pki_types::pem::Error),
    #[error("the key of service account tokens is not an EC P-256 key: {0}")]
    Key(String),
}

/// Why a token is not accepted. The words are shown by TokenReview.
#[derive(Debug, thiserror::Error)]
pub enum TokenError {
    #[error("the token is not a JSON web token of this server")]
    Malformed,
    #[error("the signature of the token is wrong")]
    Signature,
    #[error("the token is expired or not valid yet")]
    Time,
    #[error("the audiences of the token {0:?} are not the ones asked for")]
    Audience(Vec<String>),
    #[error("what the token is bound to is gone: {0}")]
    Gone(String),
}

/// The content of a token.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub struct Claims {
    pub iss: String,
    pub sub: String,
    pub aud: Vec<String>,
    pub exp: i64,
    pub iat: i64,
    pub nbf: i64,
    pub jti: String,
    #[serde(rename = "kubernetes.io")]
    pub kubernetes: Bound,
}

#[derive(Debug, Clone, Serialize, Deserialize)]
pub struct Bound {
    pub namespace: String,
    pub serviceaccount: Reference,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub pod: Option<Reference>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub secret: Option<Reference>,
}

#[derive(Debug, Clone, Default, Serialize, Deserialize)]
pub struct Reference {
    pub name: String,
    pub uid: String,
}

/// The OpenID provider configuration: where relying parties find the key.
pub fn discovery() -> serde_json::Value {
    json!({
        "issuer": ISSUER, "jwks_uri": format!("{ISSUER}/openid/v1/jwks"), "response_types_supported": ["id_token"],
        "subject_types_supported": ["public"], "id_token_signing_alg_values_supported": ["ES256"],
    })
}

/// The signer. Without a key it issues nothing and knows no token.
#[derive(Default)]
pub struct Tokens {
    key: Option<EcdsaKeyPair>,
    /// What tokens say whose signature was right, by their digest: it stays right. All else is looked at each time.
    known: Mutex<HashMap<[u8; 32], Claims>>,
}

impl Tokens {
    /// Takes a PKCS#8 PEM key on P-256.
    pub fn new(pem: Option<&str>) -> Result<Self, KeyError> {
        let Some(pem) = pem else {
            return Ok(Self::default());
        };
        let der = PrivatePkcs8KeyDer::from_pem_slice(pem.as_bytes()).map_err(KeyError::Pem)?;
        let algorithm = &signature::ECDSA_P256_SHA256_FIXED_SIGNING;
        let key = EcdsaKeyPair::from_pkcs8(algorithm, der.secret_pkcs8_der(), &SystemRandom::new())
            .map_err(|e| KeyError::Key(e.to_string()))?;
        Ok(Self { key: Some(key), known: Mutex::default() })
    }

    /// The token that says this, or None if there is no key.
    pub fn sign(&self, claims: &Claims) -> Option<String> {
        let key = self.key.as_ref()?;
        let header = json!({"alg": "ES256", "typ": "JWT", "kid": key_id(key)}).to_string();
        let content = serde_json::to_vec(claims).ok()?;
        let message = format!("{}.{}", URL_SAFE_NO_PAD.encode(header), URL_SAFE_NO_PAD.encode(content));
        let signature = key.sign(&SystemRandom::new(), message.as_bytes()).ok()?;
        Some(format!("{message}.{}", URL_SAFE_NO_PAD.encode(signature.as_ref())))
    }

    /// The public key, as a JSON web key set. None if there is no key.
    pub fn keys(&self) -> Option<serde_json::Value> {
        let key = self.key.as_ref()?;
        // An uncompressed point: a four, then both coordinates.
        let point = key.public_key().as_ref().get(1..65)?;
        let (x, y) = point.split_at(32);
        Some(json!({"keys": [{
            "use": "sig", "kty": "EC", "kid": key_id(key), "crv": "P-256", "alg": "ES256",
            "x": URL_SAFE_NO_PAD.encode(x), "y": URL_SAFE_NO_PAD.encode(y),
        }]}))
    }

    /// Who a token speaks for, and for which of the wanted audiences.
    pub fn check(
        &self,
        store: &Store,
        token: &str,
        wanted: &[String],
        now: i64,
    ) -> Result<(User, Vec<String>), TokenError> {
        let claims = self.verify(token)?;
        if claims.iss != ISSUER {
            return Err(TokenError::Malformed);
        }
        if now >= claims.exp || now < claims.nbf {
            return Err(TokenError::Time);
        }
        let audiences: Vec<String> = wanted.iter().filter(|a| claims.aud.contains(a)).cloned().collect();
        if audiences.is_empty() {
            return Err(TokenError::Audience(claims.aud));
        }
        let bound = &claims.kubernetes;
        let account = Some(&bound.serviceaccount);
        for (resource, object) in
            [("serviceaccounts", account), ("pods", bound.pod.as_ref()), ("secrets", bound.secret.as_ref())]
        {
            let Some(object) = object else { continue };
            let entry = store.get(resource, &Key::new(bound.namespace.as_str(), object.name.as_str()));
            if entry.is_none_or(|e| *e.meta.uid != *object.uid) {
                return Err(TokenError::Gone(format!("{resource} {}/{}", bound.namespace, object.name)));
            }
        }
        Ok((user(&claims), audiences))
    }

    /// Whether the signature of a token was checked before, so that it costs next to nothing now.
    pub fn knows(&self, token: &str) -> bool {
        token.len() <= LARGEST_KNOWN && self.known().contains_key(&digest(token))
    }

    fn known(&self) -> MutexGuard<'_, HashMap<[u8; 32], Claims>> {
        self.known.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn verify(&self, token: &str) -> Result<Claims, TokenError> {
        if token.len() > MAX_TOKEN {
            return Err(TokenError::Malformed);
        }
        let digest = digest(token);
        if let Some(claims) = self.known().get(&digest) {
            return Ok(claims.clone());
        }
        let claims = self.verify_signature(token)?;
        if token.len() <= LARGEST_KNOWN {
            let mut known = self.known();
            if known.len() >= MAX_KNOWN {
                known.clear();
            }
            known.insert(digest, claims.clone());
        }
        Ok(claims)
    }

    fn verify_signature(&self, token: &str) -> Result<Claims, TokenError> {
        let key = self.key.as_ref().ok_or(TokenError::Malformed)?;
        let decode = |part: &str| URL_SAFE_NO_PAD.decode(part).map_err(|_| TokenError::Malformed);
        let (message, signature) = token.rsplit_once('.').ok_or(TokenError::Malformed)?;
        let (header, content) = message.split_once('.').ok_or(TokenError::Malformed)?;
        // The one algorithm, whatever the header says; it must say so too.
        let header: serde_json::Value = serde_json::from_slice(&decode(header)?).map_err(|_| TokenError::Malformed)?;
        if header["alg"] != "ES256" {
            return Err(TokenError::Malformed);
        }
        UnparsedPublicKey::new(&signature::ECDSA_P256_SHA256_FIXED, key.public_key().as_ref())
            .verify(message.as_bytes(), &decode(signature)?)
            .map_err(|_| TokenError::Signature)?;
        serde_json::from_slice(&decode(content)?).map_err(|_| TokenError::Malformed)
    }
}

fn key_id(key: &EcdsaKeyPair) -> String {
    URL_SAFE_NO_PAD.encode(ring::digest::digest(&ring::digest::SHA256, key.public_key().as_ref()))
}

fn user(claims: &Claims) -> User {
    let bound = &claims.kubernetes;
    let mut extra = BTreeMap::new();
    extra.insert("authentication.kubernetes.io/credential-id".to_owned(), vec![format!("JTI={}", claims.jti)]);
    if let Some(pod) = &bound.pod {
        extra.insert("authentication.kubernetes.io/pod-name".to_owned(), vec![pod.name.clone()]);
        extra.insert("authentication.kubernetes.io/pod-uid".to_owned(), vec![pod.uid.clone()]);
    }
    User {
        name: format!("system:serviceaccount:{}:{}", bound.namespace, bound.serviceaccount.name),
        uid: Some(bound.serviceaccount.uid.clone()),
        groups: vec!["system:serviceaccounts".to_owned(), format!("system:serviceaccounts:{}", bound.namespace)],
        extra,
    }
    .authenticated()
}
