//! One watch on a connection of its own, with as little of HTTP/2 as that takes.
//!
//! The watchers share two processors with the server that is measured. A whole client library wakes two tasks for every event
//! and takes as long over it as the server does; this reads, notes the time, and goes on. What was read is looked at afterwards.

use std::time::Duration;

use anyhow::{Context, Result, bail, ensure};
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::time::Instant;

use crate::http::{Access, Tls};

const PREFACE: &[u8] = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n";
const DATA: u8 = 0;
const HEADERS: u8 = 1;
const RST_STREAM: u8 = 3;
const SETTINGS: u8 = 4;
const PING: u8 = 6;
const GOAWAY: u8 = 7;
const WINDOW_UPDATE: u8 = 8;
const ACK: u8 = 1;
const END_OF_STREAM_AND_HEADERS: u8 = 5;
/// Of a frame: three bytes of length, type, flags, four of the stream.
const HEAD: usize = 9;
/// The only stream.
const STREAM: u32 = 1;
/// So that no window is ever to be opened again.
const WINDOW: u32 = 0x7fff_ffff;
const FIRST_WINDOW: u32 = 65_535;
/// `:status: 200` in the table that every connection begins with.
const STATUS_OK: u8 = 0x88;

/// What came, piece by piece, and when.
pub type Heard = Vec<(Duration, Vec<u8>)>;

pub struct Watcher {
    tls: Tls,
    /// Bytes that are not a whole frame yet.
    rest: Vec<u8>,
    heard: Heard,
    /// Events that have ended: each is one line.
    pub ends: usize,
}

impl Watcher {
    /// Asks for the watch, and has the server's yes.
    pub async fn open(access: &Access, path: &str) -> Result<Self> {
        let mut watcher = Self { tls: access.connect().await?, rest: Vec::new(), heard: Vec::new(), ends: 0 };
        let mut hello = PREFACE.to_vec();
        // SETTINGS_INITIAL_WINDOW_SIZE
        let settings: Vec<u8> = [0, 4].into_iter().chain(WINDOW.to_be_bytes()).collect();
        frame(&mut hello, SETTINGS, 0, 0, &settings);
        frame(&mut hello, WINDOW_UPDATE, 0, 0, &(WINDOW - FIRST_WINDOW).to_be_bytes());
        frame(&mut hello, HEADERS, END_OF_STREAM_AND_HEADERS, STREAM, &request(&access.address, path));
        watcher.tls.write_all(&hello).await?;
        watcher.tls.flush().await?;
        let origin = Instant::now();
        while !watcher.read(origin).await? {}
        Ok(watcher)
    }

    /// Until so many events were heard.
    pub async fn listen(mut self, origin: Instant, events: usize) -> Result<Heard> {
        while self.ends < events {
            self.read(origin).await?;
        }
        Ok(self.heard)
    }

    /// Reads once. True if the answer's headers were among it.
    async fn read(&mut self, origin: Instant) -> Result<bool> {
        self.rest.reserve(16 << 10);
        ensure!(self.tls.read_buf(&mut self.rest).await? > 0, "a watch ended");
        let now = origin.elapsed();
        let (mut at, mut answers, mut begun) = (0, Vec::new(), false);
        while let Some((kind, flags, payload)) = next_frame(&self.rest[at..]) {
            at += HEAD + payload.len();
            match kind {
                DATA => {
                    self.ends += usize::from(payload.ends_with(b"\n"));
                    self.heard.push((now, payload.to_vec()));
                }
                HEADERS => {
                    // Before it a server may change the size of its table.
                    let status = payload.iter().find(|byte| **byte & 0xe0 != 0x20);
                    ensure!(status == Some(&STATUS_OK), "the watch was refused");
                    begun = true;
                }
                SETTINGS if flags & ACK == 0 => frame(&mut answers, SETTINGS, ACK, 0, &[]),
                PING if flags & ACK == 0 => frame(&mut answers, PING, ACK, 0, payload),
                RST_STREAM | GOAWAY => bail!("the server ended a watch"),
                _ => {}
            }
        }
        self.rest.drain(..at);
        if !answers.is_empty() {
            self.tls.write_all(&answers).await.context("answering the server")?;
            self.tls.flush().await?;
        }
        Ok(begun)
    }
}

/// The first frame, if all of it is there: type, flags, payload.
fn next_frame(bytes: &[u8]) -> Option<(u8, u8, &[u8])> {
    let [a, b, c, kind, flags, ..] = *bytes else { return None };
    let length = u32::from_be_bytes([0, a, b, c]) as usize;
    Some((kind, flags, bytes.get(HEAD..HEAD + length)?))
}

fn frame(out: &mut Vec<u8>, kind: u8, flags: u8, stream: u32, payload: &[u8]) {
    // Nothing that is sent here comes near the limit.
    let [_, a, b, c] = u32::try_from(payload.len()).unwrap_or(0).to_be_bytes();
    out.extend([a, b, c, kind, flags]);
    out.extend(stream.to_be_bytes());
    out.extend(payload);
}

/// The headers of a GET: names by their number in the table, values as they are.
fn request(authority: &str, path: &str) -> Vec<u8> {
    // :method GET, :scheme https
    let mut out = vec![0x82, 0x87];
    // :authority, :path, accept, user-agent
    for (name, value) in [(1, authority), (4, path), (19, "application/json"), (58, "bench-api")] {
        number(&mut out, 15, name);
        number(&mut out, 127, value.len());
        out.extend(value.as_bytes());
    }
    out
}

/// A number behind a prefix whose bits are all set if it does not fit there.
fn number(out: &mut Vec<u8>, prefix: u8, value: usize) {
    match u8::try_from(value).ok().filter(|value| *value < prefix) {
        Some(value) => out.push(value),
        None => {
            out.push(prefix);
            let mut rest = value - usize::from(prefix);
            while rest >= 0x80 {
                out.push((rest & 0x7f) as u8 | 0x80);
                rest >>= 7;
            }
            out.push((rest & 0x7f) as u8);
        }
    }
}
