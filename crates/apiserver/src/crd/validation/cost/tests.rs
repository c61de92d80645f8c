//! The numbers are kube-apiserver 1.36's own: of its unit tests, and of what it answers for the definitions at the end.

use kube_cel::cel::Program;
use serde_json::json;

use super::*;

fn cost(schema: &Value, rule: &str) -> u64 {
    let own = Declaration::of(schema, false).unwrap();
    most(Program::compile(rule).unwrap().expression(), &own, false)
}

fn list(items: Value, most: Option<u64>) -> Value {
    let mut schema = json!({"type": "array", "items": items});
    if let Some(most) = most {
        schema["maxItems"] = json!(most);
    }
    schema
}

fn map(values: Value, most: Option<u64>) -> Value {
    let mut schema = json!({"type": "object", "additionalProperties": values});
    if let Some(most) = most {
        schema["maxProperties"] = json!(most);
    }
    schema
}

fn string(most: Option<u64>) -> Value {
    let mut schema = json!({"type": "string"});
    if let Some(most) = most {
        schema["maxLength"] = json!(most);
    }
    schema
}

fn simple(of: &str) -> Value {
    match of {
        "int-or-string" => json!({"x-kubernetes-int-or-string": true}),
        "date" | "date-time" | "duration" | "byte" => json!({"type": "string", "format": of}),
        of => json!({"type": of}),
    }
}

fn required() -> Value {
    json!({"type": "object", "required": ["required"],
        "properties": {"required": {"type": "string"}, "optional": {"type": "string"}}})
}

/// Lists, maps and texts without a bound and with one: (schema, rule, cost without, bound, cost with).
#[test]
fn bounds_of_the_schema_are_what_rules_cost() {
    type Make = fn(Option<u64>) -> Value;
    let cases: &[(Make, &str, u64, u64, u64)] = &[
        (|most| list(simple("number"), most), "self.all(x, true)", 4_718_591, 10, 32),
        (|most| list(simple("string"), most), "self.all(x, true)", 3_145_727, 20, 62),
        (|most| list(simple("boolean"), most), "self.all(x, true)", 1_887_437, 5, 17),
        (|most| list(list(simple("number"), most), most), "self.all(x, true)", 3_145_727, 100, 302),
        (|most| map(simple("number"), most), "self.all(x, true)", 1_348_169, 10, 32),
        (|most| map(simple("number"), most), "has(self.x)", 1, 100, 1),
        (|most| map(simple("string"), most), "self.all(x, true)", 1_179_647, 3, 11),
        (|most| map(simple("boolean"), most), "self.all(x, true)", 943_718, 100, 302),
        (string, "self.contains('test')", 314_574, 10, 5),
        (string, "self.startsWith('test')", 2, 15, 2),
        (string, "self.endsWith('test')", 2, 30, 2),
        (string, "size(self + \"hello\") > size(\"hello\")", 314_578, 4, 7),
        (|most| list(simple("number"), most), "self[1] == 0.0", 2, 5000, 2),
        (|most| list(simple("string"), most), "self[1] == self[1]", 314_577, 8, 314_577),
        (string, "self.matches(\"x\")", 314_574, 50, 22),
        (string, "\"\".matches(\"(((((((((())))))))))[0-9]\")", 7, 10, 7),
        (string, "self.matches(\"\")", 1, 100, 1),
        (|most| map(simple("number"), most), "self[\"x\"] == 0.0", 2, 0, 2),
        (string, "self == \"x\"", 2, 0, 1),
        (|most| list(simple("number"), most), "self.all(x, x == 0.0)", 6_291_454, 3 * 1024 * 2048, 25_165_826),
        (|most| list(map(required(), most), most), "self.all(x, x[\"y\"].required == \"z\")", 7_340_027, 10, 72),
        (|most| list(map(required(), most), None), "self.all(x, x[\"y\"].required == \"z\")", 7_340_027, 10, 7_340_027),
        (|most| list(simple("int-or-string"), most), "self.all(x, true)", 4_718_591, 10, 32),
        (|most| list(simple("int-or-string"), most), "self[0] == 5", 3, 10, 3),
        (|most| list(simple("boolean"), most), "self[0] == false", 2, 25, 2),
        (|most| list(list(simple("number"), most), most), "self[0][0] == -1.0", 3, 51, 3),
        (|most| list(map(simple("number"), most), most), "self.all(x, x.y == 25.2)", 6_291_452, 12, 74),
        (|most| list(map(simple("number"), most), most), "self[0].x > 2.0", 4, 3000, 4),
        (|most| list(simple("duration"), most), "self.all(x, true)", 2_359_295, 5, 17),
        (|most| list(simple("duration"), most), "self[0].getHours() == 2", 4, 525, 4),
        (|most| list(simple("date"), most), "self.all(x, true)", 725_936, 15, 47),
        (|most| list(simple("date-time"), most), "self.all(x, true)", 428_963, 25, 77),
        (|most| list(simple("date-time"), most), "self[2].getMinutes() == 45", 4, 99, 4),
        (|most| map(required(), most), "self.all(x, true)", 428_963, 20, 62),
        (|most| map(map(simple("number"), None), most), "self.all(x, true)", 1_179_647, 10, 32),
        (|most| map(simple("duration"), most), "self.all(x, true)", 1_048_577, 5, 17),
        (|most| map(simple("date"), most), "self.all(x, true)", 524_288, 10, 32),
        (|most| map(simple("date-time"), most), "self.all(x, true)", 349_526, 25, 77),
        (string, "self.find('[0-9]+') == ''", 629_147, 10, 11),
        (|most| list(string(most), most), "self.join(' ') == 'aa bb'", 329_853_068_905, 10, 43),
        (|most| list(string(most), most), "self.isSorted() == true", 329_854_432_052, 10, 52),
        (
            |most| json!({"type": "object", "properties": {"str": string(most), "before": string(Some(2)), "after": string(Some(4))}}),
            "self.str.replace(self.before, self.after) == 'does not matter'",
            629_154,
            4,
            12,
        ),
        (
            |most| json!({"type": "object", "properties": {"str": string(most), "separator": string(most)}}),
            "self.str.split(self.separator) == []",
            629_160,
            10,
            22,
        ),
        (string, "self.lowerAscii() == 'lower!'", 314_575, 10, 6),
        (|most| map(simple("integer"), most), "oldSelf.size() == self.size()", 5, 10, 5),
        (|most| map(simple("date-time"), most), "self[\"a\"] == self[\"b\"]", 8, 7, 8),
        (|most| map(simple("duration"), most), "self[\"c\"] == self[\"d\"]", 8, 42, 8),
        (
            |most| {
                let mut schema = string(most);
                schema["enum"] = json!(["A", "B", "C", "LongValue"]);
                schema
            },
            "self.contains('A')",
            2,
            1000,
            401,
        ),
    ];
    for (make, rule, without, most, with) in cases {
        assert_eq!(cost(&make(None), rule), *without, "{rule} on {}", make(None));
        let bounded = make(Some(*most));
        assert_eq!(cost(&bounded, rule), *with, "{rule} on {bounded}");
    }
}

#[test]
fn loops_in_loops_multiply() {
    let numbers = list(simple("number"), Some(10));
    let unbounded = list(simple("number"), None);
    for (rule, bounded) in [
        ("self.all(x, self.all(y, true))", 352),
        ("self.all(x, self.all(y, self.all(z, true)))", 3552),
        // With a second variable, and as the other macros write it.
        ("self.all(i, x, self.all(j, y, true))", 352),
    ] {
        assert_eq!(cost(&numbers, rule), bounded, "{rule}");
        assert!(cost(&unbounded, rule) > TOTAL_LIMIT, "{rule}");
    }
    let quantity = |most: Option<u64>| {
        let mut schema = json!({"x-kubernetes-int-or-string": true});
        if let Some(most) = most {
            schema["maxLength"] = json!(most);
        }
        cost(&schema, "isQuantity(self)")
    };
    assert_eq!((quantity(None), quantity(Some(20))), (314_574, 9));
}

#[test]
fn refusals_say_by_how_much() {
    assert_eq!(fault("estimated rule cost", 10_000_000), None);
    let head = "estimated rule cost exceeds budget by factor of ";
    for (cost, factor) in
        [(10_000_001, "1.000000x"), (14_000_000, "1.400000x"), (25_165_826, "2.5x"), (u64::MAX, "more than 100x")]
    {
        let why = fault("estimated rule cost", cost).unwrap();
        assert!(why.starts_with(&format!("{head}{factor} (try simplifying the rule")), "{cost}: {why}");
    }
}

/// Whole definitions: which fields are refused, and with what factor.
#[test]
fn definitions_that_could_cost_too_much_are_refused() {
    let cases = [
        // Cheap, and bounded.
        (
            json!({"type": "object", "properties": {"spec": {"type": "object",
            "x-kubernetes-validations": [{"rule": "self.min <= self.max", "messageExpression": "'above ' + self.name"}],
            "properties": {"min": {"type": "integer"}, "max": {"type": "integer"}, "name": {"type": "string", "maxLength": 63}}}}}),
            vec![],
        ),
        // A list in a list that nobody bounds.
        (
            json!({"type": "object", "properties": {"a": {"type": "array", "items": {"type": "integer"},
            "x-kubernetes-validations": [{"rule": "self.all(x, self.all(y, x == y))"}]}}}),
            vec![
                (
                    "properties[a].x-kubernetes-validations[0].rule",
                    "estimated rule cost exceeds budget by factor of more than 100x",
                ),
                ("properties[a].x-kubernetes-validations[0].rule", "contributed to estimated rule cost total"),
                (
                    "",
                    "x-kubernetes-validations estimated rule cost total for entire OpenAPIv3 schema exceeds budget by factor of more than 100x",
                ),
            ],
        ),
        // A rule of items runs for each of them.
        (
            json!({"type": "object", "properties": {"a": {"type": "array", "items": {"type": "string", "maxLength": 100,
            "x-kubernetes-validations": [{"rule": "self.matches('^[a-z]+$')"}]}}}}),
            vec![(
                "properties[a].items.x-kubernetes-validations[0].rule",
                "estimated rule cost exceeds budget by factor of 8.7x",
            )],
        ),
        (
            json!({"type": "object", "properties": {"a": {"type": "array", "maxItems": 100, "items": {"type": "string", "maxLength": 100,
            "x-kubernetes-validations": [{"rule": "self.matches('^[a-z]+$')"}]}}}}),
            vec![],
        ),
        // The message has a budget of its own.
        (
            json!({"type": "object", "properties": {"a": {"type": "array", "items": {"type": "string"},
            "x-kubernetes-validations": [{"rule": "self.size() < 5", "messageExpression": "self.join(',')"}]}}}),
            vec![
                (
                    "properties[a].x-kubernetes-validations[0].messageExpression",
                    "estimated messageExpression cost exceeds budget by factor of more than 100x",
                ),
                ("properties[a].x-kubernetes-validations[0].messageExpression", "contributed to"),
                ("", "estimated rule cost total"),
            ],
        ),
        // What a transition rule compares with is as long.
        (
            json!({"type": "object", "properties": {"a": {"type": "array", "items": {"type": "string", "maxLength": 10},
            "x-kubernetes-validations": [{"rule": "oldSelf.all(x, x in self)"}]}}}),
            vec![
                ("properties[a].x-kubernetes-validations[0].rule", "more than 100x"),
                ("properties[a].x-kubernetes-validations[0].rule", "contributed to"),
                ("", "estimated rule cost total"),
            ],
        ),
        (
            json!({"type": "object", "properties": {"a": {"type": "array", "maxItems": 64, "items": {"type": "string", "maxLength": 10},
            "x-kubernetes-validations": [{"rule": "oldSelf.all(x, x in self)"}]}}}),
            vec![],
        ),
    ];
    for (schema, expected) in cases {
        let base = "spec.validation.openAPIV3Schema";
        let causes = crate::crd::validation::schema::check(&schema, false, base);
        let told: Vec<(&str, &str)> = causes
            .iter()
            .map(|cause| (cause.field.trim_start_matches(base).trim_start_matches('.'), cause.message.as_str()))
            .collect();
        assert_eq!(told.len(), expected.len(), "{schema}: {told:#?}");
        for ((field, message), (expected_field, part)) in told.iter().zip(&expected) {
            assert_eq!(field, expected_field, "{schema}");
            assert!(message.contains(part), "{schema}: {message}");
        }
    }
}
