//! The hypervisor's own log file, copied to our stderr, which is the pod's log.

use std::path::PathBuf;
use std::time::Duration;

use tokio::fs::File;
use tokio::io::AsyncReadExt;
use tokio::sync::oneshot;
use tokio::task::JoinHandle;

/// A log is read by people; a second is soon enough and costs nothing while it is quiet.
const PERIOD: Duration = Duration::from_secs(1);
const CHUNK: usize = 8 * 1024;

/// Copies a file that grows, from its beginning.
pub struct LogTail {
    stop: oneshot::Sender<()>,
    task: JoinHandle<()>,
}

impl LogTail {
    pub fn start(path: PathBuf) -> Self {
        let (stop, stopped) = oneshot::channel();
        Self { stop, task: tokio::spawn(follow(path, stopped)) }
    }

    /// Copies what is left, then ends.
    pub async fn finish(self) {
        let _ = self.stop.send(());
        let _ = self.task.await;
    }
}

async fn follow(path: PathBuf, mut stopped: oneshot::Receiver<()>) {
    let mut file = None;
    loop {
        let last = tokio::select! {
            _ = &mut stopped => true,
            () = tokio::time::sleep(PERIOD) => false,
        };
        if file.is_none() {
            file = File::open(&path).await.ok();
        }
        if let Some(file) = &mut file {
            copy(file).await;
        }
        if last {
            return;
        }
    }
}

async fn copy(file: &mut File) {
    let mut chunk = vec![0; CHUNK];
    while let Ok(length @ 1..) = file.read(&mut chunk).await {
        // Written at once and not through a buffer: other tasks write to stderr as well.
        let _ = std::io::Write::write_all(&mut std::io::stderr().lock(), &chunk[..length]);
    }
}
