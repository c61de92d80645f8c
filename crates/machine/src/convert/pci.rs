//! PCI addresses as text, `dddd:bb:ss.f`.

use crate::spec::PciAddress;

pub(crate) fn parse(text: &str) -> Option<PciAddress> {
    // The number parser below would take a sign.
    if text.contains('+') {
        return None;
    }
    let (domain, rest) = text.split_once(':')?;
    let (bus, rest) = rest.split_once(':')?;
    let (slot, function) = rest.split_once('.')?;
    if (domain.len(), bus.len(), slot.len(), function.len()) != (4, 2, 2, 1) {
        return None;
    }
    let address = PciAddress {
        domain: u16::from_str_radix(domain, 16).ok()?,
        bus: u8::from_str_radix(bus, 16).ok()?,
        slot: u8::from_str_radix(slot, 16).ok()?,
        function: u8::from_str_radix(function, 16).ok()?,
    };
    (address.function < 8).then_some(address)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn parses_what_upstream_allows() {
        assert_eq!(parse("0000:81:01.0"), Some(PciAddress { domain: 0, bus: 0x81, slot: 1, function: 0 }));
        for text in ["", "81:01.0", "0000:81:01.8", "0000:8:01.0", "0000:81:01", "0000:gg:01.0", "0000:+1:01.0"] {
            assert_eq!(parse(text), None, "{text}");
        }
    }
}
