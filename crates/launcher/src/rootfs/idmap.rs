//! A tree of files as a mount that shows other owners than are stored.
//!
//! The kernel takes the mapping from a user namespace, and a namespace needs a process to be born in; [`hold`] is that
//! process, for a moment.

use std::fs::{self, File};
use std::io::{self, BufRead, BufReader, Read, Write};
use std::os::fd::{AsFd, OwnedFd};
use std::path::Path;
use std::process::{Command, Stdio};

use ferrovirt_machine::spec::IdRange;
use rustix::fs::CWD;
use rustix::mount::{OpenTreeFlags, open_tree};

/// Name of the subcommand that runs [`hold`].
pub const HOLDER: &str = "hold-user-namespace";
const READY: &str = "ready";

/// A detached mount of `base` on which the stored id 0 is the range's first, and so on.
pub fn map_tree(base: &Path, ids: IdRange) -> io::Result<OwnedFd> {
    let namespace = namespace(ids)?;
    let tree = open_tree(CWD, base, OpenTreeFlags::OPEN_TREE_CLONE | OpenTreeFlags::OPEN_TREE_CLOEXEC)?;
    ferrovirt_confine::map_ids(tree.as_fd(), namespace.as_fd())?;
    Ok(tree)
}

/// A user namespace with this mapping.
fn namespace(ids: IdRange) -> io::Result<File> {
    let mut holder = Command::new("/proc/self/exe").arg(HOLDER).stdin(Stdio::piped()).stdout(Stdio::piped()).spawn()?;
    let mut line = String::new();
    if let Some(output) = holder.stdout.take() {
        BufReader::new(output).read_line(&mut line)?;
    }
    if line.trim() != READY {
        return Err(io::Error::other(format!("cannot make a user namespace: {}", line.trim())));
    }
    let process = format!("/proc/{}", holder.id());
    for map in ["uid_map", "gid_map"] {
        fs::write(format!("{process}/{map}"), format!("0 {} {}\n", ids.first, ids.count))?;
    }
    // The holder ends with its input; whoever reaps this process's children collects it.
    File::open(format!("{process}/ns/user"))
}

/// Waits in a user namespace of its own until standard input ends.
pub fn hold() -> io::Result<()> {
    let said = match nix::sched::unshare(nix::sched::CloneFlags::CLONE_NEWUSER) {
        Ok(()) => READY.to_owned(),
        Err(error) => error.to_string(),
    };
    writeln!(io::stdout(), "{said}")?;
    io::stdout().flush()?;
    io::stdin().read_to_end(&mut Vec::new()).map(drop)
}
