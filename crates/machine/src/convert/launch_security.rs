//! Encrypted guests.

use ferrovirt_api::names;

use super::Conversion;
use crate::spec::{Arch, LaunchSecurity};

/// Bits of the guest policy in AMD's SEV interface.
const SEV_NO_DEBUG: u32 = 1 << 0;
const SEV_ENCRYPTED_STATE: u32 = 1 << 2;
/// Bits of the guest policy in AMD's SEV-SNP interface; the second must be one.
const SNP_SMT: u64 = 1 << 16;
const SNP_RESERVED: u64 = 1 << 17;

pub(super) fn convert(c: &Conversion<'_>) -> Option<LaunchSecurity> {
    let source = c.vmi.spec.domain.launch_security.as_ref()?;
    if c.ctx.arch != Arch::X86_64 {
        return None;
    }
    if let Some(sev) = &source.sev {
        let encrypted = sev.policy.as_ref().is_some_and(|policy| policy.encrypted_state == Some(true));
        let set = |text: &String| Some(text.clone()).filter(|text| !text.is_empty());
        return Some(LaunchSecurity::Sev {
            policy: SEV_NO_DEBUG | if encrypted { SEV_ENCRYPTED_STATE } else { 0 },
            dh_cert: set(&sev.dh_cert),
            session: set(&sev.session),
        });
    }
    if source.snp.is_some() {
        return Some(LaunchSecurity::SevSnp { policy: SNP_SMT | SNP_RESERVED });
    }
    source.tdx.as_ref()?;
    let annotations = c.vmi.metadata.annotations.as_ref();
    let quote_socket = annotations.and_then(|annotations| annotations.get(names::QGS_SOCKET_PATH_ANNOTATION));
    Some(LaunchSecurity::Tdx { quote_socket: quote_socket.cloned().filter(|path| !path.is_empty()) })
}
