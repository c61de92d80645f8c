//! What node-lite, the shim and pod-init tell each other through files in the pod's directory.
//!
//! ```text
//! <data-dir>/pods/<uid>/
//!   pod.json     who the pod is and what must be undone      written by node-lite before anything exists
//!   attempt      token of the only shim that may start       written by node-lite before it starts a shim
//!   init.json    what pod-init builds and runs               written by node-lite
//!   lock         flock held by the shim while it lives
//!   state.json   the process: pid, start time, boot id       written by the shim before the container runs
//!   init.err     why the container could not be started      written by pod-init
//!   exit.json    how the process ended                       written by the shim
//!   <container>.termination  its last words                  written by the container (`/dev/termination-log`)
//!   cni.json     the network attachment                      written by node-lite
//!   logs/        <container>.log in the CRI format           written by the shim
//!   volumes/     the kubelet's layout                        written by node-lite
//! ```
//!
//! A restarted node-lite knows nothing but these files, so each is replaced atomically and synced.

use std::fs::{self, File};
use std::io::{self, Write};
use std::os::unix::fs::OpenOptionsExt;
use std::path::{Path, PathBuf};

use jiff::Timestamp;
use serde::de::DeserializeOwned;
use serde::{Deserialize, Serialize};

use crate::identity::ProcessId;

/// Paths of one pod's directory.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct PodDir {
    root: PathBuf,
}

/// `pod.json`: enough to clean up after a pod whose object is gone.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct PodRecord {
    pub uid: String,
    pub namespace: String,
    pub name: String,
    pub container: String,
    pub grace_seconds: u64,
    pub netns: PathBuf,
}

/// `state.json`.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct StateRecord {
    pub pod_uid: String,
    /// The host's view of PID 1 of the pod.
    pub process: ProcessId,
    pub shim: ProcessId,
    pub started_at: Timestamp,
}

/// `exit.json`.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct ExitRecord {
    /// As a shell reports it: 128 + signal for a killed process.
    pub exit_code: i32,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub signal: Option<i32>,
    pub finished_at: Timestamp,
    /// A kubelet reason: `Completed`, `Error`, `StartError`, `OOMKilled`, `ContainerStatusUnknown`, `NodeReboot`.
    pub reason: String,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub message: Option<String>,
}

/// `init.json`: what pod-init needs, resolved to host paths and numbers.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct InitPlan {
    pub pod_uid: String,
    pub container: String,
    pub hostname: String,
    pub netns: PathBuf,
    /// `cgroup.procs` files that the shim joins.
    pub cgroup_procs: Vec<PathBuf>,
    /// An empty host directory on which the root is assembled.
    pub staging: PathBuf,
    /// Shown as `/usr/bin/ferrovirt-launcher`, unless `program_path` says where.
    pub launcher: PathBuf,
    /// Below `/usr`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub program_path: Option<PathBuf>,
    pub command: Vec<String>,
    pub working_dir: PathBuf,
    pub env: Vec<(String, String)>,
    pub uid: u32,
    pub gid: u32,
    /// Root with what a container driver needs: mounts, devices and the pod's own cgroups.
    #[serde(default)]
    pub privileged: bool,
    /// It may say where its memory lies: it asked for SYS_NICE, by which runtimes' filters of system calls go.
    #[serde(default)]
    pub memory_placement: bool,
    #[serde(default)]
    pub groups: Vec<u32>,
    /// The host's id of the pod's id 0, if its users are its own. Set when the pod is started.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub first_id: Option<u32>,
    /// Host devices beyond the minimal set, such as `/dev/kvm`.
    #[serde(default)]
    pub devices: Vec<PathBuf>,
    /// Sorted so that a parent comes before what is mounted inside it.
    #[serde(default)]
    pub mounts: Vec<MountPlan>,
    /// Kernel settings of the pod's own network namespace, by dotted name.
    #[serde(default)]
    pub sysctls: Vec<(String, String)>,
    /// Files made for this pod only, by path inside: passwd, hosts, …
    #[serde(default)]
    pub files: Vec<(PathBuf, String)>,
    /// What runs beside the command: see [`crate::sidecar`].
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub sidecar: Option<SidecarPlan>,
}

#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct SidecarPlan {
    pub container: String,
    pub command: Vec<String>,
    pub uid: u32,
    pub gid: u32,
}

#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct MountPlan {
    pub source: PathBuf,
    /// Resolved beneath `source` without following links out of it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub sub_path: Option<PathBuf>,
    pub target: PathBuf,
    pub read_only: bool,
    /// Mounts made on the host later show up inside (`mountPropagation: HostToContainer`).
    #[serde(default)]
    pub follow_host: bool,
}

impl InitPlan {
    /// Who the container's process is to the host.
    pub fn host_user(&self) -> (u32, u32) {
        let first = self.first_id.unwrap_or(0);
        (first + self.uid, first + self.gid)
    }
}

#[derive(Debug, thiserror::Error)]
pub enum RecordError {
    #[error("cannot {action} {path}")]
    Io { action: &'static str, path: PathBuf, source: io::Error },
    #[error("{path} is damaged")]
    Json { path: PathBuf, source: serde_json::Error },
}

impl PodDir {
    pub fn new(data_dir: &Path, uid: &str) -> Self {
        Self { root: data_dir.join("pods").join(uid) }
    }

    pub fn at(root: impl Into<PathBuf>) -> Self {
        Self { root: root.into() }
    }

    pub fn root(&self) -> &Path {
        &self.root
    }

    pub fn pod(&self) -> PathBuf {
        self.root.join("pod.json")
    }

    pub fn attempt(&self) -> PathBuf {
        self.root.join("attempt")
    }

    pub fn init(&self) -> PathBuf {
        self.root.join("init.json")
    }

    pub fn lock(&self) -> PathBuf {
        self.root.join("lock")
    }

    pub fn state(&self) -> PathBuf {
        self.root.join("state.json")
    }

    pub fn init_error(&self) -> PathBuf {
        self.root.join("init.err")
    }

    pub fn exit(&self) -> PathBuf {
        self.root.join("exit.json")
    }

    /// Shown to the container as `/dev/termination-log`.
    pub fn termination_log(&self, container: &str) -> PathBuf {
        self.root.join(format!("{container}.termination"))
    }

    pub fn cni(&self) -> PathBuf {
        self.root.join("cni.json")
    }

    pub fn logs(&self) -> PathBuf {
        self.root.join("logs")
    }

    pub fn log(&self, container: &str) -> PathBuf {
        self.logs().join(format!("{container}.log"))
    }

    pub fn staging(&self) -> PathBuf {
        self.root.join("rootfs")
    }

    /// `plugin` is the kubelet's escaped plugin name, such as `kubernetes.io~empty-dir`.
    pub fn volume(&self, plugin: &str, name: &str) -> PathBuf {
        self.root.join("volumes").join(plugin).join(name)
    }
}

impl ExitRecord {
    /// The process is gone and nobody recorded how.
    pub fn unknown(reason: &str, message: &str, finished_at: Timestamp) -> Self {
        Self { exit_code: 137, signal: None, finished_at, reason: reason.to_owned(), message: Some(message.to_owned()) }
    }
}

/// Reads a record; a missing file is `None`.
pub fn read<T: DeserializeOwned>(path: &Path) -> Result<Option<T>, RecordError> {
    let bytes = match fs::read(path) {
        Ok(bytes) => bytes,
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(None),
        Err(source) => {
            return Err(RecordError::Io { action: "read", path: path.to_owned(), source });
        }
    };
    serde_json::from_slice(&bytes).map(Some).map_err(|source| RecordError::Json { path: path.to_owned(), source })
}

pub fn write<T: Serialize>(path: &Path, value: &T) -> Result<(), RecordError> {
    let bytes = serde_json::to_vec(value).map_err(|source| RecordError::Json { path: path.to_owned(), source })?;
    write_bytes(path, &bytes)
}

/// Replaces `path` by rename, with file and directory synced: after a power cut it is the old file or the new one.
pub fn write_bytes(path: &Path, bytes: &[u8]) -> Result<(), RecordError> {
    let fail = |source| RecordError::Io { action: "create", path: path.to_owned(), source };
    let temporary = temporary(path);
    let file = create(&temporary).map_err(fail)?;
    put(file, &temporary, path, bytes)
}

/// Room on disk for a record that must be written even when the disk is full by then.
#[derive(Debug)]
pub struct Reserved {
    file: File,
    temporary: PathBuf,
    path: PathBuf,
}

/// More than any record of an end has.
const ROOM: u64 = 16 << 10;

impl Reserved {
    pub fn new(path: &Path) -> io::Result<Self> {
        let temporary = temporary(path);
        let file = create(&temporary)?;
        rustix::fs::fallocate(&file, rustix::fs::FallocateFlags::empty(), 0, ROOM)?;
        Ok(Self { file, temporary, path: path.to_owned() })
    }

    /// Fills the room; what is left of it stays as white space.
    pub fn write<T: Serialize>(self, value: &T) -> Result<(), RecordError> {
        let json = |source| RecordError::Json { path: self.path.clone(), source };
        let mut bytes = serde_json::to_vec(value).map_err(json)?;
        if (bytes.len() as u64) < ROOM {
            bytes.resize(ROOM as usize, b' ');
        }
        put(self.file, &self.temporary, &self.path, &bytes)
    }
}

fn temporary(path: &Path) -> PathBuf {
    let mut temporary = path.as_os_str().to_owned();
    temporary.push(".new");
    PathBuf::from(temporary)
}

fn create(path: &Path) -> io::Result<File> {
    fs::OpenOptions::new().write(true).create(true).truncate(true).mode(0o600).open(path)
}

fn put(mut file: File, temporary: &Path, path: &Path, bytes: &[u8]) -> Result<(), RecordError> {
    let fail = |action| move |source| RecordError::Io { action, path: path.to_owned(), source };
    file.write_all(bytes).map_err(fail("write"))?;
    file.sync_all().map_err(fail("sync"))?;
    fs::rename(temporary, path).map_err(fail("replace"))?;
    if let Some(parent) = path.parent() {
        File::open(parent).and_then(|dir| dir.sync_all()).map_err(fail("sync the directory of"))?;
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_record_fits_into_the_room_that_was_kept_for_it() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("exit.json");
        let exit = ExitRecord::unknown("Error", "why", Timestamp::UNIX_EPOCH);
        let reserved = Reserved::new(&path).unwrap();
        assert_eq!(read::<ExitRecord>(&path).unwrap(), None, "there before it is written");
        let room = std::os::unix::fs::MetadataExt::blocks(&fs::metadata(temporary(&path)).unwrap());
        assert!(room * 512 >= ROOM, "{room} blocks");
        reserved.write(&exit).unwrap();
        assert_eq!(read::<ExitRecord>(&path).unwrap(), Some(exit.clone()));
        assert_eq!(fs::metadata(&path).unwrap().len(), ROOM, "no new room was needed");
        let long = ExitRecord { message: Some("x".repeat(20_000)), ..exit };
        Reserved::new(&path).unwrap().write(&long).unwrap();
        assert_eq!(read::<ExitRecord>(&path).unwrap(), Some(long));
    }
}
