//! `ferrovirt-launcher guest-ping` and `guest-exec`: a probe's way to the guest, from inside the launcher's container.

use std::io::Write;
use std::path::Path;

use anyhow::{Context, bail};
use ferrovirt_machine::protocol::{
    self, Answer, ClientFrame, GuestCall, MIN_VERSION, Outcome, Request, SOCKET_NAME, ServerFrame, VERSION,
};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::UnixStream;

/// Asks the launcher that listens in `dir`. The exit code is the guest command's, or 0 for a ping that was answered; 1 if
/// nobody could be asked, with the reason on standard error: without a time, or every failure of a probe would read
/// differently.
pub async fn probe(dir: &Path, call: GuestCall) -> u8 {
    match ask(dir, call).await {
        Ok(code) => code,
        Err(error) => {
            eprintln!("{error:#}");
            1
        }
    }
}

async fn ask(dir: &Path, call: GuestCall) -> anyhow::Result<u8> {
    let path = dir.join(SOCKET_NAME);
    let mut stream =
        UnixStream::connect(&path).await.with_context(|| format!("cannot reach the launcher at {}", path.display()))?;
    request(&mut stream, 1, Request::Hello { min_version: MIN_VERSION, max_version: VERSION }).await?;
    let Answer::Exec { result } = request(&mut stream, 2, Request::Guest { call }).await? else { return Ok(0) };
    // Whoever runs the probe may show the output; that it cannot be written changes nothing.
    let _ = std::io::stdout().write_all(result.stdout.as_bytes());
    let _ = std::io::stderr().write_all(result.stderr.as_bytes());
    Ok(u8::try_from(result.exit_code).unwrap_or(1))
}

async fn request(stream: &mut UnixStream, id: u64, request: Request) -> anyhow::Result<Answer> {
    let shape = request.shape();
    stream.write_all(&protocol::encode(&ClientFrame { id, request })?).await?;
    loop {
        let mut prefix = [0; 4];
        stream.read_exact(&mut prefix).await.context("the launcher closed the connection")?;
        let mut body = vec![0; protocol::frame_length(prefix)?];
        stream.read_exact(&mut body).await.context("the launcher closed the connection")?;
        match protocol::decode::<ServerFrame>(&body)? {
            ServerFrame::Reply { id: answered, error: Some(error), .. } if answered == id => bail!(error.message),
            ServerFrame::Reply { id: answered, text, .. } if answered == id => {
                return Answer::from_text(shape, text).context("the launcher's answer is damaged");
            }
            ServerFrame::Answer { id: answered, result } if answered == id => match result {
                Outcome::Ok(answer) => return Ok(answer),
                Outcome::Error(error) => bail!(error.message),
            },
            _ => {}
        }
    }
}
