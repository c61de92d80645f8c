//! A disk in memory that can lose power and run full.
//!
//! What was not synced is lost in part: of each file's unsynced writes any of the 512-byte sectors may have arrived,
//! and any of them may be torn; of the directory's changes any may be missing.

use std::collections::BTreeMap;
use std::io;
use std::path::PathBuf;
use std::sync::{Arc, Mutex, MutexGuard};

use ferrovirt_store::{Files, LogFile};

const SECTOR: usize = 512;

#[derive(Clone, Default)]
pub struct Disk(Arc<Mutex<State>>);

#[derive(Default)]
struct State {
    inodes: Vec<Inode>,
    names: BTreeMap<String, usize>,
    durable_names: BTreeMap<String, usize>,
    unsynced_names: Vec<Renaming>,
    /// Counts power cuts: what was opened before the last one does not work any more.
    boot: u64,
    room: Option<usize>,
    fail_sync: bool,
    /// Operations until the power fails by itself.
    fuse: Option<u64>,
    cut: bool,
}

#[derive(Clone, Default)]
struct Inode {
    content: Vec<u8>,
    durable: Vec<u8>,
    unsynced: Vec<Pending>,
}

/// A name goes from a file, or comes to one, or both at once.
struct Renaming {
    old: Option<String>,
    new: Option<String>,
    inode: usize,
}

#[derive(Clone)]
enum Pending {
    Write(usize, Vec<u8>),
    Length(usize),
}

/// Small and the same everywhere; the seed is printed by the tests that use it.
pub struct Random(pub u64);

impl Random {
    pub fn below(&mut self, limit: u64) -> u64 {
        self.0 = self.0.wrapping_add(0x9E37_79B9_7F4A_7C15);
        let mut z = self.0;
        z = (z ^ (z >> 30)).wrapping_mul(0xBF58_476D_1CE4_E5B9);
        z = (z ^ (z >> 27)).wrapping_mul(0x94D0_49BB_1331_11EB);
        (z ^ (z >> 31)) % limit.max(1)
    }
}

impl Disk {
    /// The files as the system that is running now sees them.
    pub fn mount(&self) -> Arc<dyn Files> {
        let boot = self.lock().boot;
        Arc::new(Mounted { disk: self.clone(), boot })
    }

    /// Another disk with the same files.
    pub fn copy(&self) -> Self {
        let state = self.lock();
        let (inodes, names) = (state.inodes.clone(), state.names.clone());
        Self(Arc::new(Mutex::new(State { inodes, durable_names: names.clone(), names, ..State::default() })))
    }

    /// The power fails after so many more operations.
    pub fn light_fuse(&self, operations: u64) {
        self.lock().fuse = Some(operations);
    }

    /// Only the process ends: the system still has what was not synced, and may lose it later.
    pub fn process_crash(&self) {
        let mut state = self.lock();
        state.boot += 1;
        state.cut = false;
        state.fuse = None;
    }

    /// The power fails, if it did not yet, and comes back.
    pub fn power_cut(&self, random: &mut Random) {
        let mut state = self.lock();
        state.boot += 1;
        state.cut = false;
        state.fuse = None;
        for Renaming { old, new, inode } in std::mem::take(&mut state.unsynced_names) {
            if random.below(2) == 0 {
                continue;
            }
            if let Some(old) = old.filter(|old| state.durable_names.get(old) == Some(&inode)) {
                state.durable_names.remove(&old);
            }
            if let Some(new) = new {
                state.durable_names.insert(new, inode);
            }
        }
        state.names = state.durable_names.clone();
        for inode in &mut state.inodes {
            let mut content = std::mem::take(&mut inode.durable);
            for pending in std::mem::take(&mut inode.unsynced) {
                match pending {
                    Pending::Length(length) if random.below(2) == 0 => content.resize(length, 0),
                    Pending::Length(_) => {}
                    Pending::Write(offset, bytes) => {
                        let mut at = 0;
                        while at < bytes.len() {
                            let sector = (SECTOR - (offset + at) % SECTOR).min(bytes.len() - at);
                            let arrived = match random.below(8) {
                                0..3 => 0,
                                3 => random.below(sector as u64) as usize,
                                _ => sector,
                            };
                            write(&mut content, offset + at, &bytes[at..at + arrived]);
                            at += sector;
                        }
                    }
                }
            }
            inode.content = content.clone();
            inode.durable = content;
        }
    }

    /// No file may grow beyond this many bytes in all.
    pub fn set_room(&self, room: Option<usize>) {
        self.lock().room = room;
    }

    pub fn used(&self) -> usize {
        let state = self.lock();
        state.names.values().map(|&inode| state.inodes[inode].content.len()).sum()
    }

    pub fn fail_sync(&self, fail: bool) {
        self.lock().fail_sync = fail;
    }

    pub fn names(&self) -> Vec<String> {
        self.lock().names.keys().cloned().collect()
    }

    /// Changes a file behind the store's back.
    pub fn tamper(&self, name: &str, change: impl FnOnce(&mut Vec<u8>)) {
        let mut state = self.lock();
        let inode = state.names[name];
        let inode = &mut state.inodes[inode];
        change(&mut inode.content);
        inode.durable = inode.content.clone();
        inode.unsynced.clear();
    }

    fn lock(&self) -> MutexGuard<'_, State> {
        self.0.lock().unwrap()
    }
}

impl State {
    fn alive(&mut self, boot: u64) -> io::Result<()> {
        if let Some(fuse) = &mut self.fuse {
            match fuse.checked_sub(1) {
                Some(left) => *fuse = left,
                None => self.cut = true,
            }
        }
        if self.cut || self.boot != boot { Err(io::Error::other("no power")) } else { Ok(()) }
    }

    fn has_room(&self, inode: usize, length: usize) -> io::Result<()> {
        let used: usize = self.names.values().map(|&other| self.inodes[other].content.len()).sum();
        let growth = length.saturating_sub(self.inodes[inode].content.len());
        match self.room {
            Some(room) if growth > 0 && used + growth > room => Err(io::ErrorKind::StorageFull.into()),
            _ => Ok(()),
        }
    }

    fn rename(&mut self, old: Option<&str>, new: Option<&str>, inode: usize) {
        if let Some(old) = old {
            self.names.remove(old);
        }
        if let Some(new) = new {
            self.names.insert(new.into(), inode);
        }
        self.unsynced_names.push(Renaming { old: old.map(Into::into), new: new.map(Into::into), inode });
    }
}

struct Mounted {
    disk: Disk,
    boot: u64,
}

impl Mounted {
    fn state(&self) -> io::Result<MutexGuard<'_, State>> {
        let mut state = self.disk.lock();
        state.alive(self.boot)?;
        Ok(state)
    }

    fn handle(&self, inode: usize) -> Box<dyn LogFile> {
        Box::new(Handle { disk: self.disk.clone(), boot: self.boot, inode })
    }
}

fn lookup(state: &State, name: &str) -> io::Result<usize> {
    state.names.get(name).copied().ok_or_else(|| io::ErrorKind::NotFound.into())
}

impl Files for Mounted {
    fn names(&self) -> io::Result<Vec<String>> {
        Ok(self.state()?.names.keys().cloned().collect())
    }

    fn read(&self, name: &str) -> io::Result<Vec<u8>> {
        let state = self.state()?;
        Ok(state.inodes[lookup(&state, name)?].content.clone())
    }

    fn create(&self, name: &str) -> io::Result<Box<dyn LogFile>> {
        let mut state = self.state()?;
        let inode = state.inodes.len();
        state.inodes.push(Inode::default());
        state.rename(None, Some(name), inode);
        Ok(self.handle(inode))
    }

    fn open(&self, name: &str) -> io::Result<Box<dyn LogFile>> {
        let inode = lookup(&*self.state()?, name)?;
        Ok(self.handle(inode))
    }

    fn rename(&self, from: &str, to: &str) -> io::Result<()> {
        let mut state = self.state()?;
        let inode = lookup(&state, from)?;
        state.rename(Some(from), Some(to), inode);
        Ok(())
    }

    fn remove(&self, name: &str) -> io::Result<()> {
        let mut state = self.state()?;
        let inode = lookup(&state, name)?;
        state.rename(Some(name), None, inode);
        Ok(())
    }

    fn sync_dir(&self) -> io::Result<()> {
        let mut state = self.state()?;
        state.durable_names = state.names.clone();
        state.unsynced_names.clear();
        Ok(())
    }

    fn path(&self, name: &str) -> PathBuf {
        PathBuf::from("/disk").join(name)
    }
}

struct Handle {
    disk: Disk,
    boot: u64,
    inode: usize,
}

impl Handle {
    fn state(&self) -> io::Result<MutexGuard<'_, State>> {
        let mut state = self.disk.lock();
        state.alive(self.boot)?;
        Ok(state)
    }
}

impl LogFile for Handle {
    fn write_at(&mut self, offset: u64, bytes: &[u8]) -> io::Result<()> {
        let mut state = self.state()?;
        let offset = offset as usize;
        // A full disk takes the first part of a write.
        let full = state.has_room(self.inode, offset + bytes.len());
        let bytes = if full.is_err() { &bytes[..bytes.len() / 2] } else { bytes };
        let inode = &mut state.inodes[self.inode];
        write(&mut inode.content, offset, bytes);
        inode.unsynced.push(Pending::Write(offset, bytes.to_vec()));
        full
    }

    fn allocate(&mut self, _: u64, len: u64) -> io::Result<()> {
        let mut state = self.state()?;
        state.has_room(self.inode, len as usize)?;
        let inode = &mut state.inodes[self.inode];
        let len = inode.content.len().max(len as usize);
        inode.content.resize(len, 0);
        inode.unsynced.push(Pending::Length(len));
        Ok(())
    }

    fn set_len(&mut self, len: u64) -> io::Result<()> {
        let mut state = self.state()?;
        let inode = &mut state.inodes[self.inode];
        inode.content.resize(len as usize, 0);
        inode.unsynced.push(Pending::Length(len as usize));
        Ok(())
    }

    fn sync(&mut self) -> io::Result<()> {
        let mut state = self.state()?;
        if state.fail_sync {
            return Err(io::Error::other("the disk does not answer"));
        }
        let inode = &mut state.inodes[self.inode];
        inode.durable = inode.content.clone();
        inode.unsynced.clear();
        Ok(())
    }
}

fn write(content: &mut Vec<u8>, offset: usize, bytes: &[u8]) {
    if bytes.is_empty() {
        return;
    }
    let end = offset + bytes.len();
    if content.len() < end {
        content.resize(end, 0);
    }
    content[offset..end].copy_from_slice(bytes);
}
