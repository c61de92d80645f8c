//! Shows a claim to an importer in another namespace, which cannot mount it: any part of it, to whoever knows the token.
//! Encrypted, and with a certificate that the importer knows (`pass`).

use std::fs::File;
use std::io::{self, Seek};
use std::os::unix::fs::FileExt;
use std::path::Path;
use std::sync::Arc;

use bytes::Bytes;
use futures::stream;
use http::header::{AUTHORIZATION, CONTENT_LENGTH, CONTENT_RANGE, ETAG, RANGE};
use http::{HeaderMap, HeaderValue, Response, StatusCode};
use http_body_util::combinators::UnsyncBoxBody;
use http_body_util::{BodyExt, Full, StreamBody};
use hyper::body::Frame;

const PIECE: u64 = 1 << 20;

pub(crate) type Body = UnsyncBoxBody<Bytes, io::Error>;

pub(crate) fn full(text: String) -> Body {
    Full::new(Bytes::from(text)).map_err(|never| match never {}).boxed_unsync()
}

pub(crate) struct Shown {
    token: String,
    /// None: a file system that no machine has used yet.
    disk: Option<Arc<File>>,
    length: u64,
}

impl Shown {
    pub fn open(path: &Path, token: &str) -> io::Result<Self> {
        let disk = match File::open(path) {
            Ok(file) => Some(file),
            Err(error) if error.kind() == io::ErrorKind::NotFound => None,
            Err(error) => return Err(error),
        };
        // A block device says 0; its end says how long it is.
        let length = disk.as_ref().map_or(Ok(0), |mut disk| disk.seek(io::SeekFrom::End(0)))?;
        Ok(Self { token: token.to_owned(), disk: disk.map(Arc::new), length })
    }

    pub fn answer(&self, headers: &HeaderMap) -> Response<Body> {
        let mut response = Response::new(full(String::new()));
        let expected = format!("Bearer {}", self.token);
        if headers.get(AUTHORIZATION).is_none_or(|value| value.as_bytes() != expected.as_bytes()) {
            *response.status_mut() = StatusCode::UNAUTHORIZED;
            return response;
        }
        let range = headers.get(RANGE).and_then(|value| value.to_str().ok()?.strip_prefix("bytes=")?.split_once('-'));
        let (from, until) = match range {
            None => (0, self.length),
            Some((from, until)) => {
                let until = until.parse::<u64>().map_or(self.length, |last| last.saturating_add(1).min(self.length));
                (from.parse().unwrap_or(u64::MAX), until)
            }
        };
        // Nobody writes to it meanwhile, so it is the same as long as this process lives.
        response.headers_mut().insert(ETAG, HeaderValue::from_static("\"claim\""));
        if range.is_some() && from >= until {
            *response.status_mut() = StatusCode::RANGE_NOT_SATISFIABLE;
            return response;
        }
        if range.is_some() {
            *response.status_mut() = StatusCode::PARTIAL_CONTENT;
            let told = HeaderValue::from_str(&format!("bytes {from}-{}/{}", until - 1, self.length));
            response.headers_mut().extend(told.map(|value| (CONTENT_RANGE, value)));
        }
        response.headers_mut().insert(CONTENT_LENGTH, (until - from).into());
        if let Some(disk) = &self.disk {
            *response.body_mut() = stretch(disk.clone(), from, until);
        }
        response
    }
}

fn stretch(disk: Arc<File>, from: u64, until: u64) -> Body {
    let pieces = stream::unfold(from, move |at| {
        let disk = disk.clone();
        async move {
            let length = usize::try_from((until - at).min(PIECE)).unwrap_or_default();
            if length == 0 {
                return None;
            }
            let read = tokio::task::spawn_blocking(move || {
                let mut piece = vec![0; length];
                disk.read_exact_at(&mut piece, at).map(|()| Frame::data(Bytes::from(piece)))
            });
            Some((read.await.unwrap_or_else(|error| Err(io::Error::other(error))), at + length as u64))
        }
    });
    StreamBody::new(pieces).boxed_unsync()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn any_part_is_shown_to_whoever_knows_the_token() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("disk.img");
        let content: Vec<u8> = (0..3_000_000_u32).map(|n| n as u8).collect();
        std::fs::write(&path, &content).unwrap();
        let shown = Shown::open(&path, "t").unwrap();
        for (token, range, code, expected) in [
            ("Bearer x", None, 401, 0..0),
            ("Bearer t", None, 200, 0..content.len()),
            ("Bearer t", Some("bytes=5-9"), 206, 5..10),
            ("Bearer t", Some("bytes=2000000-"), 206, 2_000_000..content.len()),
            ("Bearer t", Some("bytes=3000000-"), 416, 0..0),
        ] {
            let mut headers = HeaderMap::new();
            headers.insert(AUTHORIZATION, token.parse().unwrap());
            headers.extend(range.map(|range: &str| (RANGE, range.parse().unwrap())));
            let answer = shown.answer(&headers);
            assert_eq!(answer.status(), code, "{range:?}");
            let body = answer.into_body().collect().await.unwrap().to_bytes();
            assert!(body[..] == content[expected], "{range:?}");
        }
        let nothing = Shown::open(&dir.path().join("none"), "t").unwrap();
        let headers: HeaderMap = [(AUTHORIZATION, "Bearer t".parse().unwrap())].into_iter().collect();
        assert_eq!(nothing.answer(&headers).headers()[CONTENT_LENGTH], "0");
    }
}
