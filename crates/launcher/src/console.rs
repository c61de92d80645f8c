//! The console of a container: its terminal, served on the socket where a machine's hypervisor would serve a serial port.
//!
//! One client at a time, as with a serial port. What the guest writes is read whether or not somebody listens, so that it never
//! waits; without a client it only goes to the log, if there is one.

use std::fs::{File, OpenOptions};
use std::io::{self, Read, Write};
use std::os::unix::fs::OpenOptionsExt;
use std::path::{Path, PathBuf};
use std::time::Duration;

use ferrovirt_machine::spec::SerialConsole;
use rustix::fs::OFlags;
use rustix::termios::{OptionalActions, tcgetattr, tcsetattr};
use tokio::io::unix::AsyncFd;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::{UnixListener, UnixStream};

use crate::domain::libvirt::LibvirtBackend;

/// Between two looks for the terminal of a guest that restarts.
const RETRY: Duration = Duration::from_millis(100);
/// A client that takes nothing for so long is let go, rather than the guest kept waiting.
const PATIENCE: Duration = Duration::from_secs(5);

/// A socket that clients can connect to before the guest runs.
pub struct Console {
    listener: UnixListener,
    log: Option<PathBuf>,
    client: Option<UnixStream>,
}

/// Why the service of one terminal ended.
enum End {
    /// The guest restarted or stopped.
    Terminal,
}

impl Console {
    pub fn bind(console: &SerialConsole) -> io::Result<Self> {
        let path = Path::new(&console.socket);
        // From a start that failed half-way.
        let _ = std::fs::remove_file(path);
        Ok(Self { listener: UnixListener::bind(path)?, log: console.log.as_ref().map(PathBuf::from), client: None })
    }

    /// Serves one terminal after the other, for as long as the launcher lives.
    pub(crate) async fn serve(mut self, backend: LibvirtBackend) {
        loop {
            if let Some(path) = backend.terminal().await {
                match open(&path) {
                    Ok(terminal) => {
                        let End::Terminal = self.follow(terminal).await;
                    }
                    Err(error) => tracing::debug!(path = %path.display(), %error, "the console is not there yet"),
                }
            }
            tokio::time::sleep(RETRY).await;
        }
    }

    async fn follow(&mut self, terminal: AsyncFd<File>) -> End {
        let mut log = self.log.as_ref().and_then(|path| OpenOptions::new().append(true).create(true).open(path).ok());
        let (mut output, mut input) = ([0_u8; 4096], [0_u8; 1024]);
        loop {
            tokio::select! {
                read = read(&terminal, &mut output) => match read {
                    Ok(length) if length > 0 => {
                        let bytes = output.get(..length).unwrap_or_default();
                        if let Some(log) = &mut log {
                            // A full disk must not stop the guest.
                            let _ = log.write_all(bytes);
                        }
                        self.send(bytes).await;
                    }
                    _ => return End::Terminal,
                },
                typed = typed(&mut self.client, &mut input) => match typed {
                    Some(length) => {
                        if write(&terminal, input.get(..length).unwrap_or_default()).await.is_err() {
                            return End::Terminal;
                        }
                    }
                    None => self.client = None,
                },
                accepted = self.listener.accept(), if self.client.is_none() => {
                    self.client = accepted.ok().map(|(stream, _)| stream);
                }
            }
        }
    }

    async fn send(&mut self, bytes: &[u8]) {
        let Some(client) = &mut self.client else {
            return;
        };
        if !matches!(tokio::time::timeout(PATIENCE, client.write_all(bytes)).await, Ok(Ok(()))) {
            self.client = None;
        }
    }
}

/// What the client typed; `None` when it left.
async fn typed(client: &mut Option<UnixStream>, buffer: &mut [u8]) -> Option<usize> {
    match client {
        Some(client) => client.read(buffer).await.ok().filter(|length| *length > 0),
        None => std::future::pending().await,
    }
}

// Deprecated for types that may give out another descriptor later; a `File` never does.
#[allow(deprecated)]
fn open(path: &Path) -> io::Result<AsyncFd<File>> {
    let flags = (OFlags::NOCTTY | OFlags::NONBLOCK).bits().cast_signed();
    let terminal = OpenOptions::new().read(true).write(true).custom_flags(flags).open(path)?;
    // The guest's side of the line does the editing.
    let mut settings = tcgetattr(&terminal)?;
    settings.make_raw();
    tcsetattr(&terminal, OptionalActions::Now, &settings)?;
    AsyncFd::new(terminal)
}

async fn read(terminal: &AsyncFd<File>, buffer: &mut [u8]) -> io::Result<usize> {
    loop {
        let mut ready = terminal.readable().await?;
        if let Ok(result) = ready.try_io(|terminal| terminal.get_ref().read(buffer)) {
            return result;
        }
    }
}

async fn write(terminal: &AsyncFd<File>, mut bytes: &[u8]) -> io::Result<()> {
    while !bytes.is_empty() {
        let mut ready = terminal.writable().await?;
        if let Ok(result) = ready.try_io(|terminal| terminal.get_ref().write(bytes)) {
            bytes = bytes.get(result?..).unwrap_or_default();
        }
    }
    Ok(())
}
