//! Tokens of uploads: signed by those who give them out, judged by whoever has the public key. Nothing that judges can sign.

use std::time::{Duration, SystemTime, UNIX_EPOCH};

use base64::Engine;
use base64::engine::general_purpose::URL_SAFE_NO_PAD;
use ring::hmac;
use ring::signature::{ED25519, Ed25519KeyPair, KeyPair, UnparsedPublicKey};
use serde::{Deserialize, Serialize};
use std::sync::Arc;

/// How long a token lets an upload begin.
const LIFETIME: Duration = Duration::from_secs(300);

/// What a token lets its holder do: fill this one claim, not another that has its name later.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub(crate) struct Claims {
    pub namespace: String,
    pub name: String,
    pub uid: String,
    /// Seconds since 1970.
    until: u64,
}

/// What tokens are signed with.
#[derive(Clone)]
pub struct Key(Arc<Ed25519KeyPair>);

impl Key {
    /// Whoever has the same secret knows the tokens of all who have it. `None` if the secret is of no use.
    pub fn of(secret: &[u8]) -> Option<Self> {
        // Not the secret itself: it is for something else, too.
        let own = hmac::sign(&hmac::Key::new(hmac::HMAC_SHA256, secret), b"upload tokens");
        Ed25519KeyPair::from_seed_unchecked(own.as_ref()).ok().map(|pair| Self(Arc::new(pair)))
    }

    /// What others judge tokens with.
    pub fn public(&self) -> String {
        URL_SAFE_NO_PAD.encode(self.0.public_key())
    }

    pub(crate) fn sign(&self, namespace: &str, name: &str, uid: &str) -> String {
        let until = now() + LIFETIME.as_secs();
        let claims = Claims { namespace: namespace.to_owned(), name: name.to_owned(), uid: uid.to_owned(), until };
        let text = URL_SAFE_NO_PAD.encode(serde_json::to_vec(&claims).unwrap_or_default());
        let mark = URL_SAFE_NO_PAD.encode(self.0.sign(text.as_bytes()));
        format!("{text}.{mark}")
    }
}

/// What a token says, if it is signed and still good.
pub(crate) fn judge(public: &str, token: &str) -> Option<Claims> {
    let (text, mark) = token.split_once('.')?;
    let key = UnparsedPublicKey::new(&ED25519, URL_SAFE_NO_PAD.decode(public).ok()?);
    key.verify(text.as_bytes(), &URL_SAFE_NO_PAD.decode(mark).ok()?).ok()?;
    let claims: Claims = serde_json::from_slice(&URL_SAFE_NO_PAD.decode(text).ok()?).ok()?;
    (claims.until >= now()).then_some(claims)
}

pub(crate) fn now() -> u64 {
    SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default().as_secs()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_token_is_good_for_its_claim_and_its_signer_only() {
        let (one, two) = (Key::of(b"one").unwrap(), Key::of(b"two").unwrap());
        let token = one.sign("a", "disk", "u1");
        let claims = judge(&one.public(), &token).unwrap();
        assert_eq!((claims.namespace.as_str(), claims.name.as_str(), claims.uid.as_str()), ("a", "disk", "u1"));
        assert!(judge(&Key::of(b"one").unwrap().public(), &token).is_some(), "who has the same secret");
        assert!(judge(&two.public(), &token).is_none(), "another signer");
        let (text, mark) = token.split_once('.').unwrap();
        let other = URL_SAFE_NO_PAD.encode(r#"{"namespace":"b","name":"disk","uid":"u1","until":99999999999}"#);
        for forged in [format!("{other}.{mark}"), text.to_owned(), format!("{text}."), String::new()] {
            assert!(judge(&one.public(), &forged).is_none(), "{forged}");
        }
    }

    #[test]
    fn a_token_cannot_be_made_from_what_stands_in_a_pod() {
        let key = Key::of(b"one").unwrap();
        // All that an importer knows.
        let forger = Key::of(key.public().as_bytes()).unwrap();
        assert!(judge(&key.public(), &forger.sign("a", "disk", "u1")).is_none());
        let claims = URL_SAFE_NO_PAD.encode(r#"{"namespace":"a","name":"disk","uid":"u1","until":99999999999}"#);
        let known = hmac::Key::new(hmac::HMAC_SHA256, key.public().as_bytes());
        let mark = URL_SAFE_NO_PAD.encode(hmac::sign(&known, claims.as_bytes()));
        assert!(judge(&key.public(), &format!("{claims}.{mark}")).is_none());
    }

    #[test]
    fn a_token_ends() {
        let key = Key::of(b"one").unwrap();
        let claims = Claims { namespace: "a".into(), name: "d".into(), uid: "u".into(), until: now() - 1 };
        let text = URL_SAFE_NO_PAD.encode(serde_json::to_vec(&claims).unwrap());
        let token = format!("{text}.{}", URL_SAFE_NO_PAD.encode(key.0.sign(text.as_bytes())));
        assert!(judge(&key.public(), &token).is_none());
    }
}
