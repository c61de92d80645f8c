//! What people call a machine: `demo`, `vm demo`, `vmi/demo`, `vm/demo/namespace`.

use anyhow::{Result, bail};

use crate::next;

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Kind {
    Machine,
    Instance,
}

impl Kind {
    pub fn parse(word: &str) -> Option<Self> {
        match word.to_lowercase().as_str() {
            "vm" | "vms" | "virtualmachine" | "virtualmachines" => Some(Self::Machine),
            "vmi" | "vmis" | "virtualmachineinstance" | "virtualmachineinstances" => Some(Self::Instance),
            _ => None,
        }
    }

    pub fn resource(self) -> &'static str {
        match self {
            Self::Machine => "virtualmachines",
            Self::Instance => "virtualmachineinstances",
        }
    }

    pub fn short(self) -> &'static str {
        match self {
            Self::Machine => "vm",
            Self::Instance => "vmi",
        }
    }
}

#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Named {
    pub kind: Kind,
    pub name: String,
    pub namespace: Option<String>,
}

/// `NAME`, or `vm NAME`, or `vmi NAME`.
pub fn words(words: &[String]) -> Result<Named> {
    match words {
        [name] if name.contains('/') => path(name),
        [name] => Ok(Named { kind: Kind::Machine, name: name.clone(), namespace: None }),
        [kind, name] => match Kind::parse(kind) {
            Some(kind) => Ok(Named { kind, name: name.clone(), namespace: None }),
            None => bail!("there are no machines of the kind {kind:?}; give vm or vmi before the name, or nothing"),
        },
        _ => bail!("which VM? Give its name; `{}` lists them", next::ferrovirt("get vms")),
    }
}

/// `NAME…`, `vm NAME…` or `vm/NAME…`: several machines of one command.
pub fn several(words: &[String]) -> Result<Vec<Named>> {
    match words {
        [kind, names @ ..] if !names.is_empty() && Kind::parse(kind).is_some() => {
            names.iter().map(|name| self::words(&[kind.clone(), name.clone()])).collect()
        }
        [] => self::words(&[]).map(|named| vec![named]),
        names => names.iter().map(|name| self::words(std::slice::from_ref(name))).collect(),
    }
}

/// `NAME`, `vm/NAME` or `vm/NAME/NAMESPACE`; upstream's older form `vm/NAME.NAMESPACE` as well.
pub fn path(text: &str) -> Result<Named> {
    let parts: Vec<&str> = text.split('/').collect();
    let (kind, name, namespace) = match parts.as_slice() {
        [name] => (Kind::Instance, *name, None),
        [kind, name] => (kind_of(kind, text)?, *name, None),
        [kind, name, namespace] => (kind_of(kind, text)?, *name, Some(*namespace)),
        _ => bail!("{text:?} is no machine: write NAME, vm/NAME or vm/NAME/NAMESPACE"),
    };
    let (name, namespace) = match (name.split_once('.'), namespace) {
        (Some((name, namespace)), None) => (name, Some(namespace)),
        _ => (name, namespace),
    };
    if name.is_empty() || namespace == Some("") {
        bail!("{text:?} is no machine: write NAME, vm/NAME or vm/NAME/NAMESPACE");
    }
    Ok(Named { kind, name: name.into(), namespace: namespace.map(Into::into) })
}

fn kind_of(word: &str, text: &str) -> Result<Kind> {
    match Kind::parse(word) {
        Some(kind) => Ok(kind),
        None => bail!("{text:?}: there are no machines of the kind {word:?}; it is vm or vmi"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn machines_have_many_names() {
        let named = |kind, name: &str, namespace: Option<&str>| Named {
            kind,
            name: name.into(),
            namespace: namespace.map(Into::into),
        };
        assert_eq!(path("a").unwrap(), named(Kind::Instance, "a", None));
        assert_eq!(path("vm/a").unwrap(), named(Kind::Machine, "a", None));
        assert_eq!(path("VMI/a/n").unwrap(), named(Kind::Instance, "a", Some("n")));
        assert_eq!(path("vmi/a.n").unwrap(), named(Kind::Instance, "a", Some("n")));
        for bad in ["pod/a", "vm/", "vm/a/", "a/b/c/d", ""] {
            assert!(path(bad).is_err(), "{bad:?}");
        }
        let strings = |words: &[&str]| words.iter().map(|w| (*w).to_owned()).collect::<Vec<_>>();
        assert_eq!(words(&strings(&["a"])).unwrap(), named(Kind::Machine, "a", None));
        assert_eq!(words(&strings(&["vmi", "a"])).unwrap(), named(Kind::Instance, "a", None));
        assert!(words(&strings(&["node", "a"])).is_err());
    }

    #[test]
    fn a_command_takes_several() {
        let shown = |text: &str| {
            let words: Vec<String> = text.split_whitespace().map(Into::into).collect();
            several(&words).map(|all| {
                all.iter()
                    .map(|n| format!("{}/{}{}", n.kind.short(), n.name, n.namespace.as_deref().unwrap_or("")))
                    .collect::<Vec<_>>()
                    .join(" ")
            })
        };
        assert_eq!(shown("a").unwrap(), "vm/a");
        assert_eq!(shown("a b c").unwrap(), "vm/a vm/b vm/c");
        assert_eq!(shown("vm a b").unwrap(), "vm/a vm/b");
        assert_eq!(shown("vmi a").unwrap(), "vmi/a");
        assert_eq!(shown("vm/a vmi/b/n").unwrap(), "vm/a vmi/bn");
        assert_eq!(shown("vm").unwrap(), "vm/vm", "a VM may be called so");
        assert!(shown("").is_err());
        assert!(shown("a pod/b").is_err());
    }
}
