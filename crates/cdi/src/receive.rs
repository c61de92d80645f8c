//! The importer's side of an upload.
//!
//! A client that names its file may go away in the middle: the import waits where it is, whatever the format, and goes on when the
//! client comes back with the rest. Others, such as virtctl, begin anew.

use std::io::{self, Read};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use bytes::Bytes;
use ferrovirt_api::chain;
use ferrovirt_disks::image::Source;
use ferrovirt_fetch::web::Chunks;
use ferrovirt_serve::{Guest, Patient};
use http::header::{AUTHORIZATION, CONTENT_LENGTH, CONTENT_RANGE};
use http::{HeaderMap, Method, Request, StatusCode};
use http_body_util::BodyExt;
use hyper::body::Incoming;
use tokio::sync::{mpsc, watch};
use tokio::task::AbortHandle;

use crate::job::UPLOAD_FILE;
use crate::token::judge;
use crate::transfer::{Board, Place, fetch};
use crate::upload::STALL;

/// Pieces of an upload between network and disk.
const QUEUE: usize = 32;
/// The answer goes out before the process ends.
const FAREWELL: Duration = Duration::from_millis(200);

pub(crate) struct Uploads {
    /// The public key of those who give out tokens.
    pub key: String,
    /// The uid of the claim that is filled.
    pub claim: String,
    pub place: Arc<Place>,
    pub board: Arc<Board>,
    pub finished: watch::Sender<bool>,
    pub session: tokio::sync::Mutex<Option<Session>>,
}

/// What is told to a client: the code, the text, and how much of its file is here.
pub(crate) struct Answer {
    pub code: StatusCode,
    pub text: String,
    pub offset: Option<u64>,
}

type Outcome = Option<Result<(), String>>;

/// One image on its way in, over one connection or several.
pub(crate) struct Session {
    /// What the client calls its file. Empty: it cannot come back.
    file: String,
    sender: mpsc::Sender<io::Result<Bytes>>,
    received: Arc<AtomicU64>,
    pump: AbortHandle,
    /// Closed without a word when the pump was stopped.
    end: watch::Receiver<Option<End>>,
    outcome: watch::Receiver<Outcome>,
}

/// How a connection ended.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum End {
    Complete,
    Broken,
    /// Nobody wants more of it: the import failed.
    Unwanted,
}

impl Session {
    fn waits_for(&self, file: &str) -> bool {
        !file.is_empty() && self.file == file && self.outcome.borrow().is_none()
    }

    fn is_busy(&self) -> bool {
        !self.pump.is_finished() && self.outcome.borrow().is_none()
    }

    /// Stops what the last connection still does, and answers how much of the file is here.
    async fn interrupt(&mut self) -> u64 {
        self.pump.abort();
        let _ = self.end.wait_for(Option::is_some).await;
        self.received.load(Ordering::Relaxed)
    }

    /// Makes the import fail, and waits until it has cleaned up.
    async fn give_up(mut self) {
        self.interrupt().await;
        // An end alone could be mistaken for the end of the image.
        let _ = self.sender.send(Err(io::ErrorKind::UnexpectedEof.into())).await;
        drop(self.sender);
        let _ = self.outcome.wait_for(Option::is_some).await;
    }

    fn connect(&mut self, body: Incoming) {
        let (tell, end) = watch::channel(None);
        let (sender, received) = (self.sender.clone(), self.received.clone());
        self.end = end;
        self.pump = tokio::spawn(async move {
            let end = pump(body, sender, &received).await;
            tell.send_replace(Some(end));
        })
        .abort_handle();
    }
}

async fn pump(body: Incoming, sender: mpsc::Sender<io::Result<Bytes>>, received: &AtomicU64) -> End {
    // Who sends nothing for too long can go on later, on another connection.
    let mut body = Patient::new(body, STALL);
    while let Some(frame) = body.frame().await {
        let Ok(frame) = frame else { return End::Broken };
        let Ok(data) = frame.into_data() else { continue };
        // Counted in the same step as it is handed over, so that an interruption comes before both or after both.
        let Ok(permit) = sender.reserve().await else { return End::Unwanted };
        received.fetch_add(data.len() as u64, Ordering::Relaxed);
        permit.send(Ok(data));
    }
    End::Complete
}

/// Which part of which file a request brings.
#[derive(Debug, PartialEq, Eq)]
struct Part {
    file: String,
    from: u64,
    total: Option<u64>,
}

impl Part {
    fn of(headers: &HeaderMap) -> Self {
        let text = |name: &http::HeaderName| headers.get(name).and_then(|value| value.to_str().ok());
        let length = text(&CONTENT_LENGTH).and_then(|value| value.parse().ok());
        let range = text(&CONTENT_RANGE).and_then(|value| value.strip_prefix("bytes "));
        let (from, total) = match range.and_then(|range| range.split_once('/')) {
            Some((span, total)) => {
                let from = span.split('-').next().and_then(|from| from.parse().ok());
                (from.unwrap_or_default(), total.parse().ok())
            }
            None => (0, length),
        };
        let file = headers.get(UPLOAD_FILE).and_then(|value| value.to_str().ok()).unwrap_or_default().to_owned();
        Self { file, from, total }
    }
}

impl Uploads {
    pub async fn take(&self, request: Request<Incoming>) -> Answer {
        let answer = |code, text: &str| Answer { code, text: text.to_owned(), offset: None };
        if !self.lets_in(request.headers()) {
            return answer(StatusCode::UNAUTHORIZED, "the token is not the one of this upload\n");
        }
        request.extensions().get::<Guest>().map(|guest| guest.known("upload"));
        let part = Part::of(request.headers());
        let mut session = self.session.lock().await;
        // Whoever asks for his file has nothing more to say on an older connection.
        let offset = match session.as_mut() {
            Some(known) if known.waits_for(&part.file) => known.interrupt().await,
            _ => 0,
        };
        if request.method() == Method::HEAD {
            return Answer { offset: Some(offset), ..answer(StatusCode::OK, "") };
        }
        if part.from > 0 && part.from != offset {
            let text = format!("the upload goes on at {offset}, not at {}\n", part.from);
            return Answer { offset: Some(offset), ..answer(StatusCode::CONFLICT, &text) };
        }
        if part.from == 0 {
            if session.as_ref().is_some_and(Session::is_busy) {
                return answer(StatusCode::SERVICE_UNAVAILABLE, "an upload is under way\n");
            }
            if let Some(old) = session.take() {
                old.give_up().await;
            }
        }
        let current = session.get_or_insert_with(|| self.begin(&part));
        current.connect(request.into_body());
        let (mut end, mut outcome, mark) = (current.end.clone(), current.outcome.clone(), current.received.clone());
        drop(session);
        let ended = tokio::select! {
            // A bad image is refused before all of it came.
            _ = outcome.wait_for(Option::is_some) => End::Unwanted,
            end = end.wait_for(Option::is_some) => end.ok().and_then(|end| *end).unwrap_or(End::Broken),
        };
        self.conclude(ended, outcome, &mark).await
    }

    /// Whether a request has a token for this claim.
    fn lets_in(&self, headers: &HeaderMap) -> bool {
        let token = headers.get(AUTHORIZATION).and_then(|value| value.to_str().ok()?.strip_prefix("Bearer "));
        token.and_then(|token| judge(&self.key, token)).is_some_and(|claims| claims.uid == self.claim)
    }

    /// Starts an import that reads what connections bring.
    fn begin(&self, part: &Part) -> Session {
        let (sender, receiver) = mpsc::channel(QUEUE);
        let (tell, outcome) = watch::channel(None);
        let (place, board, total) = (self.place.clone(), self.board.clone(), part.total);
        tokio::task::spawn_blocking(move || {
            let source = Uploaded { stream: Mutex::new(Some(Chunks::new(receiver))), length: total };
            let done = fetch(&source, None, &place, place.options(), &board).inspect_err(|_| place.clean());
            tell.send_replace(Some(done.map_err(|error| chain(&error))));
        });
        Session {
            file: part.file.clone(),
            sender,
            received: Arc::default(),
            pump: tokio::spawn(async {}).abort_handle(),
            end: watch::channel(None).1,
            outcome,
        }
    }

    /// What is said on a connection that has nothing more to bring. `mark` tells its session from a later one.
    async fn conclude(&self, ended: End, mut outcome: watch::Receiver<Outcome>, mark: &Arc<AtomicU64>) -> Answer {
        let answer = |code, text: String| Answer { code, text, offset: None };
        let mut session = self.session.lock().await;
        let own = session.as_mut().filter(|session| Arc::ptr_eq(&session.received, mark));
        match (ended, own) {
            (End::Broken, own) => {
                let returns = own.is_none_or(|session| !session.file.is_empty());
                if !returns && let Some(left) = session.take() {
                    left.give_up().await;
                }
                let trouble = "the upload broke off; it waits for the client".to_owned();
                self.board.change(|progress| progress.trouble = trouble);
                return answer(StatusCode::SERVICE_UNAVAILABLE, "the upload broke off\n".to_owned());
            }
            // The reader sees the end when the last sender is gone.
            (End::Complete, Some(own)) => own.sender = mpsc::channel(1).0,
            _ => {}
        }
        drop(session);
        let result = outcome.wait_for(Option::is_some).await.ok().and_then(|outcome| outcome.clone());
        match result {
            Some(Ok(())) => {
                let finished = self.finished.clone();
                tokio::spawn(async move {
                    tokio::time::sleep(FAREWELL).await;
                    finished.send_replace(true);
                });
                answer(StatusCode::OK, String::new())
            }
            Some(Err(text)) => {
                let mut session = self.session.lock().await;
                session.take_if(|session| Arc::ptr_eq(&session.received, mark));
                self.board.change(|progress| progress.trouble = format!("the last upload failed: {text}"));
                answer(StatusCode::BAD_REQUEST, format!("{text}\n"))
            }
            None => answer(StatusCode::INTERNAL_SERVER_ERROR, "the import ended without a word\n".to_owned()),
        }
    }
}

/// A body that is read once.
struct Uploaded {
    stream: Mutex<Option<Chunks>>,
    length: Option<u64>,
}

impl Source for Uploaded {
    fn length(&self) -> Option<u64> {
        self.length
    }

    fn seekable(&self) -> bool {
        false
    }

    fn read_at(&self, _: u64, _: &mut [u8]) -> io::Result<()> {
        Err(io::ErrorKind::Unsupported.into())
    }

    fn stream(&self, _: u64) -> io::Result<Box<dyn Read + Send + '_>> {
        let stream = self.stream.lock().unwrap_or_else(std::sync::PoisonError::into_inner).take();
        stream.map(|stream| Box::new(stream) as Box<dyn Read + Send>).ok_or_else(|| io::ErrorKind::Unsupported.into())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_request_says_which_part_of_which_file_it_brings() {
        let part = |pairs: &[(&'static str, &str)]| {
            let mut headers = HeaderMap::new();
            headers.extend(pairs.iter().map(|(name, value)| (Some(name.parse().unwrap()), value.parse().unwrap())));
            let Part { file, from, total } = Part::of(&headers);
            (file, from, total)
        };
        assert_eq!(part(&[]), (String::new(), 0, None));
        assert_eq!(part(&[("content-length", "7")]), (String::new(), 0, Some(7)));
        let rest = [("content-length", "7"), ("content-range", "bytes 3-9/10"), (UPLOAD_FILE, "a")];
        assert_eq!(part(&rest), ("a".to_owned(), 3, Some(10)));
    }

    #[test]
    fn a_token_of_another_claim_fills_nothing_here() {
        let key = crate::token::Key::of(b"secret").unwrap();
        let place = Place { disk: "/nowhere".into(), directory: None, size: 0, cache: None, scratch: None };
        let uploads = Uploads {
            key: key.public(),
            claim: "u1".to_owned(),
            place: Arc::new(place),
            board: Arc::default(),
            finished: watch::channel(false).0,
            session: tokio::sync::Mutex::default(),
        };
        for (token, expected) in [
            (key.sign("a", "disk", "u1"), true),
            (key.sign("a", "disk", "u2"), false),
            (crate::token::Key::of(b"other").unwrap().sign("a", "disk", "u1"), false),
            (key.public(), false),
        ] {
            let headers: HeaderMap =
                [(AUTHORIZATION, format!("Bearer {token}").parse().unwrap())].into_iter().collect();
            assert_eq!(uploads.lets_in(&headers), expected, "{token}");
        }
        assert!(!uploads.lets_in(&HeaderMap::new()));
    }
}
