//! Serial consoles: one connection per guest, kept once somebody asked for it, and whoever came last has it.
//!
//! ```text
//!   guest's socket <---> line (keeps the last lines) <---> the one client
//!                                                    <-x-  the client before: told, and let go
//! ```
//!
//! A serial port takes one connection; a second one would hang in the socket's queue without a word. The line reads on after
//! its client left, so the next one can be shown what happened meanwhile. A slow client holds the guest back, never the others.

use std::{
    collections::{HashMap, VecDeque},
    io,
    pin::Pin,
    sync::{Arc, Mutex, PoisonError},
    time::Duration,
};

use bytes::{Buf, BytesMut};
use tokio::{
    io::{AsyncReadExt, AsyncWriteExt, DuplexStream, ReadHalf, WriteHalf},
    net::{
        UnixStream,
        unix::{OwnedReadHalf, OwnedWriteHalf},
    },
    sync::{mpsc, oneshot},
    time::{Instant, Sleep},
};

use crate::session::{Session, Taken};

/// A few screens.
const HISTORY: usize = 16 << 10;
const CHUNK: usize = 64 << 10;
/// What waits for more to go with it waits this long, or until it is this much.
const TOGETHER: Duration = Duration::from_millis(2);
const A_LOT: usize = 4 << 10;
const FAREWELL: &[u8] = b"\r\n[another client has taken over this console]\r\n";
/// How long a client that was replaced may take to hear it.
const FAREWELL_TIMEOUT: Duration = Duration::from_secs(2);

/// The lines that somebody has asked for, by the instance's uid.
#[derive(Clone, Default)]
pub(crate) struct Consoles(Arc<Mutex<HashMap<String, Line>>>);

/// Locked while it is being connected, so that a guest never gets two connections.
type Line = Arc<tokio::sync::Mutex<Option<mpsc::Sender<Newcomer>>>>;

struct Newcomer {
    replay: bool,
    answer: oneshot::Sender<Console>,
}

pub(crate) type Console = Session<DuplexStream>;

impl Consoles {
    /// The console of an instance, taken from whoever has it. With `replay` it begins with what was written last.
    pub(crate) async fn open<F>(&self, uid: &str, replay: bool, connect: F) -> io::Result<Console>
    where
        F: Future<Output = io::Result<UnixStream>>,
    {
        let line = self.lines().entry(uid.to_owned()).or_default().clone();
        let mut sender = line.lock().await;
        if let Some(known) = &*sender
            && let Some(stream) = ask(known, replay).await
        {
            return Ok(stream);
        }
        let guest = match connect.await {
            Ok(guest) => guest,
            Err(error) => {
                self.forget(uid, &line);
                return Err(error);
            }
        };
        let (newcomers, queue) = mpsc::channel(1);
        let (consoles, own_uid, own) = (self.clone(), uid.to_owned(), line.clone());
        tokio::spawn(async move {
            serve(guest, queue).await;
            consoles.forget(&own_uid, &own);
        });
        let stream = ask(&newcomers, replay).await;
        *sender = Some(newcomers);
        stream.ok_or_else(|| io::ErrorKind::UnexpectedEof.into())
    }

    fn lines(&self) -> std::sync::MutexGuard<'_, HashMap<String, Line>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Only this very line: another may have begun since.
    fn forget(&self, uid: &str, line: &Line) {
        let mut lines = self.lines();
        if lines.get(uid).is_some_and(|known| Arc::ptr_eq(known, line)) {
            lines.remove(uid);
        }
    }
}

/// `None` if the line has ended.
async fn ask(line: &mpsc::Sender<Newcomer>, replay: bool) -> Option<Console> {
    let (answer, stream) = oneshot::channel();
    line.send(Newcomer { replay, answer }).await.ok()?;
    stream.await.ok()
}

/// What the guest wrote last.
#[derive(Default)]
struct History {
    bytes: VecDeque<u8>,
    cut: bool,
}

impl History {
    fn add(&mut self, new: &[u8]) {
        let new = new.get(new.len().saturating_sub(HISTORY)..).unwrap_or_default();
        let surplus = (self.bytes.len() + new.len()).saturating_sub(HISTORY);
        self.cut |= surplus > 0;
        self.bytes.drain(..surplus);
        self.bytes.extend(new);
    }

    /// From the beginning of a line, unless it is all one line.
    fn whole_lines(&self) -> BytesMut {
        let begin = match self.cut {
            true => self.bytes.iter().position(|byte| *byte == b'\n').map_or(0, |position| position + 1),
            false => 0,
        };
        self.bytes.range(begin..).copied().collect()
    }
}

/// The one client. Either half goes when it is of no more use.
#[derive(Default)]
struct Client {
    reader: Option<ReadHalf<DuplexStream>>,
    writer: Option<WriteHalf<DuplexStream>>,
    taken: Taken,
}

impl Client {
    fn new(stream: DuplexStream, taken: Taken) -> Self {
        let (reader, writer) = tokio::io::split(stream);
        Self { reader: Some(reader), writer: Some(writer), taken }
    }

    /// Gives it the rest of what the guest wrote, in its own time.
    fn finish(self, rest: BytesMut) {
        let Some(mut writer) = self.writer else { return };
        tokio::spawn(async move {
            let _ = writer.write_all(&rest).await;
            drop(self.reader);
        });
    }

    /// In its own time: it may be a slow one.
    fn dismiss(self) {
        self.taken.set();
        let Some(mut writer) = self.writer else { return };
        tokio::spawn(async move {
            let _ = tokio::time::timeout(FAREWELL_TIMEOUT, writer.write_all(FAREWELL)).await;
            drop(self.reader);
        });
    }
}

/// What the guest wrote and the client has not got yet.
///
/// An emulated serial port writes byte by byte. Each of them would cost a frame, a record and several wake-ups on the way to
/// the client, all taken from the guest. So the first goes at once, and those that follow shortly after go together.
struct Outbox {
    bytes: BytesMut,
    /// When the next may go, unless there is a lot.
    due: Pin<Box<Sleep>>,
}

impl Outbox {
    fn new() -> Self {
        Self { bytes: BytesMut::new(), due: Box::pin(tokio::time::sleep(Duration::ZERO)) }
    }

    fn has_room(&self) -> bool {
        self.bytes.len() < CHUNK
    }

    /// Hands some of it to the client when it is time. False when the client takes no more.
    async fn send(&mut self, client: &mut WriteHalf<DuplexStream>) -> bool {
        if self.bytes.is_empty() {
            return std::future::pending().await;
        }
        if self.bytes.len() < A_LOT {
            self.due.as_mut().await;
        }
        let Ok(length @ 1..) = client.write(&self.bytes).await else { return false };
        self.bytes.advance(length);
        self.due.as_mut().reset(Instant::now() + TOGETHER);
        true
    }
}

/// Runs until the guest's socket ends.
async fn serve(guest: UnixStream, mut newcomers: mpsc::Receiver<Newcomer>) {
    let (mut from_guest, mut to_guest) = guest.into_split();
    let mut history = History::default();
    let mut client = Client::default();
    let mut outbox = Outbox::new();
    let mut typed = BytesMut::new();
    loop {
        tokio::select! {
            newcomer = newcomers.recv() => {
                let Some(Newcomer { replay, answer }) = newcomer else { return };
                let (ours, theirs) = tokio::io::duplex(CHUNK);
                let taken = Taken::default();
                if answer.send(Session::new(theirs, taken.clone())).is_ok() {
                    std::mem::replace(&mut client, Client::new(ours, taken)).dismiss();
                    outbox.bytes = if replay { history.whole_lines() } else { BytesMut::new() };
                }
            }
            event = outward(&mut from_guest, &mut client.writer, &mut outbox) => match event {
                Outward::Read(length) => {
                    history.add(outbox.bytes.get(outbox.bytes.len() - length..).unwrap_or_default());
                    if client.writer.is_none() {
                        outbox.bytes.clear();
                    }
                }
                Outward::Sent => {}
                Outward::Gone => {
                    client.writer = None;
                    outbox.bytes.clear();
                }
                Outward::End => return client.finish(outbox.bytes),
            },
            open = inward(&mut client.reader, &mut to_guest, &mut typed) => if !open {
                return client.finish(outbox.bytes);
            },
        }
    }
}

/// What one step from guest to client did.
enum Outward {
    Read(usize),
    Sent,
    /// The client takes no more.
    Gone,
    /// The guest writes no more.
    End,
}

/// Reads more, or sends on what was read. Nothing is lost when this is given up half-way.
async fn outward(
    from_guest: &mut OwnedReadHalf,
    writer: &mut Option<WriteHalf<DuplexStream>>,
    outbox: &mut Outbox,
) -> Outward {
    loop {
        let room = outbox.has_room();
        let ready = match writer {
            Some(client) => tokio::select! {
                biased;
                ready = from_guest.readable(), if room => ready,
                sent = outbox.send(client) => return if sent { Outward::Sent } else { Outward::Gone },
            },
            None => from_guest.readable().await,
        };
        outbox.bytes.reserve(CHUNK.saturating_sub(outbox.bytes.len()));
        match ready.and_then(|()| from_guest.try_read_buf(&mut outbox.bytes)) {
            Ok(0) => return Outward::End,
            Ok(length) => return Outward::Read(length),
            Err(error) if error.kind() == io::ErrorKind::WouldBlock => {}
            Err(_) => return Outward::End,
        }
    }
}

/// Hands on what was typed, or waits for more. False when the guest takes no more.
async fn inward(
    reader: &mut Option<ReadHalf<DuplexStream>>,
    to_guest: &mut OwnedWriteHalf,
    typed: &mut BytesMut,
) -> bool {
    if !typed.is_empty() {
        return match to_guest.write(typed).await {
            Ok(length @ 1..) => {
                typed.advance(length);
                true
            }
            _ => false,
        };
    }
    match reader {
        // A client that types no more may still listen.
        Some(client) => {
            if !matches!(client.read_buf(typed).await, Ok(1..)) {
                *reader = None;
            }
        }
        None => std::future::pending().await,
    }
    true
}

#[cfg(test)]
mod tests {
    use super::*;

    async fn read(stream: &mut Console, wanted: &str) {
        let mut bytes = vec![0; wanted.len()];
        stream.read_exact(&mut bytes).await.unwrap();
        assert_eq!(String::from_utf8(bytes).unwrap(), wanted);
    }

    /// The console's side and the guest's side of a serial port.
    fn port() -> (UnixStream, UnixStream) {
        UnixStream::pair().unwrap()
    }

    async fn unreachable() -> io::Result<UnixStream> {
        panic!("a second connection to one guest")
    }

    #[tokio::test]
    async fn the_last_to_come_has_it_and_the_one_before_is_told() {
        let consoles = Consoles::default();
        let (ours, mut guest) = port();
        let mut first = consoles.open("u", false, async { Ok(ours) }).await.unwrap();
        guest.write_all(b"login: ").await.unwrap();
        read(&mut first, "login: ").await;
        let mut second = consoles.open("u", true, unreachable()).await.unwrap();
        read(&mut second, "login: ").await;
        let mut farewell = vec![];
        let end = first.read_to_end(&mut farewell).await.unwrap_err();
        assert_eq!((&farewell[..], end.kind()), (FAREWELL, io::ErrorKind::ConnectionAborted));
        assert!(first.write_all(b"x").await.is_err(), "who was told to go can still type");
        second.write_all(b"root\n").await.unwrap();
        let mut typed = [0; 5];
        guest.read_exact(&mut typed).await.unwrap();
        assert_eq!(&typed, b"root\n");
    }

    #[tokio::test]
    async fn what_nobody_saw_is_kept_for_who_asks() {
        let consoles = Consoles::default();
        let (ours, mut guest) = port();
        drop(consoles.open("u", false, async { Ok(ours) }).await.unwrap());
        guest.write_all(b"panic\r\n").await.unwrap();
        // Far more than the line and the socket hold: somebody reads although nobody listens.
        for _ in 0..64 {
            guest.write_all(&[b'.'; CHUNK]).await.unwrap();
        }
        guest.write_all(b"\r\nlast\r\n").await.unwrap();
        let marked = async {
            loop {
                let mut replay = consoles.open("u", true, unreachable()).await.unwrap();
                let mut text = vec![0; 6];
                if replay.read_exact(&mut text).await.is_ok() && text == b"last\r\n" {
                    return replay;
                }
            }
        };
        let mut replay = tokio::time::timeout(Duration::from_secs(60), marked).await.unwrap();
        guest.write_all(b"now").await.unwrap();
        read(&mut replay, "now").await;
    }

    #[tokio::test]
    async fn a_client_that_reads_nothing_is_replaced_all_the_same() {
        let consoles = Consoles::default();
        let (ours, guest) = port();
        let _slow = consoles.open("u", false, async { Ok(ours) }).await.unwrap();
        let (mut from_client, mut to_client) = guest.into_split();
        // Held back by the slow client, until there is another.
        let flood = tokio::spawn(async move {
            for _ in 0..32 {
                to_client.write_all(&[b'.'; CHUNK]).await.unwrap();
            }
            to_client
        });
        let mut quick = consoles.open("u", false, unreachable()).await.unwrap();
        quick.write_all(b"stop").await.unwrap();
        let mut typed = [0; 4];
        from_client.read_exact(&mut typed).await.unwrap();
        let drain = async {
            let mut buffer = vec![0; CHUNK];
            while quick.read(&mut buffer).await.is_ok_and(|length| length > 0) {}
        };
        tokio::select! {
            () = drain => panic!("the console ended"),
            done = flood => drop(done.unwrap()),
        }
    }

    #[tokio::test]
    async fn a_line_ends_with_its_guest_and_leaves_nothing() {
        let consoles = Consoles::default();
        let (ours, guest) = port();
        let mut client = consoles.open("u", false, async { Ok(ours) }).await.unwrap();
        drop(guest);
        assert_eq!(client.read(&mut [0; 8]).await.unwrap(), 0);
        let gone = async {
            while !consoles.lines().is_empty() {
                tokio::task::yield_now().await;
            }
        };
        tokio::time::timeout(Duration::from_secs(60), gone).await.unwrap();
        let refused = consoles.open("u", false, async { Err(io::ErrorKind::NotFound.into()) }).await;
        assert_eq!(refused.err().map(|error| error.kind()), Some(io::ErrorKind::NotFound));
        assert!(consoles.lines().is_empty());
    }

    #[test]
    fn history_begins_with_a_line() {
        let mut history = History::default();
        history.add(b"one\ntwo");
        assert_eq!(&history.whole_lines()[..], b"one\ntwo");
        history.add(&[b'x'; HISTORY - 5]);
        assert_eq!(history.bytes.len(), HISTORY);
        assert_eq!(history.whole_lines().len(), HISTORY - 2, "a cut line is left out");
        history.add(&[b'y'; 2 * HISTORY]);
        assert_eq!(history.whole_lines().len(), HISTORY);
    }
}
