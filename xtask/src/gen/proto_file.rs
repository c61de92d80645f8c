//! Reads the subset of proto2 that Kubernetes' generator writes: one package, messages with one field a line, no
//! nesting, no enums, no oneofs. Anything else is an error, not a guess.

use anyhow::{Context, Result, bail, ensure};

#[derive(Debug, PartialEq)]
pub struct ProtoFile {
    pub package: String,
    pub messages: Vec<Message>,
}

#[derive(Debug, PartialEq)]
pub struct Message {
    pub name: String,
    pub fields: Vec<Field>,
}

#[derive(Debug, PartialEq)]
pub struct Field {
    pub name: String,
    pub number: u32,
    pub shape: Shape,
}

/// The type as written: a scalar, a message of the same package, or `.full.name.Of.Message`.
#[derive(Debug, PartialEq)]
pub enum Shape {
    Optional(String),
    Repeated(String),
    Map { key: String, value: String },
}

pub fn parse(text: &str) -> Result<ProtoFile> {
    let mut package = None;
    let mut messages: Vec<Message> = Vec::new();
    let mut inside = false;
    let mut in_comment = false;
    for (index, line) in text.lines().enumerate() {
        let line = line.trim();
        let at = || format!("line {}: {line}", index + 1);
        in_comment |= line.starts_with("/*");
        if in_comment || line.is_empty() || line.starts_with("//") {
            in_comment &= !line.ends_with("*/");
            continue;
        }
        if inside {
            let message = messages.last_mut().with_context(at)?;
            match line {
                "}" => inside = false,
                // Numbers once used say nothing about the ones in use.
                _ if line.starts_with("reserved ") => {}
                _ => message.fields.push(parse_field(line).with_context(at)?),
            }
        } else if let Some(name) = line.strip_prefix("message ") {
            let name = name.strip_suffix('{').with_context(at)?.trim().to_owned();
            messages.push(Message { name, fields: Vec::new() });
            inside = true;
        } else if let Some(name) = line.strip_prefix("package ") {
            package = Some(name.trim_end_matches(';').to_owned());
        } else if !["syntax", "import", "option"].iter().any(|word| line.starts_with(word)) {
            bail!("not understood at {}", at());
        }
    }
    ensure!(!inside, "the file ends inside a message");
    Ok(ProtoFile { package: package.context("no package")?, messages })
}

fn parse_field(line: &str) -> Result<Field> {
    let (declaration, number) = line.strip_suffix(';').context("no ;")?.split_once('=').context("no =")?;
    let number = number.trim().parse().context("not a field number")?;
    let (r#type, name) = declaration.trim().rsplit_once(' ').context("no name")?;
    let shape = match r#type.trim() {
        map if map.starts_with("map<") => {
            let inner = map.trim_start_matches("map<").strip_suffix('>').context("no >")?;
            let (key, value) = inner.split_once(',').context("a map without a value type")?;
            Shape::Map { key: key.trim().to_owned(), value: value.trim().to_owned() }
        }
        other => match other.split_once(' ').context("no label")? {
            ("optional", of) => Shape::Optional(of.to_owned()),
            ("repeated", of) => Shape::Repeated(of.to_owned()),
            (label, _) => bail!("unknown label {label}"),
        },
    };
    Ok(Field { name: name.to_owned(), number, shape })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn reads_every_shape() {
        let text = "/*\nLicense text\n*/\nsyntax = \"proto2\";\npackage k8s.io.api.core.v1;\nimport \"x\";\n\n// prose; with = signs\n\
            message Empty {\n}\n\nmessage Pod {\n  // prose\n  optional .k8s.Meta metadata = 1;\n\n  \
            repeated string args = 2;\n  map<string, bytes> data = 10;\n  reserved 5;\n}\n";
        let field = |name: &str, number, shape| Field { name: name.to_owned(), number, shape };
        let expected = ProtoFile {
            package: "k8s.io.api.core.v1".to_owned(),
            messages: vec![
                Message { name: "Empty".to_owned(), fields: vec![] },
                Message {
                    name: "Pod".to_owned(),
                    fields: vec![
                        field("metadata", 1, Shape::Optional(".k8s.Meta".to_owned())),
                        field("args", 2, Shape::Repeated("string".to_owned())),
                        field("data", 10, Shape::Map { key: "string".to_owned(), value: "bytes".to_owned() }),
                    ],
                },
            ],
        };
        assert_eq!(parse(text).expect("parses"), expected);
    }

    #[test]
    fn refuses_what_it_does_not_know() {
        for text in [
            "message A {\n}\n",
            "package a;\nenum E {\n}\n",
            "package a;\nmessage A {\n  oneof x {\n}\n",
            "package a;\nmessage A {\n  required string x = 1;\n}\n",
            "package a;\nmessage A {\n",
        ] {
            assert!(parse(text).is_err(), "{text}");
        }
    }
}
