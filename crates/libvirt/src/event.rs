//! What libvirt reports by itself, and the thread that listens for it.
//!
//! libvirt's client library needs an event loop of its own kind before the first connection opens. One thread per process
//! runs it; callbacks arrive on that thread and only ever push into a channel.

use std::ffi::{c_char, c_int, c_void};
use std::sync::{Arc, LazyLock, OnceLock};
use std::time::Duration;

use tokio::sync::mpsc::{self, UnboundedReceiver, UnboundedSender};
use tokio::sync::watch;

use crate::connection::Handle;
use crate::error::{self, Error, Result, last_error, text};
use crate::ffi;

#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Event {
    /// Uuid of the domain; empty for [`EventKind::Closed`].
    pub domain: String,
    pub kind: EventKind,
}

#[derive(Debug, Clone, PartialEq, Eq)]
pub enum EventKind {
    Lifecycle(Lifecycle),
    /// The guest rebooted.
    Reboot,
    /// A disk failed; `paused` says whether libvirt paused the guest for it.
    IoError {
        path: String,
        alias: String,
        reason: String,
        paused: bool,
    },
    Agent {
        connected: bool,
    },
    /// The connection is gone: the daemon died. Nothing follows.
    Closed,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Lifecycle {
    Defined,
    Undefined,
    Started,
    Suspended(SuspendDetail),
    Resumed,
    Stopped(StopDetail),
    /// The guest has finished its shutdown; `Stopped` follows.
    Shutdown,
    PmSuspended,
    /// The guest panicked.
    Crashed,
    Other(i32),
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum StopDetail {
    Shutdown,
    Destroyed,
    Crashed,
    Migrated,
    Saved,
    Failed,
    Other(i32),
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum SuspendDetail {
    Paused,
    Migrated,
    IoError,
    Watchdog,
    Other(i32),
}

impl Lifecycle {
    fn from_raw(event: c_int, detail: c_int) -> Self {
        match event {
            0 => Self::Defined,
            1 => Self::Undefined,
            2 => Self::Started,
            3 => Self::Suspended(match detail {
                0 => SuspendDetail::Paused,
                1 => SuspendDetail::Migrated,
                2 => SuspendDetail::IoError,
                3 => SuspendDetail::Watchdog,
                other => SuspendDetail::Other(other),
            }),
            4 => Self::Resumed,
            5 => Self::Stopped(match detail {
                0 => StopDetail::Shutdown,
                1 => StopDetail::Destroyed,
                2 => StopDetail::Crashed,
                3 => StopDetail::Migrated,
                4 => StopDetail::Saved,
                5 => StopDetail::Failed,
                other => StopDetail::Other(other),
            }),
            6 => Self::Shutdown,
            7 => Self::PmSuspended,
            8 => Self::Crashed,
            other => Self::Other(other),
        }
    }
}

/// A subscription. Dropping it tells the daemon to stop sending; that is one short round trip on the caller's thread.
pub struct Events {
    receiver: UnboundedReceiver<Event>,
    connection: Arc<Handle>,
    callbacks: Vec<c_int>,
    close_registered: bool,
}

impl Events {
    /// The next event, or `None` when the connection was closed.
    pub async fn next(&mut self) -> Option<Event> {
        self.receiver.recv().await
    }

    /// Registers all callbacks. Blocks: the caller is on the blocking pool.
    pub(crate) fn register(connection: Arc<Handle>) -> Result<Self> {
        let (sender, receiver) = mpsc::unbounded_channel();
        let mut events = Self { receiver, connection, callbacks: Vec::new(), close_registered: false };
        let callbacks: [(c_int, *const c_void); 4] = [
            (ffi::EVENT_LIFECYCLE, on_lifecycle as ffi::LifecycleCallback as *const c_void),
            (ffi::EVENT_REBOOT, on_reboot as ffi::GenericCallback as *const c_void),
            (ffi::EVENT_IO_ERROR_REASON, on_io_error as ffi::IoErrorCallback as *const c_void),
            (ffi::EVENT_AGENT_LIFECYCLE, on_agent as ffi::AgentCallback as *const c_void),
        ];
        for (event_id, callback) in callbacks {
            let opaque = opaque_of(&sender);
            // SAFETY: the connection is alive (we hold it); a NULL domain means all; `callback` has the signature that
            // libvirt documents for `event_id`; `opaque` is a leaked Box that libvirt gives back once, to `drop_sender`.
            let id = unsafe {
                ffi::virConnectDomainEventRegisterAny(
                    events.connection.as_ptr(),
                    std::ptr::null_mut(),
                    event_id,
                    callback,
                    opaque,
                    drop_sender,
                )
            };
            if id >= 0 {
                events.callbacks.push(id);
                continue;
            }
            let error = last_error();
            // SAFETY: libvirt refused the registration, so it kept no copy of `opaque` and will not free it.
            drop(unsafe { Box::from_raw(opaque.cast::<UnboundedSender<Event>>()) });
            // A driver without reboot or agent events (such as `test:`) is fine, one without a lifecycle is not.
            if event_id == ffi::EVENT_LIFECYCLE {
                return Err(error);
            }
        }
        let opaque = opaque_of(&sender);
        // SAFETY: as above; a connection has at most one close callback, and a second registration is refused.
        let result =
            unsafe { ffi::virConnectRegisterCloseCallback(events.connection.as_ptr(), on_close, opaque, drop_sender) };
        if result < 0 {
            let error = last_error();
            // SAFETY: refused, so libvirt neither keeps nor frees `opaque`.
            drop(unsafe { Box::from_raw(opaque.cast::<UnboundedSender<Event>>()) });
            return Err(error);
        }
        events.close_registered = true;
        Ok(events)
    }
}

impl Drop for Events {
    fn drop(&mut self) {
        // A registered callback holds a reference to the connection, so without this the connection never closes.
        for id in self.callbacks.drain(..) {
            // SAFETY: the connection is alive and the id came from it. Failure (daemon gone) leaves nothing to undo.
            unsafe { ffi::virConnectDomainEventDeregisterAny(self.connection.as_ptr(), id) };
        }
        if self.close_registered {
            // SAFETY: the connection is alive; `on_close` was registered on it.
            unsafe { ffi::virConnectUnregisterCloseCallback(self.connection.as_ptr(), on_close) };
        }
    }
}

/// Starts libvirt and its event thread, once per process.
pub(crate) fn start_loop() -> Result<()> {
    static STARTED: OnceLock<Result<()>> = OnceLock::new();
    STARTED
        .get_or_init(|| {
            // SAFETY: first use of libvirt in this process; the handler is a static function and needs no user data.
            unsafe {
                ffi::virSetErrorFunc(std::ptr::null_mut(), Some(error::ignore_error));
                if ffi::virInitialize() < 0 || ffi::virEventRegisterDefaultImpl() < 0 {
                    return Err(last_error());
                }
            }
            std::thread::Builder::new()
                .name("libvirt-events".into())
                // The loop and our callbacks need little; the default would reserve 2 MiB per virtual machine.
                .stack_size(256 * 1024)
                .spawn(|| {
                    let mut failures = 0;
                    loop {
                        // SAFETY: the default implementation was registered above, and only this thread runs it.
                        let result =
                            if unsafe { ffi::virEventRunDefaultImpl() } < 0 { Err(last_error()) } else { Ok(()) };
                        if let Some(pause) = turned(result, &mut failures, &DEAF) {
                            std::thread::sleep(pause);
                        }
                    }
                })
                .map(drop)
                .map_err(|_| Error::Cancelled)
        })
        .clone()
}

/// Why no events come, while none do.
static DEAF: LazyLock<watch::Sender<Option<String>>> = LazyLock::new(|| watch::Sender::new(None));

/// How often in a row the loop may fail before whoever waits for events is told to look instead.
const DEAF_AFTER: u32 = 3;
const LONGEST_PAUSE: Duration = Duration::from_secs(1);

/// Why no events come, while none do: libvirt's loop fails. It is tried again for as long as the process lives.
pub fn deafness() -> watch::Receiver<Option<String>> {
    DEAF.subscribe()
}

/// Takes note of one turn of the loop. Returns how long to wait before the next one.
fn turned(result: Result<()>, failures: &mut u32, deaf: &watch::Sender<Option<String>>) -> Option<Duration> {
    let Err(error) = result else {
        *failures = 0;
        deaf.send_if_modified(|deaf| deaf.take().is_some());
        return None;
    };
    *failures = failures.saturating_add(1);
    if *failures == DEAF_AFTER {
        tracing::error!(%error, "libvirt's event loop fails; trying on");
        deaf.send_replace(Some(error.to_string()));
    }
    Some(Duration::from_millis(5 << (*failures).min(10)).min(LONGEST_PAUSE))
}

fn opaque_of(sender: &UnboundedSender<Event>) -> *mut c_void {
    Box::into_raw(Box::new(sender.clone())).cast()
}

extern "C" fn drop_sender(opaque: *mut c_void) {
    // SAFETY: libvirt calls this once per registration, with the Box that `opaque_of` leaked for it.
    drop(unsafe { Box::from_raw(opaque.cast::<UnboundedSender<Event>>()) });
}

/// Sends one event.
///
/// # Safety
/// `dom` must be NULL or a live domain, `opaque` a pointer from `opaque_of` that was not freed.
unsafe fn send(dom: *mut ffi::VirDomain, opaque: *mut c_void, kind: EventKind) {
    // SAFETY: by contract; libvirt frees the sender only after the last callback.
    let sender = unsafe { &*opaque.cast::<UnboundedSender<Event>>() };
    let domain = if dom.is_null() {
        String::new()
    } else {
        // SAFETY: not NULL, and alive by contract.
        unsafe { uuid_of(dom) }
    };
    // A closed channel means that nobody listens any more.
    let _ = sender.send(Event { domain, kind });
}

/// The uuid of a domain, as text.
///
/// # Safety
/// `dom` must be a live domain.
pub(crate) unsafe fn uuid_of(dom: *mut ffi::VirDomain) -> String {
    let mut buffer: ffi::UuidBuffer = [0; ffi::UUID_STRING_LENGTH];
    // SAFETY: the buffer has the length libvirt asks for, and `dom` is alive by contract.
    unsafe {
        if ffi::virDomainGetUUIDString(dom, buffer.as_mut_ptr().cast::<c_char>()) < 0 {
            return String::new();
        }
        text(buffer.as_ptr().cast::<c_char>()).unwrap_or_default()
    }
}

extern "C" fn on_lifecycle(
    _conn: *mut ffi::VirConnect,
    dom: *mut ffi::VirDomain,
    event: c_int,
    detail: c_int,
    opaque: *mut c_void,
) -> c_int {
    // SAFETY: libvirt passes a live domain and the opaque of this registration.
    unsafe { send(dom, opaque, EventKind::Lifecycle(Lifecycle::from_raw(event, detail))) };
    0
}

extern "C" fn on_reboot(_conn: *mut ffi::VirConnect, dom: *mut ffi::VirDomain, opaque: *mut c_void) {
    // SAFETY: libvirt passes a live domain and the opaque of this registration.
    unsafe { send(dom, opaque, EventKind::Reboot) };
}

extern "C" fn on_io_error(
    _conn: *mut ffi::VirConnect,
    dom: *mut ffi::VirDomain,
    path: *const c_char,
    alias: *const c_char,
    action: c_int,
    reason: *const c_char,
    opaque: *mut c_void,
) {
    const ACTION_PAUSE: c_int = 1;
    // SAFETY: libvirt passes a live domain, NUL-terminated strings or NULL, and the opaque of this registration.
    unsafe {
        let kind = EventKind::IoError {
            path: text(path).unwrap_or_default(),
            alias: text(alias).unwrap_or_default(),
            reason: text(reason).unwrap_or_default(),
            paused: action == ACTION_PAUSE,
        };
        send(dom, opaque, kind);
    }
}

extern "C" fn on_agent(
    _conn: *mut ffi::VirConnect,
    dom: *mut ffi::VirDomain,
    state: c_int,
    _reason: c_int,
    opaque: *mut c_void,
) {
    const CONNECTED: c_int = 1;
    // SAFETY: libvirt passes a live domain and the opaque of this registration.
    unsafe { send(dom, opaque, EventKind::Agent { connected: state == CONNECTED }) };
}

extern "C" fn on_close(_conn: *mut ffi::VirConnect, _reason: c_int, opaque: *mut c_void) {
    // SAFETY: the opaque of this registration; no domain.
    unsafe { send(std::ptr::null_mut(), opaque, EventKind::Closed) };
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_loop_that_fails_is_told_of_and_tried_again() {
        let deaf = watch::Sender::new(None);
        let mut failures = 0;
        let mut turn = |result: Result<()>| {
            let pause = turned(result, &mut failures, &deaf);
            (pause.is_some(), deaf.borrow().is_some())
        };
        assert_eq!(turn(Ok(())), (false, false));
        assert_eq!(turn(Err(Error::Cancelled)), (true, false), "once is nothing");
        assert_eq!(turn(Ok(())), (false, false));
        let seen: Vec<_> = (0..4).map(|_| turn(Err(Error::Cancelled)).1).collect();
        assert_eq!(seen, [false, false, true, true]);
        assert_eq!(turn(Ok(())), (false, false), "it works again");
        for _ in 0..100 {
            let pause = turned(Err(Error::Cancelled), &mut failures, &deaf).unwrap();
            assert!(pause > Duration::ZERO && pause <= LONGEST_PAUSE);
        }
    }
}
