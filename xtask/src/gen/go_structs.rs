//! What the Go structs behind the protobuf messages say of JSON: a field's JSON name, whether it is inlined, and
//! whether its zero value means "not set". Protobuf files do not tell, and Kubernetes' Go code writes the zero values
//! of all plain fields, so a transcoder needs to know which of them JSON leaves out.

use std::collections::HashMap;
use std::fs;
use std::path::Path;

use anyhow::{Context, Result};

/// The types of one Go package.
#[derive(Default)]
pub struct GoTypes {
    fields: HashMap<(String, u32), JsonField>,
    lists: Vec<String>,
}

#[derive(Clone, Debug, PartialEq)]
pub struct JsonField {
    /// `None` where the field's own fields stand in its place.
    pub name: Option<String>,
    pub omit_zero: bool,
    /// Neither `omitempty` nor `omitzero` nor a pointer keeps it out of JSON.
    pub always: bool,
    /// As `always` for a struct, which `omitempty` does not keep out.
    pub always_if_struct: bool,
}

impl GoTypes {
    pub fn read(dir: &Path) -> Result<GoTypes> {
        let mut types = GoTypes::default();
        for entry in fs::read_dir(dir).with_context(|| format!("listing {}", dir.display()))? {
            let path = entry?.path();
            let name = path.file_name().map(|n| n.to_string_lossy().into_owned()).unwrap_or_default();
            if name.ends_with(".go") && !name.ends_with("_test.go") && !name.contains("generated") {
                let text = fs::read_to_string(&path).with_context(|| format!("reading {}", path.display()))?;
                types.add(&text);
            }
        }
        Ok(types)
    }

    pub fn field(&self, message: &str, number: u32) -> Option<&JsonField> {
        self.fields.get(&(message.to_owned(), number))
    }

    /// `type Verbs []string`: a message with one repeated field on the wire, a plain list in JSON.
    pub fn is_list(&self, message: &str) -> bool {
        self.lists.iter().any(|list| list == message)
    }

    fn add(&mut self, text: &str) {
        let mut current: Option<String> = None;
        for line in text.lines() {
            match &current {
                Some(_) if line.starts_with('}') => current = None,
                Some(message) => {
                    if let Some((number, field)) = parse_field(line) {
                        self.fields.insert((message.clone(), number), field);
                    }
                }
                None => {
                    let Some(rest) = line.strip_prefix("type ") else {
                        continue;
                    };
                    let Some((name, definition)) = rest.split_once(' ') else {
                        continue;
                    };
                    if definition == "struct {" {
                        current = Some(name.to_owned());
                    } else if definition.starts_with("[]") {
                        self.lists.push(name.to_owned());
                    }
                }
            }
        }
    }
}

/// A struct field with a protobuf tag: its number, and what its JSON tag says.
fn parse_field(line: &str) -> Option<(u32, JsonField)> {
    let line = line.trim();
    if line.starts_with("//") {
        return None;
    }
    let (declaration, tags) = line.split_once('`')?;
    let protobuf = tag(tags, "protobuf")?;
    let number = protobuf.split(',').nth(1)?.parse().ok()?;
    let json = tag(tags, "json")?;
    let mut options = json.split(',');
    let name = options.next().filter(|name| !name.is_empty()).map(str::to_owned);
    let options: Vec<&str> = options.collect();
    let (empty, zero) = (options.contains(&"omitempty"), options.contains(&"omitzero"));
    let r#type = declaration.split_whitespace().last()?;
    // Behind a pointer, a zero that is present was meant.
    let pointer = r#type.starts_with('*');
    Some((
        number,
        JsonField {
            name,
            omit_zero: (empty || zero) && !pointer,
            always: !(empty || zero || pointer),
            always_if_struct: !(zero || pointer),
        },
    ))
}

fn tag<'a>(tags: &'a str, key: &str) -> Option<&'a str> {
    let start = tags.find(&format!("{key}:\""))? + key.len() + 2;
    tags[start..].split('"').next()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn reads_names_inlining_and_omission() {
        let text = "type Verbs []string\n\ntype Probe struct {\n\tmetav1.TypeMeta `json:\",inline\"`\n\
            \t// Ghost string `json:\"ghost\" protobuf:\"bytes,9,opt\"`\n\
            \tHandler `json:\",inline\" protobuf:\"bytes,1,opt,name=handler\"`\n\
            \tHostIP string `json:\"hostIP,omitempty\" protobuf:\"bytes,2,opt,name=hostIP\"`\n\
            \tRef *string `json:\"$ref,omitempty\" protobuf:\"bytes,3,opt,name=ref\"`\n\
            \tName string `json:\"name\" protobuf:\"bytes,4,opt,name=name\"`\n\
            \tAt metav1.Time `json:\"at,omitempty,omitzero\" protobuf:\"bytes,5,opt,name=at\"`\n}\n";
        let mut types = GoTypes::default();
        types.add(text);
        let field = |name: Option<&str>, omit_zero, always, always_if_struct| {
            Some(JsonField { name: name.map(str::to_owned), omit_zero, always, always_if_struct })
        };
        for (number, expected) in [
            (1, field(None, false, true, true)),
            (2, field(Some("hostIP"), true, false, true)),
            (3, field(Some("$ref"), false, false, false)),
            (4, field(Some("name"), false, true, true)),
            (5, field(Some("at"), true, false, false)),
            (9, None),
        ] {
            assert_eq!(types.field("Probe", number), expected.as_ref(), "field {number}");
        }
        assert!(types.is_list("Verbs") && !types.is_list("Probe"));
    }
}
