//! The part of Helm's template language that the chart's shared templates keep to: values, as JSON or as text, and whole files
//! that depend on one.

use anyhow::{Result, bail};
use serde_json::Value;

use super::values::Values;

/// What is left of a template: all, unless its first line is `{{- if .Values.path }}` and its last `{{- end }}`. Then what is
/// between, or nothing if the value says no.
pub fn body<'a>(text: &'a str, values: &Values) -> Result<&'a str> {
    let Some((condition, rest)) = text.strip_prefix("{{- if ").and_then(|rest| rest.split_once(" }}\n")) else {
        return Ok(text);
    };
    let Some(inner) = rest.strip_suffix("{{- end }}\n") else { bail!("what depends on {condition} has no end") };
    match lookup(condition, values, "")? {
        Value::Bool(true) => Ok(inner),
        Value::Bool(false) => Ok(""),
        other => bail!("{condition} says neither yes nor no: {other}"),
    }
}

/// Replaces each `{{ toJson .Values.path }}` and `{{ .Values.path }}`. The same for `.Chart.AppVersion`.
pub fn fill(text: &str, values: &Values, app_version: &str) -> Result<String> {
    let mut out = String::with_capacity(text.len());
    let mut rest = text;
    while let Some((before, after)) = rest.split_once("{{") {
        let Some((expression, after)) = after.split_once("}}") else { bail!("an expression has no end") };
        out.push_str(before);
        let words: Vec<&str> = expression.split_whitespace().collect();
        match words.as_slice() {
            ["toJson", name] => out.push_str(&lookup(name, values, app_version)?.to_string()),
            [name] => match lookup(name, values, app_version)? {
                Value::String(text) if !text.contains(['"', '\\', '\n']) => out.push_str(&text),
                other => bail!("{name} may not hold quotes, backslashes or line breaks: {other}"),
            },
            _ => bail!("only values can be filled in, not {{{{{expression}}}}}"),
        }
        rest = after;
    }
    out.push_str(rest);
    Ok(out)
}

fn lookup(name: &str, values: &Values, app_version: &str) -> Result<Value> {
    if name == ".Chart.AppVersion" {
        return Ok(app_version.into());
    }
    let value = name.strip_prefix(".Values.").and_then(|path| values.get(path));
    match value {
        Some(value) => Ok(value.clone()),
        None => bail!("there is no value for {name}"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::install::values::Chosen;

    #[test]
    fn a_whole_file_may_depend_on_a_value() {
        let mut chosen = Chosen::default();
        let text = "{{- if .Values.monitoring.serviceMonitor }}\na: 1\n{{- end }}\n";
        assert_eq!(body(text, &chosen.complete().unwrap()).unwrap(), "");
        chosen.set("monitoring.serviceMonitor", Some(true));
        let values = chosen.complete().unwrap();
        assert_eq!(body(text, &values).unwrap(), "a: 1\n");
        assert_eq!(body("b: 2\n", &values).unwrap(), "b: 2\n");
        for wrong in ["{{- if .Values.replicas }}\n{{- end }}\n", "{{- if .Values.monitoring.serviceMonitor }}\n"] {
            assert!(body(wrong, &values).is_err(), "{wrong}");
        }
    }

    #[test]
    fn values_are_filled_in_and_cannot_change_the_structure() {
        let mut chosen = Chosen::default();
        chosen.set("images.ferrovirt", Some("x\"\n  evil: true"));
        let values = chosen.complete().unwrap();
        let fill = |text: &str| fill(text, &values, "1.2");
        let cases = [
            ("a: {{ toJson .Values.replicas }}", Some("a: 2")),
            ("a: {{ toJson .Values.images.ferrovirt }}", Some(r#"a: "x\"\n  evil: true""#)),
            ("a: \"{{ .Values.kubeletRoot }}/pods\"", Some("a: \"/var/lib/kubelet/pods\"")),
            ("{{ toJson .Chart.AppVersion }}{{ .Chart.AppVersion }}", Some("\"1.2\"1.2")),
            ("{{ .Values.images.ferrovirt }}", None),
            ("{{ .Values.nothing }}", None),
            ("{{ if .Values.replicas }}", None),
            ("{{ .Values.replicas", None),
        ];
        for (text, expected) in cases {
            assert_eq!(fill(text).ok().as_deref(), expected, "{text}");
        }
    }
}
