//! What a guest is told of its host: a few counters of the node and of the machine itself, in vhostmd's form, on a disk that is
//! written anew every few seconds or on a channel where the guest asks for them.
//!
//! A container sees the node's own `/proc`, so they are read here, with no more rights than the machine's.

mod disk;
mod report;

use std::path::Path;
use std::time::Duration;

use ferrovirt_machine::protocol::{Answer, GuestCall};
use ferrovirt_machine::spec::HostMetrics;
use serde_json::Value;
use tokio::io::{AsyncBufReadExt, AsyncReadExt, AsyncWriteExt, BufReader};
use tokio::net::UnixStream;

use crate::domain::Backend;

pub(crate) use disk::create;

/// As upstream.
const DISK_EVERY: Duration = Duration::from_secs(5);
/// Between two tries to reach the channel, and between two answers on it: a guest cannot keep us busy.
const PAUSE: Duration = Duration::from_secs(1);
/// More than any request has.
const LONGEST_LINE: u64 = 1024;
const REQUEST: &str = "GET /metrics/XML";
const INVALID: &str = "INVALID REQUEST\n\n";

/// Tells the guest for as long as this process lives.
pub(crate) fn start<B: Backend>(backend: B, told: HostMetrics) {
    if let Some(path) = told.disk.clone() {
        let (backend, told) = (backend.clone(), told.clone());
        tokio::spawn(async move {
            loop {
                let text = report(&backend, &told).await;
                if let Err(error) = disk::write(Path::new(&path), &text) {
                    tracing::warn!(%error, path, "cannot write the metrics of the host");
                }
                tokio::time::sleep(DISK_EVERY).await;
            }
        });
    }
    if let Some(path) = told.channel.clone() {
        tokio::spawn(async move {
            loop {
                if let Ok(stream) = UnixStream::connect(&path).await {
                    serve(stream, || report(&backend, &told)).await;
                }
                tokio::time::sleep(PAUSE).await;
            }
        });
    }
}

async fn report<B: Backend>(backend: &B, told: &HostMetrics) -> String {
    let counters = match backend.guest(GuestCall::Stats {}).await {
        Ok(Answer::Stats { counters }) => Some(Value::Object(counters)),
        _ => None,
    };
    report::text(&told.host_name, &told.product, counters.as_ref(), &report::Host::read(Path::new("/")))
}

/// Answers one request after the other until the hypervisor hangs up.
async fn serve<F: Future<Output = String>>(stream: UnixStream, report: impl Fn() -> F) {
    let (reader, mut writer) = stream.into_split();
    let mut reader = BufReader::new(reader);
    loop {
        let (Ok(Some(request)), Ok(Some(blank))) = (line(&mut reader).await, line(&mut reader).await) else { return };
        let answer = match request == REQUEST && blank.is_empty() {
            true => format!("{}\n\n", report().await),
            false => INVALID.to_owned(),
        };
        if writer.write_all(answer.as_bytes()).await.is_err() {
            return;
        }
        tokio::time::sleep(PAUSE).await;
    }
}

/// One line without its end; `None` at the end of the stream.
async fn line(reader: &mut (impl AsyncBufReadExt + Unpin)) -> std::io::Result<Option<String>> {
    let mut bytes = Vec::new();
    let read = reader.take(LONGEST_LINE).read_until(b'\n', &mut bytes).await?;
    Ok((read > 0).then(|| String::from_utf8_lossy(&bytes).trim_end().to_owned()))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test(start_paused = true)]
    async fn a_guest_asks_and_is_answered_one_at_a_time() {
        let (ours, mut guest) = UnixStream::pair().unwrap();
        let server = tokio::spawn(serve(ours, || async { "<metrics/>".to_owned() }));
        let mut ask = async |request: &str, expected: &str| {
            guest.write_all(request.as_bytes()).await.unwrap();
            let mut answer = vec![0; expected.len()];
            guest.read_exact(&mut answer).await.unwrap();
            assert_eq!(String::from_utf8(answer).unwrap(), expected, "{request:?}");
        };
        ask("GET /metrics/XML\n\n", "<metrics/>\n\n").await;
        ask("GET /secrets\n\n", INVALID).await;
        ask("GET /metrics/XML\nmore\n", INVALID).await;
        ask("GET /metrics/XML\r\n\r\n", "<metrics/>\n\n").await;
        drop(guest);
        server.await.unwrap();
    }
}
