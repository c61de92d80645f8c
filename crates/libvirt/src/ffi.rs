//! Declarations of libvirt's C interface, by hand.
//!
//! Source of truth: `libvirt/libvirt-domain.h`, `libvirt-host.h`, `libvirt-event.h`, `libvirt-common.h` and
//! `virterror.h` of libvirt 9.0. libvirt promises that its ABI stays compatible, so older declarations fit newer
//! libraries.

use std::ffi::{c_char, c_int, c_longlong, c_uchar, c_uint, c_ulong, c_ulonglong, c_ushort, c_void};

/// A connection; libvirt owns what is inside.
#[repr(C)]
pub struct VirConnect {
    _private: [u8; 0],
}

/// A domain; libvirt owns what is inside.
#[repr(C)]
pub struct VirDomain {
    _private: [u8; 0],
}

/// A stream of bytes from or to the daemon; libvirt owns what is inside.
#[repr(C)]
pub struct VirStream {
    _private: [u8; 0],
}

/// `struct _virDomainStatsRecord`: the counters of one domain.
#[repr(C)]
pub struct VirDomainStatsRecord {
    pub dom: *mut VirDomain,
    pub params: *mut VirTypedParameter,
    pub nparams: c_int,
}

/// `virDomainInfo`.
#[repr(C)]
#[derive(Default)]
pub struct VirDomainInfo {
    pub state: c_uchar,
    /// KiB.
    pub max_mem: c_ulong,
    /// KiB.
    pub memory: c_ulong,
    pub nr_virt_cpu: c_ushort,
    /// Nanoseconds.
    pub cpu_time: c_ulonglong,
}

/// `struct _virTypedParameter`: a name, and a value whose type `kind` tells.
#[repr(C)]
pub struct VirTypedParameter {
    pub field: [c_char; 80],
    pub kind: c_int,
    pub value: VirTypedValue,
}

#[repr(C)]
#[derive(Clone, Copy)]
pub union VirTypedValue {
    pub i: c_int,
    pub ui: c_uint,
    pub l: i64,
    pub ul: u64,
    pub d: f64,
    pub b: c_char,
    pub s: *mut c_char,
}

pub const PARAM_INT: c_int = 1;
pub const PARAM_UINT: c_int = 2;
pub const PARAM_LLONG: c_int = 3;
pub const PARAM_ULLONG: c_int = 4;
pub const PARAM_DOUBLE: c_int = 5;
pub const PARAM_BOOLEAN: c_int = 6;
pub const PARAM_STRING: c_int = 7;

/// The beginning of `struct _virError`. It is only ever read behind a pointer that libvirt gave us, so the fields after
/// these three need no declaration.
#[repr(C)]
pub struct VirError {
    pub code: c_int,
    pub domain: c_int,
    pub message: *const c_char,
}

pub const UUID_STRING_LENGTH: usize = 37;

pub const START_PAUSED: c_uint = 1;
pub const AFFECT_LIVE: c_uint = 1;
pub const SHUTDOWN_ACPI: c_uint = 1;
pub const SHUTDOWN_AGENT: c_uint = 2;
pub const UNDEFINE_MANAGED_SAVE: c_uint = 1;
pub const UNDEFINE_SNAPSHOTS: c_uint = 2;
pub const UNDEFINE_KEEP_NVRAM: c_uint = 8;

pub const EVENT_LIFECYCLE: c_int = 0;
pub const EVENT_REBOOT: c_int = 1;
pub const EVENT_IO_ERROR_REASON: c_int = 6;
pub const EVENT_AGENT_LIFECYCLE: c_int = 18;

pub type FreeCallback = extern "C" fn(opaque: *mut c_void);
pub type CloseCallback = extern "C" fn(conn: *mut VirConnect, reason: c_int, opaque: *mut c_void);
pub type ErrorFunc = extern "C" fn(user: *mut c_void, error: *const VirError);
pub type LifecycleCallback = extern "C" fn(
    conn: *mut VirConnect,
    dom: *mut VirDomain,
    event: c_int,
    detail: c_int,
    opaque: *mut c_void,
) -> c_int;
pub type GenericCallback = extern "C" fn(conn: *mut VirConnect, dom: *mut VirDomain, opaque: *mut c_void);
pub type IoErrorCallback = extern "C" fn(
    conn: *mut VirConnect,
    dom: *mut VirDomain,
    path: *const c_char,
    alias: *const c_char,
    action: c_int,
    reason: *const c_char,
    opaque: *mut c_void,
);
pub type AgentCallback =
    extern "C" fn(conn: *mut VirConnect, dom: *mut VirDomain, state: c_int, reason: c_int, opaque: *mut c_void);

#[link(name = "virt")]
unsafe extern "C" {
    pub fn virInitialize() -> c_int;
    pub fn virGetLastError() -> *const VirError;
    pub fn virResetLastError();
    pub fn virSetErrorFunc(user: *mut c_void, handler: Option<ErrorFunc>);

    pub fn virEventRegisterDefaultImpl() -> c_int;
    pub fn virEventRunDefaultImpl() -> c_int;

    pub fn virConnectOpen(uri: *const c_char) -> *mut VirConnect;
    pub fn virConnectClose(conn: *mut VirConnect) -> c_int;
    pub fn virConnectGetCapabilities(conn: *mut VirConnect) -> *mut c_char;
    pub fn virConnectGetDomainCapabilities(
        conn: *mut VirConnect,
        emulator: *const c_char,
        arch: *const c_char,
        machine: *const c_char,
        virt_type: *const c_char,
        flags: c_uint,
    ) -> *mut c_char;
    pub fn virConnectBaselineHypervisorCPU(
        conn: *mut VirConnect,
        emulator: *const c_char,
        arch: *const c_char,
        machine: *const c_char,
        virt_type: *const c_char,
        cpus: *const *const c_char,
        count: c_uint,
        flags: c_uint,
    ) -> *mut c_char;
    pub fn virConnectGetLibVersion(conn: *mut VirConnect, version: *mut c_ulong) -> c_int;
    pub fn virConnectGetVersion(conn: *mut VirConnect, version: *mut c_ulong) -> c_int;
    pub fn virConnectRegisterCloseCallback(
        conn: *mut VirConnect,
        callback: CloseCallback,
        opaque: *mut c_void,
        free: FreeCallback,
    ) -> c_int;
    pub fn virConnectUnregisterCloseCallback(conn: *mut VirConnect, callback: CloseCallback) -> c_int;
    /// `callback` is declared as the generic type in C as well and is really one of the typed callbacks, by event id.
    pub fn virConnectDomainEventRegisterAny(
        conn: *mut VirConnect,
        dom: *mut VirDomain,
        event_id: c_int,
        callback: *const c_void,
        opaque: *mut c_void,
        free: FreeCallback,
    ) -> c_int;
    pub fn virConnectDomainEventDeregisterAny(conn: *mut VirConnect, callback_id: c_int) -> c_int;

    pub fn virDomainDefineXML(conn: *mut VirConnect, xml: *const c_char) -> *mut VirDomain;
    pub fn virDomainLookupByName(conn: *mut VirConnect, name: *const c_char) -> *mut VirDomain;
    pub fn virDomainFree(dom: *mut VirDomain) -> c_int;
    pub fn virDomainGetName(dom: *mut VirDomain) -> *const c_char;
    pub fn virDomainGetUUIDString(dom: *mut VirDomain, buffer: *mut c_char) -> c_int;
    pub fn virDomainCreateWithFlags(dom: *mut VirDomain, flags: c_uint) -> c_int;
    pub fn virDomainShutdownFlags(dom: *mut VirDomain, flags: c_uint) -> c_int;
    pub fn virDomainReboot(dom: *mut VirDomain, flags: c_uint) -> c_int;
    pub fn virDomainDestroy(dom: *mut VirDomain) -> c_int;
    pub fn virDomainReset(dom: *mut VirDomain, flags: c_uint) -> c_int;
    pub fn virDomainSendProcessSignal(dom: *mut VirDomain, pid: c_longlong, signal: c_uint, flags: c_uint) -> c_int;
    pub fn virDomainSuspend(dom: *mut VirDomain) -> c_int;
    pub fn virDomainResume(dom: *mut VirDomain) -> c_int;
    pub fn virDomainGetState(dom: *mut VirDomain, state: *mut c_int, reason: *mut c_int, flags: c_uint) -> c_int;
    pub fn virDomainGetInfo(dom: *mut VirDomain, info: *mut VirDomainInfo) -> c_int;
    pub fn virDomainGetXMLDesc(dom: *mut VirDomain, flags: c_uint) -> *mut c_char;
    pub fn virDomainUndefineFlags(dom: *mut VirDomain, flags: c_uint) -> c_int;
    pub fn virDomainUpdateDeviceFlags(dom: *mut VirDomain, xml: *const c_char, flags: c_uint) -> c_int;
    pub fn virDomainScreenshot(
        dom: *mut VirDomain,
        stream: *mut VirStream,
        screen: c_uint,
        flags: c_uint,
    ) -> *mut c_char;
    pub fn virDomainListGetStats(
        doms: *mut *mut VirDomain,
        stats: c_uint,
        records: *mut *mut *mut VirDomainStatsRecord,
        flags: c_uint,
    ) -> c_int;
    pub fn virDomainStatsRecordListFree(records: *mut *mut VirDomainStatsRecord);

    pub fn virStreamNew(conn: *mut VirConnect, flags: c_uint) -> *mut VirStream;
    pub fn virStreamRecv(stream: *mut VirStream, data: *mut c_char, nbytes: usize) -> c_int;
    pub fn virStreamFinish(stream: *mut VirStream) -> c_int;
    pub fn virStreamAbort(stream: *mut VirStream) -> c_int;
    pub fn virStreamFree(stream: *mut VirStream) -> c_int;
}

#[link(name = "virt-qemu")]
unsafe extern "C" {
    pub fn virDomainQemuAgentCommand(
        dom: *mut VirDomain,
        command: *const c_char,
        timeout: c_int,
        flags: c_uint,
    ) -> *mut c_char;
}

unsafe extern "C" {
    /// libvirt hands out strings from `malloc`.
    pub fn free(pointer: *mut c_void);
}

/// Keeps the byte type of a UUID buffer visible to readers: libvirt writes text, not raw bytes, into it.
pub type UuidBuffer = [c_uchar; UUID_STRING_LENGTH];
