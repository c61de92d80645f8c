//! X.509 client certificates with any number of groups.
//!
//! Kubernetes reads each group from an organisation of its own, and the certificate library keeps only one organisation
//! per name, so this one structure is encoded here. Everything else about certificates is the library's.

use anyhow::{Context, Result};
use rcgen::{KeyPair, PublicKeyData, SigningKey};
use time::OffsetDateTime;

pub struct Request<'a> {
    pub user: &'a str,
    pub groups: &'a [String],
    pub not_before: OffsetDateTime,
    pub not_after: OffsetDateTime,
}

const SEQUENCE: u8 = 0x30;
const SET: u8 = 0x31;
const INTEGER: u8 = 0x02;
const BIT_STRING: u8 = 0x03;
const OCTET_STRING: u8 = 0x04;
const OBJECT: u8 = 0x06;
const UTF8: u8 = 0x0c;
const UTC_TIME: u8 = 0x17;
const GENERALIZED_TIME: u8 = 0x18;
const BOOLEAN: u8 = 0x01;

const COMMON_NAME: [u8; 3] = [0x55, 0x04, 0x03];
const ORGANIZATION: [u8; 3] = [0x55, 0x04, 0x0a];
const ECDSA_SHA256: [u8; 8] = [0x2a, 0x86, 0x48, 0xce, 0x3d, 0x04, 0x03, 0x02];
const KEY_USAGE: [u8; 3] = [0x55, 0x1d, 0x0f];
const EXTENDED_KEY_USAGE: [u8; 3] = [0x55, 0x1d, 0x25];
const CLIENT_AUTH: [u8; 8] = [0x2b, 0x06, 0x01, 0x05, 0x05, 0x07, 0x03, 0x02];

/// Signs a certificate for `key` with the CA; DER.
pub fn sign(request: &Request<'_>, key: &KeyPair, ca_certificate: &[u8], ca_key: &KeyPair) -> Result<Vec<u8>> {
    let (_, ca) = x509_parser::parse_x509_certificate(ca_certificate).context("the CA certificate is damaged")?;
    let mut serial = [0u8; 16];
    rustix::rand::getrandom(&mut serial, rustix::rand::GetRandomFlags::empty())?;
    // A serial number is positive and its first octet is not zero.
    serial[0] = (serial[0] & 0x7f) | 0x40;
    let algorithm = element(SEQUENCE, &element(OBJECT, &ECDSA_SHA256));
    let body = element(
        SEQUENCE,
        &[
            element(0xa0, &element(INTEGER, &[2])),
            element(INTEGER, &serial),
            algorithm.clone(),
            ca.subject().as_raw().to_vec(),
            element(SEQUENCE, &[moment(request.not_before), moment(request.not_after)].concat()),
            subject(request.user, request.groups),
            key.subject_public_key_info(),
            element(0xa3, &element(SEQUENCE, &extensions())),
        ]
        .concat(),
    );
    let signature = ca_key.sign(&body)?;
    let signature = element(BIT_STRING, &[&[0u8][..], &signature].concat());
    Ok(element(SEQUENCE, &[body, algorithm, signature].concat()))
}

fn subject(user: &str, groups: &[String]) -> Vec<u8> {
    let name = |kind: [u8; 3], value: &str| {
        let pair = [element(OBJECT, &kind), element(UTF8, value.as_bytes())].concat();
        element(SET, &element(SEQUENCE, &pair))
    };
    let mut names: Vec<u8> = groups.iter().flat_map(|group| name(ORGANIZATION, group)).collect();
    names.extend(name(COMMON_NAME, user));
    element(SEQUENCE, &names)
}

fn extensions() -> Vec<u8> {
    let extension = |kind: &[u8], critical: bool, value: Vec<u8>| {
        let mut content = element(OBJECT, kind);
        if critical {
            content.extend(element(BOOLEAN, &[0xff]));
        }
        content.extend(element(OCTET_STRING, &value));
        element(SEQUENCE, &content)
    };
    // digitalSignature, the first bit of a string with seven unused ones.
    let usage = element(BIT_STRING, &[7, 0x80]);
    let purpose = element(SEQUENCE, &element(OBJECT, &CLIENT_AUTH));
    [extension(&KEY_USAGE, true, usage), extension(&EXTENDED_KEY_USAGE, false, purpose)].concat()
}

/// Years up to 2049 have two digits, as RFC 5280 asks.
fn moment(at: OffsetDateTime) -> Vec<u8> {
    let (year, month, day) = (at.year(), u8::from(at.month()), at.day());
    let rest = format!("{month:02}{day:02}{:02}{:02}{:02}Z", at.hour(), at.minute(), at.second());
    match year {
        1950..2050 => element(UTC_TIME, format!("{:02}{rest}", year % 100).as_bytes()),
        _ => element(GENERALIZED_TIME, format!("{year:04}{rest}").as_bytes()),
    }
}

fn element(tag: u8, content: &[u8]) -> Vec<u8> {
    let mut out = vec![tag];
    let length = content.len();
    if length < 128 {
        out.push(length as u8);
    } else {
        let bytes: Vec<u8> = length.to_be_bytes().into_iter().skip_while(|b| *b == 0).collect();
        out.push(0x80 | bytes.len() as u8);
        out.extend(bytes);
    }
    out.extend_from_slice(content);
    out
}
