//! libvirt's errors as a Rust type.

use std::ffi::{CStr, c_char, c_int, c_void};

use crate::ffi;

pub type Result<T, E = Error> = std::result::Result<T, E>;

#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum Error {
    /// libvirt refused or failed.
    #[error("{message}")]
    Libvirt { code: ErrorCode, message: String },
    /// A string for libvirt contains a NUL byte.
    #[error("text for libvirt contains a NUL byte")]
    Nul,
    /// The async runtime is going down, or the call panicked.
    #[error("the call into libvirt was cancelled")]
    Cancelled,
}

impl Error {
    pub fn code(&self) -> Option<ErrorCode> {
        match self {
            Error::Libvirt { code, .. } => Some(*code),
            _ => None,
        }
    }
}

/// The codes that callers decide by; the rest keeps its number.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum ErrorCode {
    Internal,
    NoSupport,
    NoConnect,
    InvalidArgument,
    OperationFailed,
    Xml,
    OperationDenied,
    System,
    Rpc,
    NoDomain,
    Auth,
    OperationInvalid,
    ConfigUnsupported,
    Timeout,
    AgentUnresponsive,
    AgentUnsynced,
    /// What is needed for the call is not configured in the domain.
    ArgumentUnsupported,
    Other(i32),
}

impl ErrorCode {
    fn from_raw(code: c_int) -> Self {
        match code {
            1 => Self::Internal,
            3 => Self::NoSupport,
            5 => Self::NoConnect,
            8 => Self::InvalidArgument,
            9 => Self::OperationFailed,
            27 => Self::Xml,
            29 => Self::OperationDenied,
            38 => Self::System,
            39 => Self::Rpc,
            42 => Self::NoDomain,
            45 => Self::Auth,
            55 => Self::OperationInvalid,
            67 => Self::ConfigUnsupported,
            68 => Self::Timeout,
            74 => Self::ArgumentUnsupported,
            86 => Self::AgentUnresponsive,
            97 => Self::AgentUnsynced,
            other => Self::Other(other),
        }
    }
}

/// The error of the last libvirt call on this thread. libvirt keeps it per thread, so this must run on the thread of
/// the failed call.
pub(crate) fn last_error() -> Error {
    // SAFETY: virGetLastError returns NULL or a pointer to this thread's error, valid until the next libvirt call on
    // this thread; everything needed is copied before that.
    let error = unsafe { ffi::virGetLastError().as_ref() };
    let found = match error {
        Some(error) if error.code != 0 => Error::Libvirt {
            code: ErrorCode::from_raw(error.code),
            // SAFETY: `message` is NULL or a NUL-terminated string that lives as long as the error itself.
            message: unsafe { text(error.message) }.unwrap_or_else(|| "libvirt gave no message".into()),
        },
        _ => Error::Libvirt { code: ErrorCode::Internal, message: "libvirt gave no reason".into() },
    };
    // SAFETY: no arguments; it clears this thread's error, of which no reference is left.
    unsafe { ffi::virResetLastError() };
    found
}

/// Copies a C string that libvirt keeps.
///
/// # Safety
/// `pointer` must be NULL or point to a NUL-terminated string.
pub(crate) unsafe fn text(pointer: *const c_char) -> Option<String> {
    if pointer.is_null() {
        return None;
    }
    // SAFETY: not NULL, and NUL-terminated by this function's contract.
    Some(unsafe { CStr::from_ptr(pointer) }.to_string_lossy().into_owned())
}

/// Copies and frees a C string that libvirt gave away.
///
/// # Safety
/// `pointer` must be NULL or a NUL-terminated string from `malloc` that nobody else frees.
pub(crate) unsafe fn owned_text(pointer: *mut c_char) -> Option<String> {
    // SAFETY: forwarded from this function's contract.
    let copy = unsafe { text(pointer) };
    // SAFETY: from malloc or NULL by this function's contract, and not used afterwards.
    unsafe { ffi::free(pointer.cast::<c_void>()) };
    copy
}

/// Replaces libvirt's habit of printing every error to stderr: callers get them as values.
pub(crate) extern "C" fn ignore_error(_user: *mut c_void, _error: *const ffi::VirError) {}
