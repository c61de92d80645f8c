//! SPDY/3.1, as far as Kubernetes' clients speak it: streams that the client opens, data both ways, pings. There are no windows:
//! nobody keeps any, a slow stream holds up its connection.

use std::collections::HashMap;
use std::io;

use bytes::Bytes;
use tokio::io::{AsyncRead, AsyncReadExt, AsyncWrite, AsyncWriteExt};
use tokio::sync::mpsc;

use super::budget::Budget;
use super::header_block;

const VERSION: u16 = 3;
const SYN_STREAM: u16 = 1;
const SYN_REPLY: u16 = 2;
const RST_STREAM: u16 = 3;
const PING: u16 = 6;
const GOAWAY: u16 = 7;
const FIN: u8 = 1;
const REFUSED_STREAM: u32 = 3;

/// Of one frame. Clients cut what they send into 32 KiB.
const MOST_DATA: usize = 1 << 20;
const MOST_CONTROL: usize = 32 << 10;
/// Of one connection. A forwarded connection takes two.
const MOST_STREAMS: usize = 512;
/// Frames that wait in one place. Their bytes have a budget besides.
pub(super) const QUEUE: usize = 8;
/// What is kept of a stream's headers, and the longest value.
const KNOWN: [&str; 3] = ["streamtype", "port", "requestid"];
const LONGEST_VALUE: usize = 256;

#[derive(Debug, thiserror::Error)]
pub(super) enum SpdyError {
    #[error("the connection broke")]
    Io(#[from] io::Error),
    #[error("a frame is not of SPDY/3.1, or too long")]
    Frame,
    #[error("headers of a stream cannot be read")]
    Headers,
}

/// A stream that the client opened.
#[derive(Debug)]
pub(super) struct Stream {
    pub id: u32,
    /// Those that mean something here.
    pub headers: HashMap<String, String>,
    /// Ends when the client has said all.
    pub data: mpsc::Receiver<Bytes>,
}

/// Sends frames. The connection ends when all of these are gone and everything is sent.
#[derive(Debug, Clone)]
pub(super) struct Sender(mpsc::Sender<Vec<u8>>);

impl Sender {
    /// Fails when the client is gone.
    pub async fn data(&self, stream: u32, bytes: &[u8]) -> Result<(), Gone> {
        for part in bytes.chunks(MOST_DATA) {
            self.send(data_frame(stream, 0, part)).await?;
        }
        Ok(())
    }

    /// Says that nothing more comes on a stream.
    pub async fn finish(&self, stream: u32) -> Result<(), Gone> {
        self.send(data_frame(stream, FIN, &[])).await
    }

    /// Resolves when the client is gone.
    pub async fn closed(&self) {
        self.0.closed().await;
    }

    async fn send(&self, frame: Vec<u8>) -> Result<(), Gone> {
        self.0.send(frame).await.map_err(|_| Gone)
    }
}

/// Nobody is there any more.
#[derive(Debug, Clone, Copy)]
pub(super) struct Gone;

/// Speaks on `io` until the client ends it. New streams come out of the receiver.
pub(super) fn start(io: impl AsyncRead + AsyncWrite + Send + 'static) -> (Sender, mpsc::Receiver<Stream>) {
    let (reader, mut writer) = tokio::io::split(io);
    let (frames, mut queue) = mpsc::channel::<Vec<u8>>(QUEUE);
    let (accepted, streams) = mpsc::channel(QUEUE);
    let replies = frames.downgrade();
    let reading = tokio::spawn(async move {
        if let Err(error) = read(reader, &replies, &accepted).await {
            tracing::debug!(error = ferrovirt_api::chain(&error), "a stream of a client ended");
        }
    });
    tokio::spawn(async move {
        let abort = reading.abort_handle();
        let mut reading = reading;
        loop {
            let frame = tokio::select! {
                frame = queue.recv() => frame,
                // The client is gone: senders learn it from the queue that closes.
                _ = &mut reading => return,
            };
            let Some(frame) = frame else { break };
            if writer.write_all(&frame).await.is_err() {
                break;
            }
        }
        let _ = writer.shutdown().await;
        // It may have something to say still, and nobody listens for long.
        let _ = tokio::time::timeout(std::time::Duration::from_secs(2), reading).await;
        abort.abort();
    });
    (Sender(frames), streams)
}

async fn read(
    reader: impl AsyncRead,
    replies: &mpsc::WeakSender<Vec<u8>>,
    accepted: &mpsc::Sender<Stream>,
) -> Result<(), SpdyError> {
    let mut reader = std::pin::pin!(reader);
    let mut headers = header_block::Reader::new();
    let mut answers = header_block::Writer::default();
    let mut streams: HashMap<u32, mpsc::Sender<Bytes>> = HashMap::new();
    let budget = Budget::default();
    let reply = |frame: Vec<u8>| async {
        match replies.upgrade() {
            Some(replies) => replies.send(frame).await.map_err(|_| SpdyError::Io(io::ErrorKind::BrokenPipe.into())),
            None => Ok(()),
        }
    };
    loop {
        let mut head = [0; 8];
        match reader.read_exact(&mut head).await {
            Err(error) if error.kind() == io::ErrorKind::UnexpectedEof => return Ok(()),
            result => result?,
        };
        let head = Head::parse(head)?;
        // Grown while reading, so that a length alone does not make us allocate.
        let mut body = Vec::new();
        (&mut reader).take(head.length as u64).read_to_end(&mut body).await?;
        if body.len() < head.length {
            return Ok(());
        }
        match head.kind {
            Kind::Data { stream } => {
                if let Some(target) = streams.get(&stream).filter(|_| !body.is_empty()) {
                    let sent = tokio::select! {
                        held = budget.hold(body.into()) => target.send(held).await.is_ok(),
                        () = target.closed() => false,
                    };
                    if !sent {
                        streams.remove(&stream);
                    }
                }
                if head.flags & FIN != 0 {
                    streams.remove(&stream);
                }
            }
            Kind::Control(SYN_STREAM) => {
                let id = number(&body, 0)?;
                let block = body.get(10..).ok_or(SpdyError::Frame)?;
                // Read in any case: what comes after is compressed with it.
                let mut headers: HashMap<_, _> = headers.read(block)?.into_iter().collect();
                headers.retain(|name, value| KNOWN.contains(&name.as_str()) && value.len() <= LONGEST_VALUE);
                streams.retain(|_, target| !target.is_closed());
                if streams.len() >= MOST_STREAMS || streams.contains_key(&id) {
                    reply(control_frame(RST_STREAM, &[id.to_be_bytes(), REFUSED_STREAM.to_be_bytes()].concat()))
                        .await?;
                    continue;
                }
                let (target, data) = mpsc::channel(QUEUE);
                if head.flags & FIN == 0 {
                    streams.insert(id, target);
                }
                reply(control_frame(SYN_REPLY, &[&id.to_be_bytes()[..], &answers.empty()].concat())).await?;
                if accepted.send(Stream { id, headers, data }).await.is_err() {
                    return Ok(());
                }
            }
            Kind::Control(RST_STREAM) => drop(streams.remove(&number(&body, 0)?)),
            Kind::Control(PING) => reply(control_frame(PING, &number(&body, 0)?.to_be_bytes())).await?,
            Kind::Control(GOAWAY) => return Ok(()),
            // Settings, windows and further headers mean nothing here.
            Kind::Control(_) => {}
        }
    }
}

struct Head {
    kind: Kind,
    flags: u8,
    length: usize,
}

#[derive(Debug, PartialEq, Eq)]
enum Kind {
    Data { stream: u32 },
    Control(u16),
}

impl Head {
    fn parse(bytes: [u8; 8]) -> Result<Self, SpdyError> {
        let [a, b, c, d, flags, e, f, g] = bytes;
        let length = u32::from_be_bytes([0, e, f, g]) as usize;
        let (kind, most) = match a & 0x80 {
            0 => (Kind::Data { stream: u32::from_be_bytes([a, b, c, d]) }, MOST_DATA),
            _ if u16::from_be_bytes([a & 0x7f, b]) == VERSION => {
                (Kind::Control(u16::from_be_bytes([c, d])), MOST_CONTROL)
            }
            _ => return Err(SpdyError::Frame),
        };
        if length > most { Err(SpdyError::Frame) } else { Ok(Self { kind, flags, length }) }
    }
}

fn number(body: &[u8], at: usize) -> Result<u32, SpdyError> {
    let bytes = body.get(at..).and_then(|rest| rest.first_chunk::<4>()).ok_or(SpdyError::Frame)?;
    Ok(u32::from_be_bytes(*bytes) & 0x7fff_ffff)
}

fn data_frame(stream: u32, flags: u8, bytes: &[u8]) -> Vec<u8> {
    let mut out = Vec::with_capacity(bytes.len() + 8);
    out.extend_from_slice(&(stream & 0x7fff_ffff).to_be_bytes());
    frame(out, flags, bytes)
}

fn control_frame(kind: u16, bytes: &[u8]) -> Vec<u8> {
    let mut out = Vec::with_capacity(bytes.len() + 8);
    out.extend_from_slice(&(0x8000 | VERSION).to_be_bytes());
    out.extend_from_slice(&kind.to_be_bytes());
    frame(out, 0, bytes)
}

fn frame(mut out: Vec<u8>, flags: u8, bytes: &[u8]) -> Vec<u8> {
    let [_, a, b, c] = (bytes.len() as u32).to_be_bytes();
    out.extend_from_slice(&[flags, a, b, c]);
    out.extend_from_slice(bytes);
    out
}

#[cfg(test)]
pub(super) mod tests {
    use super::*;

    /// A client's frame that opens a stream. The first one of a connection carries the beginning of the compression.
    pub(crate) fn open(id: u32, headers: &[(&str, &str)], first: bool) -> Vec<u8> {
        let mut body = [id.to_be_bytes(), 0u32.to_be_bytes()].concat();
        body.extend_from_slice(&[0, 0]);
        let mut plain = (headers.len() as u32).to_be_bytes().to_vec();
        for text in headers.iter().flat_map(|(name, value)| [name, value]) {
            plain.extend_from_slice(&(text.len() as u32).to_be_bytes());
            plain.extend_from_slice(text.as_bytes());
        }
        if first {
            body.extend_from_slice(&[0x78, 0xbb, 0xe3, 0xc6, 0xa7, 0xc2]);
        }
        let length = plain.len() as u16;
        body.push(0);
        body.extend_from_slice(&length.to_le_bytes());
        body.extend_from_slice(&(!length).to_le_bytes());
        body.extend_from_slice(&plain);
        body.extend_from_slice(&[0, 0, 0, 0xff, 0xff]);
        control_frame(SYN_STREAM, &body)
    }

    pub(crate) fn say(stream: u32, bytes: &[u8], last: bool) -> Vec<u8> {
        data_frame(stream, u8::from(last), bytes)
    }

    /// The next frame of data: its stream, its bytes and whether it is the last one. Other frames are passed over.
    pub(crate) async fn hear(io: &mut (impl AsyncRead + Unpin)) -> Option<(u32, Vec<u8>, bool)> {
        loop {
            let mut head = [0; 8];
            io.read_exact(&mut head).await.ok()?;
            let head = Head::parse(head).unwrap();
            let mut body = vec![0; head.length];
            io.read_exact(&mut body).await.ok()?;
            if let Kind::Data { stream } = head.kind {
                return Some((stream, body, head.flags & FIN != 0));
            }
        }
    }

    #[tokio::test]
    async fn streams_are_opened_and_data_goes_both_ways() {
        let (mut client, server) = tokio::io::duplex(1 << 16);
        let (sender, mut streams) = start(server);
        client.write_all(&open(1, &[("streamType", "stdin")], true)).await.unwrap();
        client.write_all(&open(3, &[("streamType", "error")], false)).await.unwrap();
        client.write_all(&say(1, b"hello", false)).await.unwrap();
        client.write_all(&say(1, b"", true)).await.unwrap();
        // Of a stream that is not there.
        client.write_all(&say(9, b"lost", false)).await.unwrap();
        client.write_all(&control_frame(PING, &7u32.to_be_bytes())).await.unwrap();
        let mut stdin = streams.recv().await.unwrap();
        assert_eq!((stdin.id, stdin.headers["streamtype"].as_str()), (1, "stdin"));
        assert_eq!(streams.recv().await.unwrap().headers["streamtype"], "error");
        assert_eq!(stdin.data.recv().await.unwrap(), "hello");
        assert_eq!(stdin.data.recv().await, None);
        sender.data(3, b"Success").await.unwrap();
        sender.finish(3).await.unwrap();
        assert_eq!(hear(&mut client).await, Some((3, b"Success".to_vec(), false)));
        assert_eq!(hear(&mut client).await, Some((3, vec![], true)));
        drop(sender);
        assert_eq!(hear(&mut client).await, None, "the connection goes on");
    }

    #[tokio::test]
    async fn whoever_is_gone_is_noticed() {
        let (client, server) = tokio::io::duplex(1 << 10);
        let (sender, mut streams) = start(server);
        drop(client);
        assert!(streams.recv().await.is_none());
        sender.closed().await;
        assert!(sender.data(1, b"x").await.is_err());
    }

    #[tokio::test]
    async fn streams_that_nobody_reads_keep_little_of_what_they_are_sent() {
        use std::sync::Arc;
        use std::sync::atomic::{AtomicUsize, Ordering::SeqCst};

        let (mut client, server) = tokio::io::duplex(1 << 16);
        let (_sender, mut streams) = start(server);
        let mut held = vec![];
        let long = "x".repeat(4000);
        for number in 0..64 {
            let headers = [("port", "80"), ("other", long.as_str())];
            client.write_all(&open(2 * number + 1, &headers, number == 0)).await.unwrap();
            held.push(streams.recv().await.unwrap());
        }
        assert!(held.iter().all(|stream| stream.headers.len() == 1), "headers that mean nothing are kept");
        let taken = Arc::new(AtomicUsize::new(0));
        let (count, ids) = (taken.clone(), held.iter().map(|stream| stream.id).collect::<Vec<_>>());
        tokio::spawn(async move {
            for stream in ids.repeat(4) {
                client.write_all(&say(stream, &vec![b'x'; MOST_DATA], false)).await.unwrap();
                count.fetch_add(1, SeqCst);
            }
        });
        // All are on this thread: what has not moved after so many turns does not move.
        let (mut last, mut still) = (0, 0);
        while still < 1000 {
            tokio::task::yield_now().await;
            let now = taken.load(SeqCst);
            still = if now == last { still + 1 } else { 0 };
            last = now;
        }
        assert!((1..=4).contains(&last), "{last} MiB wait");
        // It goes on when somebody reads.
        assert_eq!(held[0].data.recv().await.unwrap().len(), MOST_DATA);
        assert_eq!(held[1].data.recv().await.unwrap().len(), MOST_DATA);
    }

    #[tokio::test]
    async fn bad_frames_end_the_connection_and_too_many_streams_are_refused() {
        for bad in [
            // Of another version, or of no protocol at all.
            vec![0x80, 2, 0, 1, 0, 0, 0, 0],
            b"GET / HTTP/1.1\r\n".to_vec(),
            // Too long, data and control.
            vec![0, 0, 0, 1, 0, 0x20, 0, 0],
            vec![0x80, 3, 0, 1, 0, 1, 0, 0],
            // Too short for what it is.
            vec![0x80, 3, 0, 1, 0, 0, 0, 2, 0, 0],
        ] {
            let (mut client, server) = tokio::io::duplex(1 << 16);
            let (_sender, mut streams) = start(server);
            client.write_all(&bad).await.unwrap();
            assert!(streams.recv().await.is_none(), "{bad:?}");
        }
        let (mut client, server) = tokio::io::duplex(1 << 20);
        let (_sender, mut streams) = start(server);
        let mut held = vec![];
        for number in 0..=MOST_STREAMS as u32 {
            client.write_all(&open(2 * number + 1, &[], number == 0)).await.unwrap();
            if number < MOST_STREAMS as u32 {
                held.push(streams.recv().await.unwrap());
            }
        }
        client.write_all(&control_frame(GOAWAY, &[0; 8])).await.unwrap();
        assert!(streams.recv().await.is_none());
        assert_eq!(held.len(), MOST_STREAMS);
    }
}
