//! A connection to a libvirt daemon (or to an in-process driver).

use std::ffi::{CString, c_char, c_uint, c_ulong};
use std::ptr::NonNull;
use std::sync::Arc;

use crate::domain::Domain;
use crate::error::{Error, Result, last_error, owned_text};
use crate::event::{self, Events};
use crate::ffi;

/// Cheap to clone; the connection closes with its last clone, domain and subscription.
#[derive(Clone)]
pub struct Connection {
    handle: Arc<Handle>,
}

/// Versions as libvirt counts them: `major * 1_000_000 + minor * 1_000 + release`.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Versions {
    pub libvirt: u64,
    pub hypervisor: u64,
}

impl Connection {
    pub async fn open(uri: &str) -> Result<Self> {
        let uri = c_string(uri)?;
        blocking(move || {
            event::start_loop()?;
            // SAFETY: libvirt is initialized and `uri` is NUL-terminated for the length of the call.
            let raw = unsafe { ffi::virConnectOpen(uri.as_ptr()) };
            let raw = NonNull::new(raw).ok_or_else(last_error)?;
            Ok(Self { handle: Arc::new(Handle(raw)) })
        })
        .await
    }

    /// All events of all domains from now on. One subscription per connection: a second one is refused.
    pub async fn subscribe(&self) -> Result<Events> {
        let handle = self.handle.clone();
        blocking(move || Events::register(handle)).await
    }

    /// Makes a persistent domain of the XML, or updates the one with the same uuid.
    pub async fn define(&self, xml: &str) -> Result<Domain> {
        let xml = c_string(xml)?;
        // SAFETY: live connection, NUL-terminated text.
        self.domain(move |conn| unsafe { ffi::virDomainDefineXML(conn, xml.as_ptr()) }).await
    }

    pub async fn domain_by_name(&self, name: &str) -> Result<Domain> {
        let name = c_string(name)?;
        // SAFETY: live connection, NUL-terminated text.
        self.domain(move |conn| unsafe { ffi::virDomainLookupByName(conn, name.as_ptr()) }).await
    }

    /// The host's capabilities, as XML.
    pub async fn capabilities(&self) -> Result<String> {
        let handle = self.handle.clone();
        blocking(move || {
            // SAFETY: live connection; the returned string is ours to free.
            unsafe { owned_text(ffi::virConnectGetCapabilities(handle.as_ptr())) }.ok_or_else(last_error)
        })
        .await
    }

    /// What one emulator can do with one virtualization type (`kvm`, `qemu`, …), as XML.
    pub async fn domain_capabilities(&self, arch: &str, machine: Option<&str>, virt_type: &str) -> Result<String> {
        let handle = self.handle.clone();
        let arch = c_string(arch)?;
        let machine = machine.map(c_string).transpose()?;
        let virt_type = c_string(virt_type)?;
        blocking(move || {
            let machine = machine.as_ref().map_or(std::ptr::null(), |m| m.as_ptr());
            // SAFETY: live connection, NUL-terminated texts or NULL; the returned string is ours to free.
            unsafe {
                owned_text(ffi::virConnectGetDomainCapabilities(
                    handle.as_ptr(),
                    std::ptr::null::<c_char>(),
                    arch.as_ptr(),
                    machine,
                    virt_type.as_ptr(),
                    0,
                ))
            }
            .ok_or_else(last_error)
        })
        .await
    }

    /// A CPU with every feature spelled out that this hypervisor can give to a guest with it. Both are XML.
    pub async fn expand_cpu(&self, cpu: &str, virt_type: &str) -> Result<String> {
        /// `VIR_CONNECT_BASELINE_CPU_EXPAND_FEATURES`
        const EXPAND: c_uint = 1;
        let handle = self.handle.clone();
        let (cpu, virt_type) = (c_string(cpu)?, c_string(virt_type)?);
        blocking(move || {
            let (none, cpus) = (std::ptr::null::<c_char>(), [cpu.as_ptr()]);
            // SAFETY: live connection, NUL-terminated texts or NULL, one pointer in the list; the returned string is ours to free.
            unsafe {
                owned_text(ffi::virConnectBaselineHypervisorCPU(
                    handle.as_ptr(),
                    none,
                    none,
                    none,
                    virt_type.as_ptr(),
                    cpus.as_ptr(),
                    1,
                    EXPAND,
                ))
            }
            .ok_or_else(last_error)
        })
        .await
    }

    pub async fn versions(&self) -> Result<Versions> {
        let handle = self.handle.clone();
        blocking(move || {
            let (mut libvirt, mut hypervisor): (c_ulong, c_ulong) = (0, 0);
            // SAFETY: live connection; both pointers are to locals that outlive the calls.
            let failed = unsafe {
                ffi::virConnectGetLibVersion(handle.as_ptr(), &raw mut libvirt) < 0
                    || ffi::virConnectGetVersion(handle.as_ptr(), &raw mut hypervisor) < 0
            };
            if failed { Err(last_error()) } else { Ok(Versions { libvirt, hypervisor }) }
        })
        .await
    }

    async fn domain<F>(&self, call: F) -> Result<Domain>
    where
        F: FnOnce(*mut ffi::VirConnect) -> *mut ffi::VirDomain + Send + 'static,
    {
        let handle = self.handle.clone();
        blocking(move || {
            let raw = NonNull::new(call(handle.as_ptr())).ok_or_else(last_error)?;
            Ok(Domain::new(raw, handle))
        })
        .await
    }
}

impl std::fmt::Debug for Connection {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("Connection")
    }
}

/// The owned `virConnectPtr`.
pub(crate) struct Handle(NonNull<ffi::VirConnect>);

impl Handle {
    pub(crate) fn as_ptr(&self) -> *mut ffi::VirConnect {
        self.0.as_ptr()
    }
}

// SAFETY: libvirt documents connection objects as usable from any thread; it locks inside.
unsafe impl Send for Handle {}
// SAFETY: as above.
unsafe impl Sync for Handle {}

impl Drop for Handle {
    fn drop(&mut self) {
        // SAFETY: this is the one reference that virConnectOpen gave us, and nobody uses it afterwards.
        unsafe { ffi::virConnectClose(self.as_ptr()) };
    }
}

/// Runs a libvirt call where it may block.
pub(crate) async fn blocking<T, F>(call: F) -> Result<T>
where
    T: Send + 'static,
    F: FnOnce() -> Result<T> + Send + 'static,
{
    tokio::task::spawn_blocking(call).await.unwrap_or(Err(Error::Cancelled))
}

/// The same for a call whose end a guest decides about: on a thread of its own, so that it takes none of the few from others.
pub(crate) async fn apart<T, F>(call: F) -> Result<T>
where
    T: Send + 'static,
    F: FnOnce() -> Result<T> + Send + 'static,
{
    const STACK: usize = 256 << 10;
    /// More than these wait for each other.
    static ROOM: tokio::sync::Semaphore = tokio::sync::Semaphore::const_new(16);
    let Ok(_place) = ROOM.acquire().await else { return Err(Error::Cancelled) };
    let (done, end) = tokio::sync::oneshot::channel();
    let thread = std::thread::Builder::new().name("guest-call".into()).stack_size(STACK);
    // Nobody hears it any more if whoever asked gave up.
    let started = thread.spawn(move || drop(done.send(call())));
    match started {
        Ok(_) => end.await.unwrap_or(Err(Error::Cancelled)),
        Err(_) => Err(Error::Cancelled),
    }
}

pub(crate) fn c_string(text: &str) -> Result<CString> {
    CString::new(text).map_err(|_| Error::Nul)
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use std::sync::mpsc;

    use super::*;

    #[test]
    fn guests_that_do_not_answer_take_no_thread_from_others() {
        let runtime = tokio::runtime::Builder::new_current_thread().max_blocking_threads(1).build().unwrap();
        runtime.block_on(async {
            let (silent, calls): (Vec<_>, Vec<_>) = (0..8)
                .map(|_| {
                    let (answer, heard) = mpsc::channel::<u32>();
                    (answer, tokio::spawn(apart(move || heard.recv().map_err(|_| Error::Cancelled))))
                })
                .unzip();
            assert_eq!(blocking(|| Ok(1)).await.unwrap(), 1, "others go on");
            silent.iter().for_each(|answer| answer.send(7).unwrap());
            for call in calls {
                assert_eq!(call.await.unwrap().unwrap(), 7);
            }
        });
    }
}
