//! The CustomResourceDefinitions of the kinds that are served, generated from upstream's schemas.

use serde_json::Value;

macro_rules! definitions {
    ($($name:literal),* $(,)?) => {
        /// Each definition as JSON text, by the file's name.
        const DEFINITIONS: &[(&str, &str)] = &[$(($name, include_str!(concat!("../crds/", $name, ".json")))),*];
    };
}

definitions![
    "cdi",
    "cdiconfig",
    "datasource",
    "datavolume",
    "kubevirt",
    "storageprofile",
    "virtualmachine",
    "virtualmachineclusterinstancetype",
    "virtualmachineclusterpreference",
    "virtualmachineinstance",
    "virtualmachineinstancemigration",
    "virtualmachineinstancepreset",
    "virtualmachineinstancereplicaset",
    "virtualmachineinstancetype",
    "virtualmachinepreference",
];

/// All definitions, parsed anew: they are large, are needed once, and are not kept.
pub fn crds() -> Vec<Value> {
    // The files are part of the build and a test parses each of them.
    DEFINITIONS.iter().filter_map(|(_, text)| serde_json::from_str(text).ok()).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_definition_parses_and_names_its_kind() {
        for (name, text) in DEFINITIONS {
            let crd: Value = serde_json::from_str(text).unwrap_or_else(|e| panic!("{name}: {e}"));
            assert_eq!(crd["kind"], "CustomResourceDefinition", "{name}");
            assert_eq!(crd["spec"]["names"]["singular"], *name);
        }
        assert_eq!(crds().len(), DEFINITIONS.len());
    }

    #[test]
    fn the_additive_field_is_in_the_schema() {
        let crds = crds();
        let vmi = crds.iter().find(|crd| crd["spec"]["names"]["kind"] == "VirtualMachineInstance").unwrap();
        let spec = &vmi["spec"]["versions"][0]["schema"]["openAPIV3Schema"]["properties"]["spec"]["properties"];
        assert_eq!(spec["hypervisor"]["type"], "string");
    }
}
