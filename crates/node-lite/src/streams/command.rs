//! One more program in a pod that runs, joined with a client. `pod-session` enters the pod and gives up what the pod has not; here
//! are only the ends of its pipes, or of its terminal.

use std::io;
use std::os::fd::{AsFd, OwnedFd};
use std::path::{Path, PathBuf};
use std::process::Stdio;
use std::time::Duration;

use bytes::Bytes;
use rustix::fs::{OFlags, fcntl_getfl, fcntl_setfl};
use rustix::pty::{OpenptFlags, grantpt, ioctl_tiocgptpeer, openpt, unlockpt};
use rustix::termios::{Winsize, tcsetwinsize};
use tokio::io::unix::AsyncFd;
use tokio::io::{AsyncRead, AsyncReadExt, AsyncWriteExt};
use tokio::process::{Child, Command};
use tokio::sync::mpsc;

use super::session::{Inside, Output, Size, Wanted, exited, failed};

const CHUNK: usize = 32 << 10;
/// How long the output of a program that ended is waited for: what it left running may hold it open.
const LAST_OUTPUT: Duration = Duration::from_secs(5);

/// A program to run in a pod.
#[derive(Debug, Clone)]
pub(super) struct Exec {
    /// Knows `pod-session`.
    pub program: PathBuf,
    /// The pod's directory.
    pub pod: PathBuf,
    pub command: Vec<String>,
    pub wanted: Wanted,
}

/// Runs it until it ends or the client is gone.
pub(super) async fn run(exec: Exec, inside: Inside) {
    let output = inside.output.clone();
    let result = match exec.wanted.tty {
        true => on_terminal(&exec, inside).await,
        false => on_pipes(&exec, inside).await,
    };
    let status = match result {
        Ok(Some(code)) => exited(code),
        // There is nobody to tell.
        Ok(None) => return,
        Err(error) => failed(&format!("cannot run the command in the pod: {error}")),
    };
    let _ = output.send(Output::Status(status)).await;
}

fn session(exec: &Exec, mode: &str) -> Command {
    let mut command = Command::new(&exec.program);
    command.arg("pod-session").arg(&exec.pod).arg(mode).args(&exec.command);
    // Whoever asked is gone when this is: a terminal hangs up, and pipes break.
    command.env_clear().current_dir("/").kill_on_drop(true);
    command
}

async fn on_pipes(exec: &Exec, inside: Inside) -> io::Result<Option<i32>> {
    let Inside { mut stdin, output, .. } = inside;
    let pipe = |wanted| if wanted { Stdio::piped() } else { Stdio::null() };
    let mut child = session(exec, "pipes")
        .process_group(0)
        .stdin(pipe(exec.wanted.stdin))
        .stdout(pipe(exec.wanted.stdout))
        .stderr(pipe(exec.wanted.stderr))
        .spawn()?;
    let (input, out, err) = (child.stdin.take(), child.stdout.take(), child.stderr.take());
    let feed = async {
        let Some(mut input) = input else { return std::future::pending().await };
        while let Some(bytes) = stdin.recv().await {
            if input.write_all(&bytes).await.is_err() {
                break;
            }
        }
        // Closed here: the program reads the end.
        drop(input);
        std::future::pending::<()>().await;
    };
    let copied = async {
        tokio::join!(copy(out, &output, Output::Stdout), copy(err, &output, Output::Stderr));
    };
    tokio::select! {
        code = ended(&mut child, copied) => Ok(Some(code?)),
        () = feed => Ok(None),
        () = output.closed() => Ok(None),
    }
}

async fn copy(from: Option<impl AsyncRead + Unpin>, to: &mpsc::Sender<Output>, wrap: fn(Bytes) -> Output) {
    let Some(mut from) = from else { return };
    let mut buffer = vec![0; CHUNK];
    while let Ok(count @ 1..) = from.read(&mut buffer).await {
        let bytes = Bytes::copy_from_slice(buffer.get(..count).unwrap_or_default());
        if to.send(wrap(bytes)).await.is_err() {
            return;
        }
    }
}

async fn on_terminal(exec: &Exec, inside: Inside) -> io::Result<Option<i32>> {
    let Inside { mut stdin, mut resize, output } = inside;
    // The terminal goes before the child does: closed first, it hangs up, and the program is told. With its session ended at the
    // same moment the kernel may find that each of the two leaves the telling to the other.
    let (mut child, terminal) = {
        let (terminal, slave) = Terminal::open()?;
        let child = session(exec, "terminal")
            .stdin(Stdio::from(slave.try_clone()?))
            .stdout(Stdio::from(slave.try_clone()?))
            .stderr(Stdio::from(slave))
            .spawn()?;
        (child, terminal)
    };
    let feed = async {
        while let Some(bytes) = stdin.recv().await {
            if terminal.write_all(&bytes).await.is_err() {
                break;
            }
        }
        std::future::pending::<()>().await;
    };
    let sized = async {
        while let Some(size) = resize.recv().await {
            terminal.resize(size);
        }
        std::future::pending::<()>().await;
    };
    tokio::select! {
        code = ended(&mut child, terminal.copy(&output)) => Ok(Some(code?)),
        () = feed => Ok(None),
        () = sized => Ok(None),
        () = output.closed() => Ok(None),
    }
}

/// The exit code of a program, once what it wrote is copied.
async fn ended(child: &mut Child, copied: impl Future<Output = ()>) -> io::Result<i32> {
    let mut copied = std::pin::pin!(copied);
    let mut done = false;
    let code = loop {
        tokio::select! {
            status = child.wait() => break code(&status?),
            () = &mut copied, if !done => done = true,
        }
    };
    if !done {
        let _ = tokio::time::timeout(LAST_OUTPUT, copied).await;
    }
    Ok(code)
}

/// What a shell says.
fn code(status: &std::process::ExitStatus) -> i32 {
    use std::os::unix::process::ExitStatusExt;
    status.code().unwrap_or_else(|| 128 + status.signal().unwrap_or(0))
}

/// The near end of a terminal.
struct Terminal {
    master: AsyncFd<OwnedFd>,
}

impl Terminal {
    /// And the far end. Both close by themselves in programs that others start meanwhile.
    fn open() -> io::Result<(Self, OwnedFd)> {
        let flags = OpenptFlags::RDWR | OpenptFlags::NOCTTY | OpenptFlags::CLOEXEC;
        let master = openpt(flags)?;
        grantpt(&master)?;
        unlockpt(&master)?;
        let slave = ioctl_tiocgptpeer(&master, flags)?;
        fcntl_setfl(&master, fcntl_getfl(&master)? | OFlags::NONBLOCK)?;
        // Deprecated for types that may close their descriptor early; an OwnedFd cannot, and the successor is unsafe.
        #[allow(deprecated)]
        let master = AsyncFd::new(master)?;
        Ok((Self { master }, slave))
    }

    async fn copy(&self, to: &mpsc::Sender<Output>) {
        let mut buffer = vec![0; CHUNK];
        loop {
            let Ok(mut ready) = self.master.readable().await else { return };
            let read = ready.try_io(|master| rustix::io::read(master.as_fd(), &mut buffer).map_err(io::Error::from));
            match read {
                // An error here is the far end's last close.
                Ok(Ok(0) | Err(_)) => return,
                Ok(Ok(count)) => {
                    let bytes = Bytes::copy_from_slice(buffer.get(..count).unwrap_or_default());
                    if to.send(Output::Stdout(bytes)).await.is_err() {
                        return;
                    }
                }
                Err(_not_ready) => {}
            }
        }
    }

    async fn write_all(&self, mut bytes: &[u8]) -> io::Result<()> {
        while !bytes.is_empty() {
            let mut ready = self.master.writable().await?;
            match ready.try_io(|master| rustix::io::write(master.as_fd(), bytes).map_err(io::Error::from)) {
                Ok(written) => bytes = bytes.get(written?..).unwrap_or_default(),
                Err(_not_ready) => {}
            }
        }
        Ok(())
    }

    fn resize(&self, size: Size) {
        let size = Winsize { ws_row: size.height, ws_col: size.width, ws_xpixel: 0, ws_ypixel: 0 };
        let _ = tcsetwinsize(&self.master, size);
    }
}

/// Follows what a container writes: its standard input is closed to everybody, so this is all that attaching to it means.
pub(super) async fn attach(data_dir: &Path, uid: &str, container: &str, wanted: Wanted, inside: Inside) {
    let Inside { output, .. } = inside;
    let (data_dir, uid, container) = (data_dir.to_owned(), uid.to_owned(), container.to_owned());
    let alive = crate::records::PodDir::new(&data_dir, &uid);
    let opened = tokio::task::spawn_blocking(move || {
        let options = crate::LogOptions { tail_lines: Some(0), follow: true, ..Default::default() };
        crate::LogReader::open(&data_dir, &uid, &container, &options)
    });
    let mut reader = match opened.await {
        Ok(Ok(reader)) => reader,
        Ok(Err(error)) => return drop(output.send(Output::Status(failed(&error.to_string()))).await),
        Err(error) => return drop(output.send(Output::Status(failed(&error.to_string()))).await),
    };
    loop {
        // Asked before reading, so that the last words of one that ends are not missed.
        let over = alive.exit().exists() || !alive.root().exists();
        let read = tokio::task::spawn_blocking(move || {
            let more = reader.more();
            (more, reader)
        });
        let Ok((more, after)) = read.await else { return };
        reader = after;
        match more {
            Ok(bytes) if !bytes.is_empty() && wanted.stdout => {
                if output.send(Output::Stdout(bytes.into())).await.is_err() {
                    return;
                }
            }
            Ok(_) => {}
            Err(error) => return drop(output.send(Output::Status(failed(&error.to_string()))).await),
        }
        if over {
            return drop(output.send(Output::Status(exited(0))).await);
        }
        tokio::select! {
            () = output.closed() => return,
            () = tokio::time::sleep(Duration::from_millis(200)) => {}
        }
    }
}
