//! Definitions and what kube-apiserver 1.36 says to them.

use ferrovirt_schema::cause::summary;

use super::*;

/// A definition with one version, as it is when it comes to validation.
fn with(version: &Value, spec: &Value) -> Value {
    let mut crd = json!({
        "metadata": {"name": "as.example.com"},
        "spec": {
            "group": "example.com", "scope": "Namespaced", "names": {"plural": "as", "kind": "As"},
            "versions": [{"name": "v1", "served": true, "storage": true, "schema": {"openAPIV3Schema": {"type": "object"}}}],
        },
    });
    ferrovirt_schema::patch::merge_patch(&mut crd["spec"]["versions"][0], version).unwrap();
    ferrovirt_schema::patch::merge_patch(&mut crd, &json!({"spec": spec})).unwrap();
    settled(crd)
}

fn settled(mut crd: Value) -> Value {
    crate::crd::defaults(&mut crd);
    let versions = crd["spec"]["versions"].as_array().unwrap();
    let stored: Vec<&Value> = versions.iter().filter(|v| v["storage"] == true).map(|v| &v["name"]).collect();
    crd["status"] = json!({"storedVersions": stored});
    crd
}

fn of_schema(schema: &Value) -> Value {
    let mut crd = with(&json!({}), &json!({}));
    crd["spec"]["versions"][0]["schema"]["openAPIV3Schema"] = schema.clone();
    crd
}

/// The schema of an object with the field `a`.
fn field(a: Value) -> Value {
    json!({"type": "object", "properties": {"a": a}})
}

/// One line per cause: field, reason, message.
fn told(crd: &Value) -> Vec<String> {
    validate(crd, None).iter().map(|c| format!("{} {} {}", c.field, c.kind.as_str(), c.message)).collect()
}

fn check_schema(schema: &Value, expected: &[&str]) {
    let expected: Vec<String> = expected.iter().map(|line| format!("spec.validation.openAPIV3Schema{line}")).collect();
    assert_eq!(told(&of_schema(schema)), expected, "{schema}");
}

#[test]
fn schemas_have_the_shape_that_objects_need() {
    let cases: Vec<(Value, &[&str])> = vec![
        (json!({"type": "string"}), &[".type FieldValueInvalid Invalid value: \"string\": must be object at the root"]),
        (
            json!({"properties": {"a": {"type": "string"}}}),
            &[".type FieldValueRequired Required value: must not be empty at the root"],
        ),
        (
            field(json!({})),
            &[".properties[a].type FieldValueRequired Required value: must not be empty for specified object fields"],
        ),
        (
            field(json!({"type": "nonsense"})),
            &[
                ".properties[a].type FieldValueNotSupported Unsupported value: \"nonsense\": supported values: \"array\", \"boolean\", \"integer\", \"number\", \"object\", \"string\"",
            ],
        ),
        (
            field(json!({"type": "array"})),
            &[".properties[a].items FieldValueRequired Required value: must be specified"],
        ),
        (
            field(json!({"type": "array", "items": [{"type": "string"}]})),
            &[".properties[a].items FieldValueForbidden Forbidden: items must be a schema object and not an array"],
        ),
        (
            field(json!({"type": "string", "pattern": "("})),
            &[
                ".properties[a].pattern FieldValueInvalid Invalid value: \"(\": must be a valid regular expression, but isn't: error parsing regexp: missing closing ): `(`",
            ],
        ),
        (
            field(
                json!({"type": "object", "properties": {"x": {"type": "string"}}, "additionalProperties": {"type": "string"}}),
            ),
            &[
                ".properties[a].additionalProperties FieldValueForbidden Forbidden: additionalProperties and properties are mutual exclusive",
            ],
        ),
        (
            json!({"type": "object", "properties": {"metadata": {"type": "object", "properties": {"labels": {"type": "object"}}}}}),
            &[
                ".properties[metadata] FieldValueForbidden Forbidden: must not specify anything other than name and generateName, but metadata is implicitly specified",
            ],
        ),
        (json!({"type": "object", "$ref": "#/x"}), &[".$ref FieldValueForbidden Forbidden: $ref is not supported"]),
        (
            field(json!({"type": "string", "uniqueItems": true})),
            &[
                ".properties[a].uniqueItems FieldValueForbidden Forbidden: uniqueItems cannot be set to true since the runtime complexity becomes quadratic",
            ],
        ),
        (
            json!({"type": "object", "nullable": true}),
            &[".nullable FieldValueForbidden Forbidden: nullable cannot be true at the root"],
        ),
        (
            json!({"type": "object", "additionalProperties": true}),
            &[".additionalProperties FieldValueForbidden Forbidden: must not be used at the root"],
        ),
        (
            field(json!({"type": "object", "x-kubernetes-preserve-unknown-fields": false})),
            &[
                ".properties[a].x-kubernetes-preserve-unknown-fields FieldValueInvalid Invalid value: false: must be true or undefined",
            ],
        ),
        (
            field(json!({"type": "object", "x-kubernetes-embedded-resource": true})),
            &[
                ".properties[a].properties FieldValueRequired Required value: must not be empty if x-kubernetes-embedded-resource is true without x-kubernetes-preserve-unknown-fields",
            ],
        ),
        (
            field(json!({"type": "string", "anyOf": [{"type": "string", "description": "x"}, {"default": 1}]})),
            &[
                ".properties[a].anyOf[0].description FieldValueForbidden Forbidden: must be empty to be structural",
                ".properties[a].anyOf[0].type FieldValueForbidden Forbidden: must be empty to be structural",
                ".properties[a].anyOf[1].default FieldValueForbidden Forbidden: must be undefined to be structural",
            ],
        ),
        (
            json!({"type": "object", "oneOf": [{"properties": {"b": {"minimum": 1}}}]}),
            &[
                ".properties[b] FieldValueRequired Required value: because it is defined in spec.validation.openAPIV3Schema.oneOf[0].properties[b]",
            ],
        ),
        (
            json!({"type": "object", "properties": {"kind": {"type": "integer"}, "metadata": {"type": "object", "default": {}}}}),
            &[
                ".properties[kind].type FieldValueInvalid Invalid value: \"integer\": must be string",
                ".properties[metadata].default FieldValueForbidden Forbidden: must not be set in top-level metadata",
            ],
        ),
    ];
    for (schema, expected) in cases {
        check_schema(&schema, expected);
    }
}

#[test]
fn lists_and_maps_can_be_merged_as_they_say() {
    let map = |keys: Value, items: Value| {
        field(
            json!({"type": "array", "items": items, "x-kubernetes-list-type": "map", "x-kubernetes-list-map-keys": keys}),
        )
    };
    let cases: Vec<(Value, &[&str])> = vec![
        (
            field(json!({"type": "string", "x-kubernetes-list-type": "map"})),
            &[
                ".properties[a].type FieldValueInvalid Invalid value: \"string\": must be array if x-kubernetes-list-type is specified",
                ".properties[a].x-kubernetes-list-map-keys FieldValueRequired Required value: must not be empty if x-kubernetes-list-type is map",
                ".properties[a].items FieldValueRequired Required value: must have a schema if x-kubernetes-list-type is map",
            ],
        ),
        (
            field(json!({"type": "array", "items": {"type": "string"}, "x-kubernetes-list-type": "map"})),
            &[
                ".properties[a].x-kubernetes-list-map-keys FieldValueRequired Required value: must not be empty if x-kubernetes-list-type is map",
                ".properties[a].items.type FieldValueInvalid Invalid value: \"string\": must be object if parent array's x-kubernetes-list-type is map",
            ],
        ),
        (
            field(json!({"type": "array", "items": {"type": "object"}, "x-kubernetes-list-type": "set"})),
            &[
                ".properties[a].items.x-kubernetes-map-type FieldValueInvalid Invalid value: null: must be atomic as item of a list with x-kubernetes-list-type=set",
            ],
        ),
        (
            map(json!(["x"]), json!({"type": "object", "properties": {"y": {"type": "string"}}})),
            &[
                ".properties[a].x-kubernetes-list-map-keys FieldValueInvalid Invalid value: [\"x\"]: entries must all be names of item properties",
            ],
        ),
        (
            map(json!(["x"]), json!({"type": "object", "properties": {"x": {"type": "string"}}})),
            &[
                ".properties[a].items.properties[x].default FieldValueRequired Required value: this property is in x-kubernetes-list-map-keys, so it must have a default or be a required property",
            ],
        ),
        (map(json!(["x"]), json!({"type": "object", "required": ["x"], "properties": {"x": {"type": "string"}}})), &[]),
        (map(json!(["x"]), json!({"type": "object", "properties": {"x": {"type": "string", "default": "d"}}})), &[]),
        (
            field(
                json!({"type": "array", "items": {"type": "string", "nullable": true}, "x-kubernetes-list-type": "set"}),
            ),
            &[
                ".properties[a].items.nullable FieldValueForbidden Forbidden: cannot be nullable when x-kubernetes-list-type is set",
            ],
        ),
        (
            field(json!({"type": "array", "items": {"type": "string"}, "x-kubernetes-list-type": "bag"})),
            &[
                ".properties[a].x-kubernetes-list-type FieldValueNotSupported Unsupported value: \"bag\": supported values: \"atomic\", \"set\", \"map\"",
            ],
        ),
        (
            field(json!({"type": "string", "x-kubernetes-map-type": "odd"})),
            &[
                ".properties[a].type FieldValueInvalid Invalid value: \"string\": must be object if x-kubernetes-map-type is specified",
                ".properties[a].x-kubernetes-map-type FieldValueNotSupported Unsupported value: \"odd\": supported values: \"atomic\", \"granular\"",
            ],
        ),
        (
            field(json!({"type": "array", "items": {"type": "string"}, "x-kubernetes-list-map-keys": ["x"]})),
            &[
                ".properties[a].x-kubernetes-list-type FieldValueRequired Required value: must be map if x-kubernetes-list-map-keys is non-empty",
            ],
        ),
    ];
    for (schema, expected) in cases {
        check_schema(&schema, expected);
    }
}

#[test]
fn defaults_fit_their_schema() {
    let cases: Vec<(Value, &[&str])> = vec![
        (
            field(json!({"type": "string", "default": 5})),
            &[
                ".properties[a].default FieldValueTypeInvalid Invalid value: \"integer\":  in body must be of type string: \"integer\"",
            ],
        ),
        (
            field(json!({"type": "object", "default": {"x": 1}})),
            &[".properties[a].default FieldValueInvalid Invalid value: {\"x\":1}: must not have unknown fields"],
        ),
        (
            field(
                json!({"type": "object", "required": ["x"], "properties": {"x": {"type": "string", "default": "d"}}, "default": {}}),
            ),
            &[".properties[a].default.x FieldValueRequired Required value"],
        ),
        (
            field(
                json!({"type": "integer", "default": 1, "x-kubernetes-validations": [{"rule": "self > 1", "message": "more"}]}),
            ),
            &[".properties[a].default FieldValueInvalid Invalid value: \"integer\": more"],
        ),
        (
            field(
                json!({"type": "array", "items": {"type": "string"}, "x-kubernetes-list-type": "set", "default": ["x", "x"]}),
            ),
            &[],
        ),
        (field(json!({"x-kubernetes-int-or-string": true, "default": "10%"})), &[]),
        (field(json!({"type": "object", "x-kubernetes-preserve-unknown-fields": true, "default": {"x": 1}})), &[]),
        (field(json!({"type": "string", "default": null})), &[]),
    ];
    for (schema, expected) in cases {
        check_schema(&schema, expected);
    }
}

#[test]
fn rules_compile_to_bool() {
    let rules = |rules: Value| json!({"type": "object", "properties": {"n": {"type": "integer"}}, "x-kubernetes-validations": rules});
    let one = |rule: &str| rules(json!([{"rule": rule}]));
    let shown = |rule: &str| {
        format!(
            "Invalid value: {{\"Rule\":\"{rule}\",\"Message\":\"\",\"MessageExpression\":\"\",\"Reason\":null,\"FieldPath\":\"\",\"OptionalOldSelf\":null}}"
        )
    };
    let at = ".x-kubernetes-validations[0]";
    check_schema(&one("self.n > 1"), &[]);
    check_schema(&one(""), &[&format!("{at}.rule FieldValueRequired Required value: rule is not specified")]);
    let none = format!(
        "{at}.rule FieldValueInvalid {}: compilation failed: ERROR: <input>:1:5: undefined field 'none'\n | self.none\n | ....^",
        shown("self.none")
    );
    check_schema(&one("self.none"), &[&none]);
    let sum = format!("{at}.rule FieldValueInvalid {}: cel expression must evaluate to a bool", shown("1 + 1"));
    check_schema(&one("1 + 1"), &[&sum]);
    // The parser's words are its own.
    let causes = validate(&of_schema(&one("(")), None);
    assert_eq!(
        (causes.len(), causes[0].field.as_str()),
        (1, "spec.validation.openAPIV3Schema.x-kubernetes-validations[0].rule")
    );
    assert!(causes[0].message.contains("compilation failed"), "{}", causes[0].message);

    let cases: Vec<(Value, &[&str])> = vec![
        (
            json!([{"rule": "true", "reason": "Odd", "fieldPath": ".none", "message": " "}]),
            &[
                ".message FieldValueInvalid Invalid value: \" \": must be non-empty if specified",
                ".reason FieldValueNotSupported Unsupported value: \"Odd\": supported values: \"FieldValueDuplicate\", \"FieldValueForbidden\", \"FieldValueInvalid\", \"FieldValueRequired\"",
                ".fieldPath FieldValueInvalid Invalid value: \".none\": must be a valid path",
            ],
        ),
        (
            json!([{"rule": "true\n|| false"}]),
            &[".message FieldValueRequired Required value: message must be specified if rule contains line breaks"],
        ),
        (
            json!([{"rule": "true", "optionalOldSelf": true}]),
            &[".optionalOldSelf FieldValueInvalid Invalid value: true: may not be set if oldSelf is not used in rule"],
        ),
    ];
    for (given, expected) in cases {
        let expected: Vec<String> = expected.iter().map(|line| format!("{at}{line}")).collect();
        check_schema(&rules(given), &expected.iter().map(String::as_str).collect::<Vec<_>>());
    }
    let item = json!({"type": "string", "maxLength": 10, "x-kubernetes-validations": [{"rule": "self == oldSelf"}]});
    check_schema(
        &field(json!({"type": "array", "maxItems": 10, "items": item})),
        &[
            ".properties[a].items.x-kubernetes-validations[0].rule FieldValueInvalid Invalid value: \"self == oldSelf\": oldSelf cannot be used on the uncorrelatable portion of the schema within spec.validation.openAPIV3Schema.properties[a]",
        ],
    );
}

#[test]
fn definitions_are_told_what_is_wrong_with_them() {
    let label = "a DNS-1035 label must consist of lower case alphanumeric characters or '-', start with an alphabetic character, and end with an alphanumeric character (e.g. 'my-name',  or 'abc-123', regex used for validation is '[a-z]([-a-z0-9]*[a-z0-9])?')";
    let none = json!({});
    // (version, spec, fields and reasons)
    let cases: Vec<(Value, Value, &[&str])> = vec![
        (none.clone(), none.clone(), &[]),
        (none.clone(), json!({"scope": "Nonsense"}), &["spec.scope FieldValueNotSupported"]),
        (none.clone(), json!({"group": ""}), &["metadata.name FieldValueInvalid", "spec.group FieldValueRequired"]),
        (
            json!({"served": false, "storage": false}),
            none.clone(),
            &["spec.versions FieldValueInvalid", "status.storedVersions FieldValueInvalid"],
        ),
        (
            json!({"name": "Bad"}),
            none.clone(),
            &["spec.versions[0].name FieldValueInvalid", "spec.version FieldValueInvalid"],
        ),
        (none.clone(), json!({"preserveUnknownFields": true}), &["spec.preserveUnknownFields FieldValueInvalid"]),
        (
            none.clone(),
            json!({"names": {"plural": "As", "kind": "as"}}),
            &["metadata.name FieldValueInvalid", "spec.names.plural FieldValueInvalid"],
        ),
        (none.clone(), json!({"names": {"plural": "bs", "kind": "B"}}), &["metadata.name FieldValueInvalid"]),
        (
            none.clone(),
            json!({"conversion": {"strategy": "Webhook"}}),
            &[
                "spec.conversion.webhookClientConfig FieldValueRequired",
                "spec.conversion.conversionReviewVersions FieldValueRequired",
            ],
        ),
        (
            json!({"subresources": {"scale": {"specReplicasPath": "x", "statusReplicasPath": ".status.replicas"}}}),
            none.clone(),
            &["spec.subresources.scale.specReplicasPath FieldValueInvalid"],
        ),
        (
            json!({"subresources": {"scale": {"specReplicasPath": ".status.x", "labelSelectorPath": ".x"}}}),
            none.clone(),
            &[
                "spec.subresources.scale.specReplicasPath FieldValueInvalid",
                "spec.subresources.scale.statusReplicasPath FieldValueRequired",
                "spec.subresources.scale.labelSelectorPath FieldValueInvalid",
            ],
        ),
        (
            json!({"additionalPrinterColumns": [{"name": "A", "type": "nonsense", "jsonPath": ".a"}, {"name": "B", "type": "date", "jsonPath": "b"}]}),
            none.clone(),
            &[
                "spec.additionalPrinterColumns[0].type FieldValueInvalid",
                "spec.additionalPrinterColumns[1].JSONPath FieldValueInvalid",
            ],
        ),
        (
            json!({"selectableFields": [{"jsonPath": ".spec.none"}]}),
            none.clone(),
            &["spec.selectableFields[0].jsonPath FieldValueInvalid"],
        ),
        (
            json!({"deprecationWarning": "old"}),
            none.clone(),
            &["spec.versions[0].deprecationWarning FieldValueInvalid"],
        ),
        (
            json!({"subresources": {"status": {}}, "schema": {"openAPIV3Schema": {"minProperties": 1}}}),
            none.clone(),
            &["spec.validation.openAPIV3Schema FieldValueInvalid"],
        ),
        (json!({"schema": null}), none.clone(), &["spec.versions[0].schema.openAPIV3Schema FieldValueRequired"]),
    ];
    for (version, spec, expected) in cases {
        let causes = validate(&with(&version, &spec), None);
        let found: Vec<String> = causes.iter().map(|c| format!("{} {}", c.field, c.kind.as_str())).collect();
        assert_eq!(found, expected, "{version} {spec}");
    }
    let causes = validate(&with(&json!({"name": "Bad"}), &none), None);
    assert_eq!(
        summary(&causes),
        format!(
            "[spec.versions[0].name: Invalid value: \"Bad\": {label}, spec.version: Invalid value: \"Bad\": {label}]"
        )
    );
}

#[test]
fn groups_of_the_community_want_its_approval() {
    let crd = |annotation: Option<&str>| {
        let mut crd = with(&json!({}), &json!({"group": "x.k8s.io"}));
        crd["metadata"] = json!({"name": "as.x.k8s.io", "annotations": {APPROVED: annotation}});
        crd
    };
    let cases: [(Option<&str>, &[&str]); 4] = [
        (None, &["FieldValueRequired"]),
        (Some("yes"), &["FieldValueInvalid"]),
        (Some("unapproved, a test"), &[]),
        (Some("https://github.com/kubernetes/kubernetes/pull/1"), &[]),
    ];
    for (annotation, expected) in cases {
        let found: Vec<&str> = validate(&crd(annotation), None).iter().map(|c| c.kind.as_str()).collect();
        assert_eq!(found, expected, "{annotation:?}");
    }
    assert_eq!(validate(&crd(None), Some(&crd(None))), []);
}

#[test]
fn versions_that_differ_are_told_apart() {
    let mut crd = of_schema(&field(json!({"type": "array"})));
    let mut second = crd["spec"]["versions"][0].clone();
    second["name"] = "v2".into();
    second["storage"] = false.into();
    crd["spec"]["versions"].as_array_mut().unwrap().push(second);
    let fields = |crd: &Value| validate(crd, None).into_iter().map(|c| c.field).collect::<Vec<_>>();
    assert_eq!(fields(&crd), ["spec.validation.openAPIV3Schema.properties[a].items"]);
    crd["spec"]["versions"][1]["schema"]["openAPIV3Schema"]["description"] = "Other.".into();
    assert_eq!(
        fields(&crd),
        [0, 1].map(|index| format!("spec.versions[{index}].schema.openAPIV3Schema.properties[a].items"))
    );
}

#[test]
fn what_is_stored_may_stay_and_what_holds_objects_may_not_change() {
    let mut old = of_schema(&field(json!({"type": "array"})));
    old["status"]["conditions"] = json!([{"type": "Established", "status": "True"}]);
    let fields = |new: &Value| validate(new, Some(&old)).into_iter().map(|c| c.field).collect::<Vec<_>>();
    let changed = |path: &str, value: Value| {
        let mut new = old.clone();
        *new.pointer_mut(path).unwrap() = value;
        new
    };
    assert_eq!(fields(&old), [""; 0]);
    assert_eq!(fields(&changed("/spec/scope", "Cluster".into())), ["spec.scope"]);
    assert_eq!(fields(&changed("/spec/group", "other".into())), ["spec.group", "spec.group"]);
    assert_eq!(fields(&changed("/spec/names/plural", "bs".into())), ["spec.names.plural"]);
    assert_eq!(
        fields(&changed(
            "/spec/versions/0/schema/openAPIV3Schema/properties/a",
            json!({"type": "array", "nullable": true})
        )),
        ["spec.validation.openAPIV3Schema.properties[a].items"]
    );
    assert_eq!(
        fields(&changed("/spec/versions/0/name", "v2".into())),
        ["spec.validation.openAPIV3Schema.properties[a].items", "status.storedVersions[0]"]
    );
}
