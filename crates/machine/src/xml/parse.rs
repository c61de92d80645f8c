//! Domain XML back into a tree.
//!
//! The tree is what can be read back without loss: a [`MachineSpec`](crate::spec::MachineSpec) also says what no domain does
//! (what to prepare, whom to tell addresses), and a domain that libvirt hands out says things that no spec does.

use quick_xml::{
    Reader, XmlVersion,
    events::{BytesStart, Event},
};

use super::element::Element;

#[derive(Debug, thiserror::Error)]
pub enum ParseError {
    #[error("the XML is not well formed")]
    Syntax(#[from] quick_xml::Error),
    #[error("an attribute of <{element}> is not well formed")]
    Attribute { element: String, source: quick_xml::events::attributes::AttrError },
    #[error("&{0}; is not known")]
    Entity(String),
    #[error("there is no element")]
    Empty,
    #[error("the text ends inside <{0}>")]
    Unfinished(String),
}

/// Reads one element with all that is in it. White space between elements, comments and declarations are dropped.
pub fn parse(text: &str) -> Result<Element, ParseError> {
    let mut reader = Reader::from_str(text);
    let mut open: Vec<Element> = Vec::new();
    loop {
        match reader.read_event()? {
            Event::Start(start) => open.push(element(&start)?),
            Event::Empty(start) => {
                let element = element(&start)?;
                match open.last_mut() {
                    Some(parent) => parent.push(element),
                    None => return Ok(element),
                }
            }
            Event::End(_) => {
                let Some(mut done) = open.pop() else {
                    return Err(ParseError::Empty);
                };
                done.drop_layout();
                match open.last_mut() {
                    Some(parent) => parent.push(done),
                    None => return Ok(done),
                }
            }
            Event::Text(text) => append(&mut open, &text),
            Event::CData(text) => append(&mut open, &text),
            Event::GeneralRef(reference) => {
                let character = match reference.resolve_char_ref()? {
                    Some(character) => character,
                    None => named(&reference)?,
                };
                append(&mut open, character.encode_utf8(&mut [0; 4]));
            }
            Event::Eof => {
                return Err(open
                    .pop()
                    .map_or(ParseError::Empty, |last| ParseError::Unfinished(last.name().to_owned())));
            }
            Event::Comment(_) | Event::Decl(_) | Event::PI(_) | Event::DocType(_) => {}
        }
    }
}

fn element(start: &BytesStart<'_>) -> Result<Element, ParseError> {
    let name = start.name().as_ref().to_string();
    let mut element = Element::named(name.clone());
    for attribute in start.attributes() {
        let attribute = attribute.map_err(|source| ParseError::Attribute { element: name.clone(), source })?;
        let value = attribute.normalized_value(XmlVersion::Implicit1_0)?.into_owned();
        element.set(attribute.key.as_ref().to_string(), value);
    }
    Ok(element)
}

fn append(open: &mut [Element], text: &str) {
    if let Some(element) = open.last_mut() {
        element.append_text(text);
    }
}

fn named(name: &str) -> Result<char, ParseError> {
    match name {
        "amp" => Ok('&'),
        "lt" => Ok('<'),
        "gt" => Ok('>'),
        "quot" => Ok('"'),
        "apos" => Ok('\''),
        other => Err(ParseError::Entity(other.into())),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_was_printed_is_read_back() {
        let text = "<a b=\"1 &lt; 2 &amp; &#34;3&#34;\" c=\"\">\n  <d></d>\n  <e>x&#xA;y &lt;z&gt;</e>\n</a>";
        assert_eq!(parse(text).unwrap().to_string(), text);
        let loose = "<?xml version='1.0'?>\n<!-- x --><a b='1 &lt; 2 &amp; \"3\"' c=''><d/><e>x\ny &lt;z></e></a>";
        assert_eq!(parse(loose).unwrap().to_string(), text);
    }

    #[test]
    fn what_is_not_xml_is_refused() {
        for text in ["", "<a>", "<a></b>", "<a b=1></a>", "<a>&what;</a>", "text"] {
            assert!(parse(text).is_err(), "{text}");
        }
    }
}
