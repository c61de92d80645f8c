//! Platform and paravirtual features: ACPI, APIC, SMM, Hyper-V enlightenments.

use ferrovirt_api::v1;

use super::{Conversion, arch};
use crate::spec::{Features, Hyperv, Spinlocks, SynicTimer, TlbFlush, VendorId};

pub(super) fn convert(c: &Conversion<'_>) -> Features {
    let Some(source) = &c.vmi.spec.domain.features else {
        return Features::default();
    };
    let passthrough = source.hyperv_passthrough.as_ref().is_some_and(|p| p.enabled == Some(true));
    let hyperv = match &source.hyperv {
        Some(source) => Some(hyperv(source)),
        None => passthrough.then(|| Hyperv { passthrough, ..Hyperv::default() }),
    };
    // QEMU does not start an emulated machine with them: they are KVM's.
    let hyperv = hyperv.filter(|_| !c.ctx.adapts_to_emulation());
    Features {
        acpi: on(source.acpi.enabled),
        apic: source.apic.as_ref().is_some_and(|apic| on(apic.enabled)),
        smm: source.smm.as_ref().is_some_and(|smm| on(smm.enabled)),
        hyperv,
        kvm_hidden: source.kvm.as_ref().map(|kvm| kvm.hidden),
        kvm_hint_dedicated: None,
        pv_spinlock: state(&source.pvspinlock),
        pmu: c.ctx.use_launch_security_tdx.then_some(false),
        vm_port: arch::has_vm_port(c.ctx.arch).then_some(false),
    }
}

fn hyperv(source: &v1::FeatureHyperv) -> Hyperv {
    Hyperv {
        passthrough: false,
        relaxed: state(&source.relaxed),
        vapic: state(&source.vapic),
        spinlocks: source
            .spinlocks
            .as_ref()
            .map(|spinlocks| Spinlocks { enabled: on(spinlocks.enabled), retries: spinlocks.spinlocks }),
        vpindex: state(&source.vpindex),
        runtime: state(&source.runtime),
        synic: state(&source.synic),
        synic_timer: source
            .synictimer
            .as_ref()
            .map(|timer| SynicTimer { enabled: on(timer.enabled), direct: state(&timer.direct) }),
        reset: state(&source.reset),
        vendor_id: source
            .vendorid
            .as_ref()
            .map(|vendor| VendorId { enabled: on(vendor.enabled), value: vendor.vendorid.clone() }),
        frequencies: state(&source.frequencies),
        reenlightenment: state(&source.reenlightenment),
        tlb_flush: source.tlbflush.as_ref().map(|flush| TlbFlush {
            enabled: on(flush.enabled),
            direct: state(&flush.direct),
            extended: state(&flush.extended),
        }),
        ipi: state(&source.ipi),
        evmcs: state(&source.evmcs),
    }
}

/// A feature that is named is on unless it says otherwise.
fn on(enabled: Option<bool>) -> bool {
    enabled.unwrap_or(true)
}

fn state(feature: &Option<v1::FeatureState>) -> Option<bool> {
    feature.as_ref().map(|feature| on(feature.enabled))
}
