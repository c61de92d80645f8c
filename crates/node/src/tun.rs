//! The device through which a launcher opens the tap that was made for it.
//!
//! A container runtime gives containers no `/dev/net/tun`, although it lets them use one (runc's default device rules do).
//! Whoever opens it can do no more than attach to taps that belong to its user.
//!
//! Root works here below directories of tenants: by descriptor only.

use std::{ffi::OsStr, io};

use ferrovirt_beneath::Dir;
use rustix::{
    fs::{FileType, OFlags, Stat, fstat, makedev},
    io::Errno,
};

use crate::process::Process;

const DIRECTORY: &str = "dev/net";
const NAME: &str = "tun";
const DEVICE: (u32, u32) = (10, 200);

/// Makes the device in a launcher's file tree if it is not there.
pub(crate) fn provide(launcher: &Process) -> io::Result<()> {
    // One that was put there from outside may be a mount of its own.
    let there = launcher.open_plain(&format!("{DIRECTORY}/{NAME}"), OFlags::PATH | OFlags::NOFOLLOW);
    if there.is_ok_and(|there| fstat(there).is_ok_and(|stat| is_it(&stat))) {
        return Ok(());
    }
    let open = |path| launcher.open_plain(path, OFlags::RDONLY | OFlags::DIRECTORY);
    let directory = match open(DIRECTORY) {
        Err(Errno::NOENT) => Dir::from_fd(open("dev")?)?.make_one(OsStr::new("net"), 0o755)?.0,
        other => Dir::from_fd(other?)?,
    };
    make(&directory)
}

/// Whatever else has the name goes. Between that and the making, the launcher may put something there again: then its mode
/// and what it names stay as they are, and this is an error.
fn make(directory: &Dir) -> io::Result<()> {
    match directory.stat(NAME) {
        Ok(stat) if is_it(&stat) => return Ok(()),
        Ok(_) => directory.remove_file(NAME)?,
        Err(error) if error.kind() == io::ErrorKind::NotFound => {}
        Err(error) => return Err(error),
    }
    directory.make_device(NAME, 0o666, makedev(DEVICE.0, DEVICE.1))
}

fn is_it(stat: &Stat) -> bool {
    FileType::from_raw_mode(stat.st_mode) == FileType::CharacterDevice && stat.st_rdev == makedev(DEVICE.0, DEVICE.1)
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::{FileTypeExt, MetadataExt, PermissionsExt, symlink};

    use super::*;

    #[test]
    fn a_link_named_tun_gives_nobody_the_mode_of_a_device() {
        let home = tempfile::tempdir().unwrap();
        let secret = home.path().join("secret");
        std::fs::write(&secret, "x").unwrap();
        std::fs::set_permissions(&secret, std::fs::Permissions::from_mode(0o600)).unwrap();
        let net = home.path().join("net");
        std::fs::create_dir(&net).unwrap();
        symlink(&secret, net.join(NAME)).unwrap();
        let directory = Dir::open(&net).unwrap();
        // The race: the link is there again when the device should be made.
        assert!(directory.make_device(NAME, 0o666, makedev(DEVICE.0, DEVICE.1)).is_err());
        assert_eq!(std::fs::metadata(&secret).unwrap().mode() & 0o777, 0o600);
        make(&directory).unwrap();
        let made = std::fs::symlink_metadata(net.join(NAME)).unwrap();
        assert!(made.file_type().is_char_device());
        assert_eq!((made.rdev(), made.mode() & 0o777), (makedev(10, 200), 0o666));
        assert_eq!(std::fs::metadata(&secret).unwrap().mode() & 0o777, 0o600);
        make(&directory).unwrap();
    }
}
