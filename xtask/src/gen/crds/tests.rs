use super::*;

const OUR_DESCRIPTIONS: &str = include_str!("../../../descriptions.yaml");

fn checked_in(kind: &CrdKind) -> Value {
    let path = format!("../crates/api/crds/{}.json", kind.singular());
    serde_json::from_str(&fs::read_to_string(&path).expect(&path)).expect(&path)
}

fn upstream() -> Value {
    json!({
        "description": "prose", "type": "object",
        "properties": {
            "spec": {"type": "object", "description": "prose", "properties": {
                "description": {"type": "string", "description": "prose"},
                "domain": {"type": "object", "properties": {"cores": {"type": "integer"}}},
                "sizes": {"type": "array", "items": {"type": "object", "properties": {
                    "size": {"x-kubernetes-int-or-string": true, "description": "prose",
                             "anyOf": [{"type": "integer"}, {"type": "string", "description": "prose"}]},
                }}},
            }},
        },
    })
}

fn vmi() -> &'static CrdKind {
    KINDS.iter().find(|k| k.kind == "VirtualMachineInstance").expect("a kind of ours")
}

#[test]
fn upstream_prose_goes_and_the_field_called_description_stays() {
    let expected = json!({
        "type": "object",
        "properties": {
            "spec": {"type": "object", "properties": {
                "description": {"type": "string"},
                "domain": {"type": "object", "properties": {"cores": {"type": "integer"}}},
                "sizes": {"type": "array", "items": {"type": "object", "properties": {
                    "size": {"x-kubernetes-int-or-string": true, "anyOf": [{"type": "integer"}, {"type": "string"}]},
                }}},
            }},
        },
    });
    assert_eq!(without_descriptions(&upstream()), expected);
}

#[test]
fn ours_is_upstream_plus_additions() {
    let descriptions = Descriptions::from([
        ("*".to_owned(), "kind".to_owned()),
        ("VirtualMachineInstance.spec.sizes.size".to_owned(), "through a list".to_owned()),
        ("VirtualMachine.spec".to_owned(), "another kind's".to_owned()),
    ]);
    let built = build_schema(vmi(), &upstream(), &descriptions).expect("builds");
    assert_eq!(built["description"], "kind");
    let size = &built["properties"]["spec"]["properties"]["sizes"]["items"]["properties"]["size"];
    assert_eq!(size["description"], "through a list");
    assert_eq!(built["properties"]["spec"]["description"], Value::Null);

    let mut bare = without_descriptions(&built);
    let rules = bare["properties"]["spec"].as_object_mut().expect("a spec").remove("x-kubernetes-validations");
    assert!(rules.is_some_and(|rules| rules.to_string().contains("hypervisor")), "it cannot be changed");
    let spec = bare["properties"]["spec"]["properties"].as_object_mut().expect("fields");
    assert_eq!(spec.remove("hypervisor"), Some(json!({"type": "string"})));
    assert_eq!(bare, without_descriptions(&upstream()));
}

#[test]
fn a_description_of_nothing_is_refused() {
    let descriptions = Descriptions::from([("VirtualMachineInstance.spec.domian".to_owned(), "typo".to_owned())]);
    let error = build_schema(vmi(), &upstream(), &descriptions).expect_err("refused");
    assert!(format!("{error:#}").contains("spec.domian"), "{error:#}");
}

#[test]
fn lint_finds_what_an_api_server_would_refuse() {
    for (schema, expected) in [
        (json!({}), ".: no type"),
        (json!({"type": "array"}), ".: a list without items"),
        (json!({"type": "object", "properties": {"a": {}}}), ".a: no type"),
        (json!({"type": "object", "additionalProperties": {"type": "array"}}), "{}: a list without items"),
        (json!({"type": "object", "properties": {}, "additionalProperties": {"type": "string"}}), ".: both properties"),
        (json!({"type": "array", "items": {"type": "object"}, "x-kubernetes-list-type": "map"}), ".: a map list"),
        (json!({"type": "object", "anyOf": [{"type": "object"}]}), ".: a structural keyword"),
        (json!({"type": "string", "anyOf": [{"default": "x"}]}), ".: a structural keyword"),
        (
            json!({"type": "object", "properties": {"metadata": {"type": "object", "description": "x"}}}),
            ".metadata: description",
        ),
    ] {
        let problems = lint(&schema);
        assert!(problems.iter().any(|p| p.starts_with(expected)), "{schema}: {problems:?}");
    }
    assert_eq!(lint(&json!({"x-kubernetes-int-or-string": true, "anyOf": [{"type": "integer"}]})), [""; 0]);
}

#[test]
fn checked_in_definitions_are_structural_and_speak_only_our_words() {
    let ours: Descriptions = serde_saphyr::from_str(OUR_DESCRIPTIONS).expect("descriptions.yaml");
    for kind in KINDS {
        let crd = checked_in(kind);
        let versions = crd["spec"]["versions"].as_array().expect("versions");
        assert_eq!(versions.iter().filter(|v| v["storage"] == true).count(), 1, "{}", kind.kind);
        for version in versions {
            let schema = &version["schema"]["openAPIV3Schema"];
            assert_eq!(lint(schema), [""; 0], "{}", kind.kind);
            let mut texts = Vec::new();
            collect_descriptions(schema, &mut texts);
            assert!(texts.len() > 3, "{}: hardly described", kind.kind);
            for text in texts {
                assert!(ours.values().any(|o| *o == text), "{}: not ours: {text}", kind.kind);
            }
        }
    }
}

#[test]
fn a_vmi_spec_is_the_same_wherever_it_is_embedded() {
    let mut specs = KINDS.iter().flat_map(|kind| {
        let mut schema = checked_in(kind)["spec"]["versions"][0]["schema"]["openAPIV3Schema"].clone();
        kind.vmi_specs
            .iter()
            .map(|path| lookup(&mut schema, path).expect(path)["properties"].clone())
            .collect::<Vec<_>>()
    });
    let first = specs.next().expect("one");
    assert_eq!(first["hypervisor"]["type"], "string");
    let names = |v: &Value| v.as_object().expect("fields").keys().cloned().collect::<Vec<_>>();
    let mut others = 0;
    for other in specs {
        assert_eq!(names(&other), names(&first));
        others += 1;
    }
    assert_eq!(others, 2);
}

/// Walks the schema as plain JSON, so that it does not share a blind spot with the code under test.
fn collect_descriptions(value: &Value, out: &mut Vec<String>) {
    match value {
        Value::Object(map) => {
            for (key, inner) in map {
                match inner {
                    Value::String(text) if key == "description" => out.push(text.clone()),
                    _ => collect_descriptions(inner, out),
                }
            }
        }
        Value::Array(items) => items.iter().for_each(|i| collect_descriptions(i, out)),
        _ => {}
    }
}

/// Paths of all fields, through lists and maps.
fn fields(schema: &Value, path: &str, found: &mut Vec<String>) {
    match (schema.get("properties").and_then(Value::as_object), schema.get("items"), schema.get("additionalProperties"))
    {
        (Some(properties), ..) => {
            for (name, field) in properties {
                let path = format!("{path}.{name}");
                fields(field, &path, found);
                found.push(path);
            }
        }
        (None, Some(inner), _) | (None, None, Some(inner)) => fields(inner, path, found),
        (None, None, None) => {}
    }
}

#[test]
fn a_template_of_a_volume_keeps_all_that_a_volume_may_say() {
    let schema = |file: &str| -> Value {
        let text = fs::read_to_string(format!("../crates/api/crds/{file}.json")).expect(file);
        let definition: Value = serde_json::from_str(&text).expect(file);
        definition["spec"]["versions"][0]["schema"]["openAPIV3Schema"]["properties"]["spec"].clone()
    };
    let (mut volume, mut template) = (vec![], vec![]);
    fields(&schema("datavolume"), "", &mut volume);
    let templates = &schema("virtualmachine")["properties"]["dataVolumeTemplates"]["items"]["properties"]["spec"];
    fields(templates, "", &mut template);
    assert!(volume.contains(&".source.http.checksum".to_owned()));
    let dropped: Vec<&String> = volume.iter().filter(|field| !template.contains(field)).collect();
    assert!(dropped.is_empty(), "{dropped:?}");
}
