//! One domain: a virtual machine as libvirt knows it.

use std::ffi::{c_int, c_uint};
use std::ptr::NonNull;
use std::sync::Arc;

use crate::connection::{Handle, blocking, c_string};
use crate::error::{ErrorCode, Result, last_error, owned_text, text};
use crate::{event, ffi};

#[derive(Clone)]
pub struct Domain {
    pub(crate) inner: Arc<Inner>,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Start {
    Running,
    Paused,
}

/// How the guest is asked.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum ShutdownMode {
    /// Whatever the driver has.
    Any,
    /// The power button.
    Acpi,
    /// The guest agent; blocks until it answers.
    Agent,
}

/// State and why, in libvirt's numbers where nobody decides by them.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum DomainState {
    Running,
    Paused { reason: i32 },
    ShuttingDown,
    Shutoff { reason: i32 },
    Crashed,
    PmSuspended,
    Unknown,
}

impl DomainState {
    /// `Paused { reason }` because of a disk error.
    pub const PAUSED_IO_ERROR: i32 = 5;
    /// `Paused { reason }` because somebody asked.
    pub const PAUSED_USER: i32 = 1;
    /// `Paused { reason }` because the guest panicked.
    pub const PAUSED_CRASHED: i32 = 10;
    /// `Shutoff { reason }` because the guest shut down.
    pub const SHUTOFF_SHUTDOWN: i32 = 1;
    /// `Shutoff { reason }` because it was destroyed.
    pub const SHUTOFF_DESTROYED: i32 = 2;

    fn from_raw(state: c_int, reason: c_int) -> Self {
        match state {
            1 | 2 => Self::Running,
            3 => Self::Paused { reason },
            4 => Self::ShuttingDown,
            5 => Self::Shutoff { reason },
            6 => Self::Crashed,
            7 => Self::PmSuspended,
            _ => Self::Unknown,
        }
    }
}

impl Domain {
    pub(crate) fn new(raw: NonNull<ffi::VirDomain>, connection: Arc<Handle>) -> Self {
        // SAFETY: `raw` is a live domain; the name belongs to it and is copied.
        let (name, uuid) =
            unsafe { (text(ffi::virDomainGetName(raw.as_ptr())).unwrap_or_default(), event::uuid_of(raw.as_ptr())) };
        Self { inner: Arc::new(Inner { raw, name, uuid, connection }) }
    }

    pub fn name(&self) -> &str {
        &self.inner.name
    }

    pub fn uuid(&self) -> &str {
        &self.inner.uuid
    }

    pub async fn create(&self, start: Start) -> Result<()> {
        let flags: c_uint = match start {
            Start::Running => 0,
            Start::Paused => ffi::START_PAUSED,
        };
        // SAFETY: live domain.
        self.call(move |dom| unsafe { ffi::virDomainCreateWithFlags(dom, flags) }).await
    }

    /// Asks the guest to power off; returns when it was asked, not when it is off.
    pub async fn shutdown(&self, mode: ShutdownMode) -> Result<()> {
        let flags = mode.flags();
        // SAFETY: live domain.
        self.call(move |dom| unsafe { ffi::virDomainShutdownFlags(dom, flags) }).await
    }

    /// Asks the guest to reboot.
    pub async fn reboot(&self, mode: ShutdownMode) -> Result<()> {
        let flags = mode.flags();
        // SAFETY: live domain.
        self.call(move |dom| unsafe { ffi::virDomainReboot(dom, flags) }).await
    }

    /// Ends the domain at once.
    pub async fn destroy(&self) -> Result<()> {
        // SAFETY: live domain; this ends the guest, not the handle.
        self.call(|dom| unsafe { ffi::virDomainDestroy(dom) }).await
    }

    /// Sends a signal to a process of the guest, by the guest's own number; few drivers reach inside.
    pub async fn signal(&self, process: i64, signal: u32) -> Result<()> {
        // SAFETY: live domain.
        self.call(move |dom| unsafe { ffi::virDomainSendProcessSignal(dom, process, signal, 0) }).await
    }

    pub async fn reset(&self) -> Result<()> {
        // SAFETY: live domain.
        self.call(|dom| unsafe { ffi::virDomainReset(dom, 0) }).await
    }

    pub async fn suspend(&self) -> Result<()> {
        // SAFETY: live domain.
        self.call(|dom| unsafe { ffi::virDomainSuspend(dom) }).await
    }

    pub async fn resume(&self) -> Result<()> {
        // SAFETY: live domain.
        self.call(|dom| unsafe { ffi::virDomainResume(dom) }).await
    }

    pub async fn state(&self) -> Result<DomainState> {
        let inner = self.inner.clone();
        blocking(move || {
            let (mut state, mut reason): (c_int, c_int) = (0, 0);
            // SAFETY: live domain; both pointers are to locals that outlive the call.
            if unsafe { ffi::virDomainGetState(inner.raw.as_ptr(), &raw mut state, &raw mut reason, 0) } < 0 {
                return Err(last_error());
            }
            Ok(DomainState::from_raw(state, reason))
        })
        .await
    }

    /// The XML as it is now: with addresses and defaults filled in.
    pub async fn xml_desc(&self) -> Result<String> {
        let inner = self.inner.clone();
        blocking(move || {
            // SAFETY: live domain; the returned string is ours to free.
            unsafe { owned_text(ffi::virDomainGetXMLDesc(inner.raw.as_ptr(), 0)) }.ok_or_else(last_error)
        })
        .await
    }

    /// Makes a device of the running domain, told by its alias, what the XML says.
    pub async fn update_device(&self, xml: &str) -> Result<()> {
        let xml = c_string(xml)?;
        // SAFETY: live domain, NUL-terminated text.
        self.call(move |dom| unsafe { ffi::virDomainUpdateDeviceFlags(dom, xml.as_ptr(), ffi::AFFECT_LIVE) }).await
    }

    /// Forgets the domain. Its NVRAM file stays: it belongs to whoever made it.
    pub async fn undefine(&self) -> Result<()> {
        let flags = ffi::UNDEFINE_MANAGED_SAVE | ffi::UNDEFINE_SNAPSHOTS | ffi::UNDEFINE_KEEP_NVRAM;
        // SAFETY: live domain.
        let result = self.call(move |dom| unsafe { ffi::virDomainUndefineFlags(dom, flags) }).await;
        match result {
            // Drivers without NVRAM or snapshots do not know these flags.
            Err(error) if error.code() == Some(ErrorCode::InvalidArgument) => {
                // SAFETY: live domain.
                self.call(|dom| unsafe { ffi::virDomainUndefineFlags(dom, 0) }).await
            }
            result => result,
        }
    }

    async fn call<F>(&self, call: F) -> Result<()>
    where
        F: FnOnce(*mut ffi::VirDomain) -> c_int + Send + 'static,
    {
        let inner = self.inner.clone();
        blocking(move || if call(inner.raw.as_ptr()) < 0 { Err(last_error()) } else { Ok(()) }).await
    }
}

impl std::fmt::Debug for Domain {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Domain").field("name", &self.inner.name).field("uuid", &self.inner.uuid).finish()
    }
}

impl ShutdownMode {
    fn flags(self) -> c_uint {
        match self {
            Self::Any => 0,
            Self::Acpi => ffi::SHUTDOWN_ACPI,
            Self::Agent => ffi::SHUTDOWN_AGENT,
        }
    }
}

pub(crate) struct Inner {
    pub(crate) raw: NonNull<ffi::VirDomain>,
    name: String,
    uuid: String,
    /// The domain's calls go through its connection.
    pub(crate) connection: Arc<Handle>,
}

// SAFETY: libvirt documents domain objects as usable from any thread; it locks inside.
unsafe impl Send for Inner {}
// SAFETY: as above.
unsafe impl Sync for Inner {}

impl Drop for Inner {
    fn drop(&mut self) {
        // SAFETY: this is the one reference that libvirt gave us, and nobody uses it afterwards.
        unsafe { ffi::virDomainFree(self.raw.as_ptr()) };
    }
}
