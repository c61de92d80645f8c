//! A small ordered XML tree, printed as Go's `xml.MarshalIndent` prints it.

use std::{
    borrow::Cow,
    fmt::{self, Display, Write},
};

#[derive(Debug, Clone, Default, PartialEq)]
pub struct Element {
    name: Cow<'static, str>,
    attributes: Vec<(Cow<'static, str>, String)>,
    children: Vec<Element>,
    text: String,
}

pub(super) fn element(name: &'static str) -> Element {
    Element { name: name.into(), ..Element::default() }
}

pub(super) fn yes_no(value: bool) -> &'static str {
    if value { "yes" } else { "no" }
}

pub(super) fn on_off(value: bool) -> &'static str {
    if value { "on" } else { "off" }
}

impl Element {
    pub fn name(&self) -> &str {
        &self.name
    }

    pub fn attribute(&self, name: &str) -> Option<&str> {
        self.attributes.iter().find(|(key, _)| key == name).map(|(_, value)| value.as_str())
    }

    pub fn elements(&self) -> &[Element] {
        &self.children
    }

    pub fn elements_mut(&mut self) -> &mut Vec<Element> {
        &mut self.children
    }

    /// The text that stands in it directly.
    pub fn content(&self) -> &str {
        &self.text
    }

    /// Takes an attribute away and says what it was.
    pub fn take_attribute(&mut self, name: &str) -> Option<String> {
        let index = self.attributes.iter().position(|(key, _)| key == name)?;
        Some(self.attributes.remove(index).1)
    }

    pub(super) fn named(name: String) -> Self {
        Self { name: name.into(), ..Self::default() }
    }

    pub(super) fn set(&mut self, name: String, value: String) {
        self.attributes.push((name.into(), value));
    }

    pub(super) fn append_text(&mut self, text: &str) {
        self.text.push_str(text);
    }

    /// White space around elements only makes them readable.
    pub(super) fn drop_layout(&mut self) {
        if !self.children.is_empty() && self.text.trim().is_empty() {
            self.text.clear();
        }
    }

    pub(super) fn attr(mut self, name: &'static str, value: impl Display) -> Self {
        self.attributes.push((name.into(), value.to_string()));
        self
    }

    pub(super) fn attr_some(self, name: &'static str, value: Option<impl Display>) -> Self {
        match value {
            Some(value) => self.attr(name, value),
            None => self,
        }
    }

    /// The attribute, unless it would be empty.
    pub(super) fn attr_set(self, name: &'static str, value: &str) -> Self {
        if value.is_empty() { self } else { self.attr(name, value) }
    }

    pub(super) fn text(mut self, text: impl Display) -> Self {
        self.text = text.to_string();
        self
    }

    pub(super) fn child(mut self, child: Element) -> Self {
        self.push(child);
        self
    }

    pub(super) fn children(mut self, children: impl IntoIterator<Item = Element>) -> Self {
        self.push_all(children);
        self
    }

    pub(super) fn push(&mut self, child: Element) {
        self.children.push(child);
    }

    pub(super) fn push_all(&mut self, children: impl IntoIterator<Item = Element>) {
        self.children.extend(children);
    }

    fn write(&self, out: &mut fmt::Formatter<'_>, depth: usize) -> fmt::Result {
        if depth > 0 {
            write!(out, "\n{:1$}", "", depth * 2)?;
        }
        write!(out, "<{}", self.name)?;
        for (name, value) in &self.attributes {
            write!(out, " {name}=\"{}\"", Escaped(value))?;
        }
        write!(out, ">{}", Escaped(&self.text))?;
        for child in &self.children {
            child.write(out, depth + 1)?;
        }
        if !self.children.is_empty() {
            write!(out, "\n{:1$}", "", depth * 2)?;
        }
        write!(out, "</{}>", self.name)
    }
}

impl Display for Element {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.write(f, 0)
    }
}

/// Text that cannot end the place it stands in. Characters that XML does not have become the replacement character.
struct Escaped<'a>(&'a str);

impl Display for Escaped<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for character in self.0.chars() {
            match character {
                '"' => f.write_str("&#34;")?,
                '\'' => f.write_str("&#39;")?,
                '&' => f.write_str("&amp;")?,
                '<' => f.write_str("&lt;")?,
                '>' => f.write_str("&gt;")?,
                '\t' => f.write_str("&#x9;")?,
                '\n' => f.write_str("&#xA;")?,
                '\r' => f.write_str("&#xD;")?,
                '\0'..='\u{1f}' | '\u{fffe}' | '\u{ffff}' => f.write_char('\u{fffd}')?,
                other => f.write_char(other)?,
            }
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn prints_like_go() {
        let tree = element("a").attr("b", "1 < 2 & \"3\"").child(element("c")).child(element("d").text("x\ny"));
        let expected = "<a b=\"1 &lt; 2 &amp; &#34;3&#34;\">\n  <c></c>\n  <d>x&#xA;y</d>\n</a>";
        assert_eq!(tree.to_string(), expected);
        assert_eq!(element("e").text("\u{1}").to_string(), "<e>\u{fffd}</e>");
    }
}
