//! A program's streams over SPDY: the client opens one for each, and says in a header what it is for.

use std::time::Duration;

use bytes::Bytes;
use tokio::sync::mpsc;

use super::session::{Output, Outside, Size, Wanted};
use super::spdy::{Sender, Stream};

/// How long a client may take to open its streams.
const OPENING: Duration = Duration::from_secs(30);
/// Of one size of a terminal, as text. Less than the shortest is none, and costs nobody the trouble to read it.
const SHORTEST_SIZE: usize = br#"{"Width":0,"Height":0}"#.len();
const LONGEST_SIZE: usize = 1024;

#[derive(Default)]
struct Streams {
    error: Option<Stream>,
    stdin: Option<Stream>,
    stdout: Option<Stream>,
    stderr: Option<Stream>,
    resize: Option<Stream>,
}

impl Streams {
    fn complete(&self, wanted: Wanted) -> bool {
        self.error.is_some()
            && (self.stdin.is_some() || !wanted.stdin)
            && (self.stdout.is_some() || !wanted.stdout)
            && (self.stderr.is_some() || !wanted.stderr || wanted.tty)
            && (self.resize.is_some() || !wanted.tty)
    }

    async fn open(incoming: &mut mpsc::Receiver<Stream>, wanted: Wanted) -> Option<Self> {
        let mut streams = Self::default();
        while !streams.complete(wanted) {
            let stream = incoming.recv().await?;
            let slot = match stream.headers.get("streamtype").map(String::as_str) {
                Some("error") => &mut streams.error,
                Some("stdin") => &mut streams.stdin,
                Some("stdout") => &mut streams.stdout,
                Some("stderr") => &mut streams.stderr,
                Some("resize") => &mut streams.resize,
                _ => return None,
            };
            *slot = Some(stream);
        }
        Some(streams)
    }
}

/// Joins a client with a program until either ends.
pub(super) async fn join(sender: Sender, mut incoming: mpsc::Receiver<Stream>, wanted: Wanted, outside: Outside) {
    let Ok(Some(streams)) = tokio::time::timeout(OPENING, Streams::open(&mut incoming, wanted)).await else { return };
    let Outside { stdin, resize, mut output } = outside;
    let said = async {
        if let Some(mut from) = streams.stdin {
            while let Some(bytes) = from.data.recv().await {
                if stdin.send(bytes).await.is_err() {
                    break;
                }
            }
        }
        // The program reads the end of its input.
        drop(stdin);
        std::future::pending::<()>().await;
    };
    let sized = async {
        if let Some(mut from) = streams.resize {
            let mut sizes = Sizes::default();
            while let Some(bytes) = from.data.recv().await {
                for size in sizes.take(&bytes) {
                    // One that is not taken is overtaken by the next one.
                    let _ = resize.try_send(size);
                }
            }
        }
        std::future::pending::<()>().await;
    };
    let id = |stream: &Option<Stream>| stream.as_ref().map(|stream| stream.id);
    let (stdout, stderr, error) = (id(&streams.stdout), id(&streams.stderr), id(&streams.error));
    let told = async {
        while let Some(output) = output.recv().await {
            let (stream, bytes): (_, Bytes) = match output {
                Output::Stdout(bytes) => (stdout, bytes),
                Output::Stderr(bytes) => (stderr, bytes),
                Output::Status(status) => {
                    for stream in [stdout, stderr].into_iter().flatten() {
                        sender.finish(stream).await?;
                    }
                    (error, status.to_string().into())
                }
            };
            if let Some(stream) = stream {
                sender.data(stream, &bytes).await?;
            }
        }
        if let Some(error) = error {
            sender.finish(error).await?;
        }
        Ok::<(), super::spdy::Gone>(())
    };
    tokio::select! {
        _ = told => {}
        () = said => {}
        () = sized => {}
        () = sender.closed() => {}
    }
}

/// Sizes as they come: JSON objects one after the other, cut anywhere.
#[derive(Default)]
struct Sizes(Vec<u8>);

impl Sizes {
    fn take(&mut self, bytes: &[u8]) -> Vec<Size> {
        let mut out = vec![];
        for part in bytes.split_inclusive(|byte| *byte == b'}') {
            let room = LONGEST_SIZE.saturating_sub(self.0.len());
            self.0.extend_from_slice(part.get(..room).unwrap_or(part));
            if part.ends_with(b"}") {
                let whole = Some(&self.0).filter(|text| text.len() >= SHORTEST_SIZE);
                out.extend(whole.and_then(|text| serde_json::from_slice::<Size>(text).ok()));
                self.0.clear();
            }
        }
        out
    }
}

#[cfg(test)]
mod tests {
    use tokio::io::AsyncWriteExt;

    use super::super::session;
    use super::super::spdy::{self, tests::*};
    use super::*;

    #[test]
    fn sizes_are_cut_anywhere() {
        let mut sizes = Sizes::default();
        assert_eq!(sizes.take(br#"{"Width":80,"#), []);
        let both = sizes.take(b"\"Height\":24}\n{\"Width\":1,\"Height\":2}\n{\"Wid");
        assert_eq!(both, [Size { width: 80, height: 24 }, Size { width: 1, height: 2 }]);
        assert_eq!(sizes.take(&[b'x'; 100_000]), []);
        assert!(sizes.0.len() <= LONGEST_SIZE);
        assert_eq!(sizes.take(b"}{\"Width\":3,\"Height\":4}"), [Size { width: 3, height: 4 }]);
    }

    /// The rest was copied for each of them: a frame or two took a thread of the whole host for minutes.
    #[test]
    fn sizes_that_only_end_cost_no_more_than_their_bytes() {
        let (done, wait) = std::sync::mpsc::channel();
        std::thread::spawn(move || done.send(Sizes::default().take(&vec![b'}'; 4 << 20])));
        assert_eq!(wait.recv_timeout(Duration::from_secs(60)).expect("it still computes"), []);
    }

    #[tokio::test]
    async fn each_stream_is_what_its_header_says() {
        let (mut client, server) = tokio::io::duplex(1 << 16);
        let (sender, incoming) = spdy::start(server);
        let (mut inside, outside) = session::pair();
        let wanted = Wanted { stdin: true, stdout: true, stderr: true, tty: false };
        let joined = tokio::spawn(join(sender, incoming, wanted, outside));
        for (number, kind) in ["error", "stdin", "stdout", "stderr"].into_iter().enumerate() {
            client.write_all(&open(2 * number as u32 + 1, &[("streamType", kind)], number == 0)).await.unwrap();
        }
        client.write_all(&say(3, b"input", true)).await.unwrap();
        assert_eq!(inside.stdin.recv().await.unwrap(), "input");
        assert_eq!(inside.stdin.recv().await, None);
        inside.output.send(Output::Stdout("out".into())).await.unwrap();
        inside.output.send(Output::Stderr("err".into())).await.unwrap();
        inside.output.send(Output::Status(session::exited(0))).await.unwrap();
        drop(inside);
        let mut heard = vec![];
        while let Some((stream, bytes, last)) = hear(&mut client).await {
            heard.push((stream, String::from_utf8(bytes).unwrap(), last));
        }
        let status = r#"{"metadata":{},"status":"Success"}"#;
        let expected =
            [(5, "out", false), (7, "err", false), (5, "", true), (7, "", true), (1, status, false), (1, "", true)];
        let expected: Vec<_> = expected.map(|(stream, text, last)| (stream, text.to_owned(), last)).into();
        assert_eq!(heard, expected);
        joined.await.unwrap();
    }
}
