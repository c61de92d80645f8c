//! `make bench-console`: what the way through the API costs a serial console, against the guest's socket itself.
//!
//! Two sources: a guest that writes as fast as it can, and a socket in its place that is never the limit. The client is
//! `ferrovirt console`, so its own costs count, too.

use std::{
    fs::{self, File},
    io::{Read, Write},
    os::{
        fd::AsRawFd,
        unix::net::{UnixListener, UnixStream},
    },
    path::{Path, PathBuf},
    process::{Child, Stdio},
    thread,
    time::Instant,
};

use anyhow::{Context, Result};
use ferrovirt_e2e::{Host, console::serial_socket, manifest};
use serde_json::Value;

/// A guest under emulation writes some hundred kilobytes a second.
const GUEST_BYTES: usize = 2 << 20;
const SYNTHETIC_BYTES: usize = 2 << 30;
/// What is in the pipes when a measurement begins does not count.
const LEAD: usize = 64 << 10;
const ROUNDS: usize = 3;

fn main() -> Result<()> {
    let host = Host::start()?;
    host.apply(&manifest::vm("loud", "Always"))?;
    let vmi = host.wait_running("loud")?;
    let pod = host.pod_of(&vmi)?;
    let mut console = host.console("loud")?;
    console.login("loud")?;
    console.line("head -c 65536 /dev/zero | tr '\\0' x > /tmp/text; (while :; do cat /tmp/text; done) &")?;
    console.leave()?;

    // In turn, so that whatever else the machine does hits both. The host keeps a console that somebody asked for; it
    // has to be gone for the socket to be free.
    let (mut direct, mut through) = (vec![], vec![]);
    for _ in 0..ROUNDS {
        through.push(through_console(&host, "loud", GUEST_BYTES)?);
        host.kill_up()?;
        direct.push(rate(&mut serial_socket(&host.data_dir(), &pod, &vmi)?, GUEST_BYTES)?);
        host.up()?;
    }
    row("guest", &direct, &through);

    let _source = Source::instead_of(&host, &pod, &vmi)?;
    host.kill_up()?;
    host.up()?;
    let (mut direct, mut through) = (vec![], vec![]);
    for _ in 0..ROUNDS {
        through.push(through_console(&host, "loud", SYNTHETIC_BYTES)?);
        direct.push(rate(&mut serial_socket(&host.data_dir(), &pod, &vmi)?, SYNTHETIC_BYTES)?);
    }
    row("synthetic", &direct, &through);
    host.down()
}

/// Bytes per second that `ferrovirt console` gives.
fn through_console(host: &Host, name: &str, bytes: usize) -> Result<f64> {
    let mut command = host.command("ferrovirt");
    let child = command.args(["console", name]).stdin(Stdio::piped()).stdout(Stdio::piped()).spawn()?;
    let mut child = Running(child);
    let mut output = child.0.stdout.take().context("no output")?;
    rate(&mut output, bytes)
}

struct Running(Child);

impl Drop for Running {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

fn rate(stream: &mut impl Read, bytes: usize) -> Result<f64> {
    take(stream, LEAD)?;
    let started = Instant::now();
    let read = take(stream, bytes)?;
    Ok(read as f64 / started.elapsed().as_secs_f64())
}

/// Reads at least so many bytes, and says how many.
fn take(stream: &mut impl Read, bytes: usize) -> Result<usize> {
    let mut buffer = vec![0; 256 << 10];
    let mut read = 0;
    while read < bytes {
        match stream.read(&mut buffer)? {
            0 => anyhow::bail!("the stream ended after {read} bytes"),
            length => read += length,
        }
    }
    Ok(read)
}

/// A socket that is never empty, where the guest's was.
struct Source {
    path: PathBuf,
}

impl Source {
    fn instead_of(host: &Host, pod: &Value, vmi: &Value) -> Result<Self> {
        let uid = |object: &Value| object["metadata"]["uid"].as_str().unwrap_or_default().to_owned();
        let below = format!("pods/{}/volumes/kubernetes.io~empty-dir/private/{}", uid(pod), uid(vmi));
        let directory = host.data_dir().join(below);
        let path = directory.join("virt-serial0");
        fs::rename(&path, directory.join("virt-serial0.guest"))?;
        let opened = File::open(&directory)?;
        // The whole path is too long for a socket's address.
        let listener =
            UnixListener::bind(Path::new("/proc/self/fd").join(opened.as_raw_fd().to_string()).join("virt-serial0"))?;
        thread::spawn(move || {
            for client in listener.incoming().map_while(Result::ok) {
                thread::spawn(move || flood(client));
            }
        });
        Ok(Self { path })
    }
}

impl Drop for Source {
    fn drop(&mut self) {
        let _ = fs::rename(self.path.with_extension("guest"), &self.path);
    }
}

fn flood(mut client: UnixStream) {
    let bytes = vec![b'x'; 64 << 10];
    while client.write_all(&bytes).is_ok() {}
}

fn row(source: &str, direct: &[f64], through: &[f64]) {
    let median = |values: &[f64]| {
        let mut sorted = values.to_vec();
        sorted.sort_by(f64::total_cmp);
        sorted.get(sorted.len() / 2).copied().unwrap_or_default() / 1e6
    };
    let (direct, through) = (median(direct), median(through));
    println!(
        "{source:<10} socket {direct:>9.3} MB/s   ferrovirt console {through:>9.3} MB/s   ratio {:.3}",
        through / direct
    );
}
