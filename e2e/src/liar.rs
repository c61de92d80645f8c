//! A web server that announces another length than it has, which no real one can be made to do.

use std::{
    io::{self, BufRead, BufReader, Write},
    net::{TcpListener, TcpStream},
    sync::{
        Arc,
        atomic::{AtomicBool, Ordering},
    },
    thread::{self, JoinHandle},
};

use anyhow::Result;

pub struct Liar {
    pub port: u16,
    stop: Arc<AtomicBool>,
    thread: Option<JoinHandle<()>>,
}

impl Liar {
    /// Announces `claimed` bytes, whatever the content is.
    pub fn start(content: Vec<u8>, claimed: usize) -> Result<Self> {
        let listener = TcpListener::bind(("0.0.0.0", 0))?;
        let port = listener.local_addr()?.port();
        let stop = Arc::new(AtomicBool::new(false));
        let stopped = stop.clone();
        let thread = thread::spawn(move || {
            for stream in listener.incoming().flatten() {
                if stopped.load(Ordering::Relaxed) {
                    return;
                }
                // Whoever hangs up early is served no more; that is all.
                let _ = lie(stream, &content, claimed);
            }
        });
        Ok(Self { port, stop, thread: Some(thread) })
    }
}

/// Answers one request as if the content had another length, then hangs up.
fn lie(mut stream: TcpStream, content: &[u8], claimed: usize) -> io::Result<()> {
    let mut range = None;
    for line in BufReader::new(stream.try_clone()?).lines() {
        let line = line?.to_lowercase();
        if let Some((from, until)) = line.strip_prefix("range: bytes=").and_then(|range| range.split_once('-')) {
            range = Some((from.parse().unwrap_or(0), until.parse().unwrap_or(claimed - 1).min(claimed - 1)));
        }
        if line.is_empty() {
            break;
        }
    }
    let head = match range {
        Some((from, until)) => format!("206 Partial Content\r\nContent-Range: bytes {from}-{until}/{claimed}"),
        None => "200 OK".to_owned(),
    };
    let (from, until): (usize, usize) = range.unwrap_or((0, claimed - 1));
    let length = (until + 1).saturating_sub(from);
    write!(stream, "HTTP/1.1 {head}\r\nETag: \"one\"\r\nContent-Length: {length}\r\nConnection: close\r\n\r\n")?;
    stream.write_all(content.get(from..content.len().min(until + 1)).unwrap_or_default())
}

impl Drop for Liar {
    fn drop(&mut self) {
        self.stop.store(true, Ordering::Relaxed);
        let _ = TcpStream::connect(("127.0.0.1", self.port));
        let _ = self.thread.take().map(JoinHandle::join);
    }
}
