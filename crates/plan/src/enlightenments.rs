//! Hyper-V's enlightenments build on each other. Who asks for one gets those below it, unless they are switched off.

use ferrovirt_api::v1::{CPUFeature, FeatureState, VirtualMachineInstanceSpec};

/// Adds what is missing. What is contradictory is left for the rules to refuse.
pub fn complete(spec: &mut VirtualMachineInstanceSpec) {
    let Some(hyperv) = spec.domain.features.as_mut().and_then(|features| features.hyperv.as_mut()) else { return };
    let on = |enabled: Option<bool>| enabled != Some(false);
    let is_on = |state: &Option<FeatureState>| state.as_ref().is_some_and(|state| on(state.enabled));
    let enable = |state: &mut Option<FeatureState>| {
        state.get_or_insert(FeatureState { enabled: Some(true) });
    };
    let evmcs = is_on(&hyperv.evmcs);
    if evmcs {
        enable(&mut hyperv.vapic);
    }
    if hyperv.synictimer.as_ref().is_some_and(|timer| on(timer.enabled)) {
        enable(&mut hyperv.synic);
    }
    let flush = hyperv.tlbflush.as_ref().is_some_and(|flush| on(flush.enabled));
    if is_on(&hyperv.ipi) || flush || is_on(&hyperv.synic) {
        enable(&mut hyperv.vpindex);
    }
    if evmcs {
        let features = &mut spec.domain.cpu.get_or_insert_default().features;
        match features.iter_mut().find(|feature| feature.name == "vmx") {
            Some(feature) => feature.policy = "require".into(),
            None => features.push(CPUFeature { name: "vmx".into(), policy: "require".into() }),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::{Value, json};

    fn completed(hyperv: Value) -> Value {
        let mut spec: VirtualMachineInstanceSpec =
            serde_json::from_value(json!({ "domain": { "features": { "hyperv": hyperv } } })).unwrap();
        complete(&mut spec);
        serde_json::to_value(spec).unwrap()["domain"].clone()
    }

    #[test]
    fn what_is_asked_for_brings_what_it_needs() {
        let domain = completed(json!({ "synictimer": {}, "evmcs": {} }));
        let hyperv = &domain["features"]["hyperv"];
        for name in ["synic", "vpindex", "vapic"] {
            assert_eq!(hyperv[name]["enabled"], true, "{name}: {hyperv}");
        }
        assert_eq!(domain["cpu"]["features"], json!([{ "name": "vmx", "policy": "require" }]));
    }

    #[test]
    fn nothing_is_added_to_what_needs_nothing_or_is_switched_off() {
        let domain = completed(json!({ "relaxed": {}, "ipi": { "enabled": false } }));
        assert_eq!(domain["features"]["hyperv"], json!({ "relaxed": {}, "ipi": { "enabled": false } }));
        let off = completed(json!({ "synic": {}, "vpindex": { "enabled": false } }));
        assert_eq!(off["features"]["hyperv"]["vpindex"]["enabled"], false);
    }
}
