//! A layer of any bytes: unpacked or refused, and nothing appears beside its root.
#![no_main]

use std::fs::{self, File};

use ferrovirt_disks::{budget::Budget, digest::Digest, unpacker::Unpacker};
use libfuzzer_sys::fuzz_target;

fuzz_target!(|bytes: &[u8]| {
    let Ok(dir) = tempfile::tempdir_in(if std::path::Path::new("/dev/shm").is_dir() { "/dev/shm" } else { "/tmp" }) else { return };
    let (root, layer) = (dir.path().join("a/b/rootfs"), dir.path().join("layer"));
    let made = fs::create_dir_all(&root).and_then(|()| fs::write(&layer, bytes)).and_then(|()| File::open(&layer));
    let Ok(file) = made else { return };
    let budget = Budget { bytes: 1 << 20, entries: 200, reserve: 0, ..Budget::default() };
    let _ = Unpacker::here(budget).layers(&[(Digest::of(bytes), file)], &root);
    let beside: Vec<_> = ["", "a", "a/b"].iter().flat_map(|at| fs::read_dir(dir.path().join(at)).into_iter().flatten().flatten()).collect();
    assert_eq!(beside.len(), 4, "something stands beside the root: {beside:?}");
});
