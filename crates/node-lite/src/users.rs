//! A user namespace for one pod. Its users are ids of the host that no other pod has; files on disk keep the ids of the pod's
//! spec, because its volumes are mounted with the same mapping.
//!
//! A namespace needs a process to be born in: `pod-users` is that process, for a moment. pod-init enters the namespace last,
//! when all mounts are made, so nothing in the pod has ever had a capability over them.

use std::fs::{self, File};
use std::io::{self, BufRead, BufReader, Read, Write};
use std::os::fd::{AsFd, OwnedFd};
use std::path::Path;
use std::process::{Command, Stdio};

use nix::sched::{CloneFlags, unshare};
use rustix::fs::CWD;
use rustix::mount::{OpenTreeFlags, open_tree};

use crate::user_ids::COUNT;

/// Entry of `pod-users`. Call it before any thread is started.
pub fn users_main() -> i32 {
    let said = unshare(CloneFlags::CLONE_NEWUSER)
        .map_err(io::Error::from)
        // The number by which the host's /proc, which is still ours, knows this process.
        .and_then(|()| fs::read_link("/proc/self"))
        .map_or_else(|error| error.to_string(), |pid| pid.display().to_string());
    let told = writeln!(io::stdout(), "{said}").and_then(|()| io::stdout().flush());
    i32::from(told.and_then(|()| io::stdin().read_to_end(&mut Vec::new())).is_err())
}

/// A user namespace whose ids 0 to 65535 are those of the host from `first` on. `program` knows `pod-users`.
pub(crate) fn namespace(program: &Path, first: u32) -> io::Result<File> {
    let mut holder = Command::new(program).arg("pod-users").stdin(Stdio::piped()).stdout(Stdio::piped()).spawn()?;
    let result = mapped(&mut holder, first);
    // It ends with its input; the namespace lives on in the descriptor.
    drop(holder.stdin.take());
    holder.wait()?;
    result
}

fn mapped(holder: &mut std::process::Child, first: u32) -> io::Result<File> {
    let mut line = String::new();
    if let Some(output) = holder.stdout.take() {
        BufReader::new(output).read_line(&mut line)?;
    }
    let pid = line.trim().parse::<u32>().map_err(|_| io::Error::other(line.trim().to_owned()))?;
    for map in ["uid_map", "gid_map"] {
        fs::write(format!("/proc/{pid}/{map}"), format!("0 {first} {COUNT}\n"))?;
    }
    File::open(format!("/proc/{pid}/ns/user"))
}

/// Shows a tree that was taken with the ids of the namespace.
pub(crate) fn show(tree: &OwnedFd, namespace: &File) -> io::Result<()> {
    ferrovirt_confine::map_ids(tree.as_fd(), namespace.as_fd())
}

/// Why pods cannot have users of their own here, if they cannot: the kernel or the file system of `dir` says no.
pub(crate) fn obstacle(program: &Path, dir: &Path, first: u32) -> Option<String> {
    let namespace = match namespace(program, first) {
        Ok(namespace) => namespace,
        Err(error) => return Some(format!("the kernel makes no user namespace: {error}")),
    };
    let tree = open_tree(CWD, dir, OpenTreeFlags::OPEN_TREE_CLONE | OpenTreeFlags::OPEN_TREE_CLOEXEC);
    let shown = tree.map_err(io::Error::from).and_then(|tree| show(&tree, &namespace));
    shown.err().map(|error| format!("the file system of {} takes no id-mapped mounts: {error}", dir.display()))
}
