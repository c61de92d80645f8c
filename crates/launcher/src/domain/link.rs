//! The cable of an interface. libvirt changes a device that it is shown whole, so it is shown its own with another link.

/// The interface called `name` out of a domain's XML as libvirt prints it, with its cable plugged in or out.
pub fn set(domain: &str, name: &str, up: bool) -> Option<String> {
    const END: &str = "</interface>";
    let alias = format!("<alias name='ua-{name}'/>");
    let mut rest = domain;
    loop {
        let begin = rest.find("<interface ")?;
        let (_, from) = rest.split_at_checked(begin)?;
        let (element, after) = from.split_at_checked(from.find(END)? + END.len())?;
        if element.contains(&alias) {
            return Some(with_link(element, &alias, up));
        }
        rest = after;
    }
}

fn with_link(element: &str, alias: &str, up: bool) -> String {
    let link = format!("<link state='{}'/>", if up { "up" } else { "down" });
    for before in ["<link state='up'/>", "<link state='down'/>"] {
        if element.contains(before) {
            return element.replace(before, &link);
        }
    }
    element.replace(alias, &format!("{link}\n{alias}"))
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::set;

    const DOMAIN: &str = "<domain><devices>
<interface type='ethernet'><mac address='02:00:00:00:00:01'/><target dev='tap0'/><alias name='ua-a'/></interface>
<interface type='ethernet'><target dev='tap1'/><link state='down'/><alias name='ua-ab'/></interface>
</devices></domain>";

    #[test]
    fn the_cable_of_one_interface_is_plugged() {
        let out = set(DOMAIN, "a", false).unwrap();
        assert!(out.starts_with("<interface ") && out.ends_with("</interface>"), "{out}");
        assert!(out.contains("tap0") && !out.contains("tap1") && out.contains("<link state='down'/>"), "{out}");
        let back = set(DOMAIN, "ab", true).unwrap();
        assert!(back.contains("tap1") && back.contains("<link state='up'/>") && !back.contains("down"), "{back}");
        assert_eq!(set(DOMAIN, "c", true), None);
    }
}
