//! What a VM asks for that cannot be done here. It is kept, said in a warning and a condition, and does not start.

use ferrovirt_api::v1::VirtualMachine;
use ferrovirt_machine::{convert::FieldError, features};

const TEMPLATE: &str = "spec.template.spec";

/// Every field of the VM that asks for behaviour we lack. An unknown hypervisor is not among them: that is refused.
pub fn fields(vm: &VirtualMachine) -> Vec<FieldError> {
    let mut fields = vec![];
    let own = [
        (vm.spec.instancetype.is_some(), "spec.instancetype", "instance types are stored, but not applied yet"),
        (vm.spec.preference.is_some(), "spec.preference", "preferences are stored, but not applied yet"),
        (
            vm.spec.update_volumes_strategy.as_deref() == Some("Migration"),
            "spec.updateVolumesStrategy",
            "volumes cannot be moved while the guest runs",
        ),
    ];
    for (asked, field, reason) in own {
        if asked {
            fields.push(FieldError { field: field.into(), message: reason.into() });
        }
    }
    let template = vm.spec.template.iter().flat_map(|t| features::unsupported_in(&t.spec, TEMPLATE));
    fields.extend(template.filter(|error| !is_hypervisor(error)));
    fields
}

/// Why the VM's hypervisor cannot be chosen, if so.
pub fn hypervisor(vm: &VirtualMachine) -> Option<FieldError> {
    let spec = &vm.spec.template.as_ref()?.spec;
    features::unsupported_in(spec, TEMPLATE).into_iter().find(is_hypervisor)
}

fn is_hypervisor(error: &FieldError) -> bool {
    error.field == format!("{TEMPLATE}.hypervisor")
}

/// One line for people: each field with its reason.
pub fn describe(fields: &[FieldError]) -> String {
    let lines: Vec<String> = fields.iter().map(|e| format!("{}: {}", e.field, e.message)).collect();
    lines.join("; ")
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    #[test]
    fn own_fields_and_those_of_the_template_are_named_and_the_hypervisor_is_apart() {
        let mut vm: VirtualMachine = serde_json::from_value(json!({ "spec": {
            "instancetype": { "name": "x" },
            "template": { "spec": { "domain": { "cpu": { "realtime": {} } } } },
        }}))
        .unwrap();
        let found: Vec<String> = fields(&vm).into_iter().map(|e| e.field).collect();
        assert_eq!(found, ["spec.instancetype", "spec.template.spec.domain.cpu.realtime"]);
        assert_eq!(hypervisor(&vm), None);
        vm.spec.template.as_mut().unwrap().spec.hypervisor = Some("none-such".into());
        assert_eq!(hypervisor(&vm).unwrap().field, "spec.template.spec.hypervisor");
        assert_eq!(fields(&vm).len(), 1);
    }
}
