//! A process that plays a launcher: this test program again, with a test that only listens, wherever it is put.

use std::{
    fs,
    io::{Read, Write},
    os::unix::net::UnixListener,
    path::{Path, PathBuf},
    process::{Child, Command, Stdio},
    sync::atomic::{AtomicU32, Ordering},
    time::{Duration, Instant},
};

use ferrovirt_beneath::{Dir, proc_path};
use ferrovirt_machine::protocol::{self, ClientFrame, ServerFrame};

pub(crate) const POD: &str = "4b5c1e0a-7a31-4a0e-8a0f-0c6f3b1f0001";
pub(crate) const OTHER: &str = "4b5c1e0a-7a31-4a0e-8a0f-0c6f3b1f0002";
const SOCKET: &str = "FERROVIRT_FAKE_LAUNCHER";
const PATIENCE: Duration = Duration::from_secs(60);

#[derive(Default)]
pub(crate) struct Fake {
    cgroup: Option<&'static str>,
    unshare: Vec<&'static str>,
}

pub(crate) struct Running {
    home: tempfile::TempDir,
    child: Child,
    cgroups: Vec<PathBuf>,
}

impl Fake {
    pub(crate) fn new() -> Self {
        Self::default()
    }

    pub(crate) fn in_cgroup(mut self, pod: &'static str) -> Self {
        self.cgroup = Some(pod);
        self
    }

    pub(crate) fn in_pid_namespace(mut self) -> Self {
        self.unshare = vec!["--pid", "--fork", "--kill-child"];
        self
    }

    pub(crate) fn in_namespaces(self) -> Self {
        let mut fake = self.in_pid_namespace();
        fake.unshare.push("--net");
        fake
    }

    pub(crate) fn start(self) -> Running {
        let home = tempfile::tempdir().unwrap();
        let sockets = sockets(home.path());
        fs::create_dir_all(&sockets).unwrap();
        let cgroups: Vec<PathBuf> = self.cgroup.map(make_cgroups).unwrap_or_default();
        let own = std::env::current_exe().unwrap();
        let joins: String = cgroups.iter().map(|dir| format!("echo 0 > {}/cgroup.procs && ", dir.display())).collect();
        let unshare =
            if self.unshare.is_empty() { String::new() } else { format!("unshare {} ", self.unshare.join(" ")) };
        let script = format!("{joins}exec {unshare}\"$@\"");
        let child = Command::new("sh")
            .args(["-c", &script, "fake"])
            .arg(own)
            .args(["--exact", "process::tests::fake::listen", "--nocapture"])
            // The full path would be too long for an address.
            .current_dir(&sockets)
            .env(SOCKET, protocol::SOCKET_NAME)
            .stdin(Stdio::null())
            .stdout(Stdio::null())
            .spawn()
            .unwrap();
        let running = Running { home, child, cgroups };
        let deadline = Instant::now() + PATIENCE;
        while connect(&sockets).is_err() {
            assert!(Instant::now() < deadline, "the fake launcher does not listen");
            std::thread::yield_now();
        }
        running
    }
}

impl Running {
    pub(crate) fn home(&self) -> &Path {
        self.home.path()
    }

    pub(crate) fn pods(&self) -> PathBuf {
        self.home().join("pods")
    }

    pub(crate) fn sockets(&self) -> PathBuf {
        sockets(self.home())
    }
}

impl Drop for Running {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
        // A cgroup is in use until the kernel is done with its last process.
        let deadline = Instant::now() + PATIENCE;
        for cgroup in &self.cgroups {
            while fs::remove_dir(cgroup).is_err() && cgroup.exists() && Instant::now() < deadline {
                std::thread::yield_now();
            }
            let _ = cgroup.parent().map(fs::remove_dir);
        }
    }
}

fn connect(sockets: &Path) -> std::io::Result<std::os::unix::net::UnixStream> {
    let socket = Dir::open(sockets)?.socket(protocol::SOCKET_NAME)?;
    std::os::unix::net::UnixStream::connect(proc_path(&socket))
}

fn sockets(home: &Path) -> PathBuf {
    home.join("pods").join(POD).join("volumes/kubernetes.io~empty-dir/sockets")
}

/// A cgroup for the pod, in whichever hierarchies of the machine there are for it.
fn make_cgroups(pod: &'static str) -> Vec<PathBuf> {
    static NEXT: AtomicU32 = AtomicU32::new(0);
    let parent = format!("ferrovirt-test-{}-{}", std::process::id(), NEXT.fetch_add(1, Ordering::Relaxed));
    let roots = ["/sys/fs/cgroup/pids", "/sys/fs/cgroup/memory", "/sys/fs/cgroup"];
    let root = roots.iter().find(|root| Path::new(root).join("cgroup.procs").exists()).expect("a cgroup file system");
    let cgroup = Path::new(root).join(parent).join(format!("pod{pod}"));
    fs::create_dir_all(&cgroup).unwrap();
    vec![cgroup]
}

/// No test: what the processes above run.
#[test]
fn listen() {
    let Some(socket) = std::env::var_os(SOCKET) else { return };
    let listener = UnixListener::bind(socket).unwrap();
    for stream in listener.incoming() {
        std::thread::spawn(move || {
            let mut stream = stream.unwrap();
            loop {
                let mut prefix = [0; 4];
                if stream.read_exact(&mut prefix).is_err() {
                    return;
                }
                let mut body = vec![0; protocol::frame_length(prefix).unwrap()];
                stream.read_exact(&mut body).unwrap();
                let asked: ClientFrame = protocol::decode(&body).unwrap();
                let reply = ServerFrame::Reply { id: asked.id, version: Some(1), text: None, error: None };
                if stream.write_all(&protocol::encode(&reply).unwrap()).is_err() {
                    return;
                }
            }
        });
    }
}
