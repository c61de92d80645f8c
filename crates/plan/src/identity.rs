//! Identities that follow from an object's uid: the same over every restart, without anybody having to write them down.

use ferrovirt_api::fnv::{fnv1a, fnv1a_from};

/// 128 well-mixed bits of two strings.
fn digest(one: &str, two: &str) -> [u8; 16] {
    // Two independent FNV-1a streams with a final avalanche: nothing here needs to resist an attacker.
    let mut out = [0u8; 16];
    let bytes = || one.bytes().chain([0xff]).chain(two.bytes());
    for (half, mut state) in [fnv1a(bytes()), fnv1a_from(0x9e37_79b9_7f4a_7c15, bytes())].into_iter().enumerate() {
        state ^= state >> 33;
        state = state.wrapping_mul(0xff51_afd7_ed55_8ccd);
        state ^= state >> 33;
        out[half * 8..half * 8 + 8].copy_from_slice(&state.to_be_bytes());
    }
    out
}

/// A UUID that follows from an object's uid and what it is for.
pub fn stable_uuid(uid: &str, purpose: &str) -> String {
    let mut bytes = digest(uid, purpose);
    bytes[6] = (bytes[6] & 0x0f) | 0x80;
    bytes[8] = (bytes[8] & 0x3f) | 0x80;
    let hex: String = bytes.iter().map(|b| format!("{b:02x}")).collect();
    format!("{}-{}-{}-{}-{}", &hex[..8], &hex[8..12], &hex[12..16], &hex[16..20], &hex[20..])
}

/// A locally administered unicast address that follows from an object's uid and an interface's name.
pub fn stable_mac(uid: &str, interface: &str) -> String {
    let b = digest(uid, interface);
    format!("02:{:02x}:{:02x}:{:02x}:{:02x}:{:02x}", b[0], b[1], b[2], b[3], b[4])
}

/// A number below `bound` that follows from a uid, to spread out what would otherwise happen at once.
pub fn stable_fraction(uid: &str, bound: i64) -> i64 {
    let [a, b, c, d, ..] = digest(uid, "spread");
    i64::from(u32::from_be_bytes([a, b, c, d])) % bound.max(1)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn identities_depend_on_both_parts_and_nothing_else() {
        assert_eq!(stable_mac("a", "net"), stable_mac("a", "net"));
        assert_ne!(stable_mac("a", "net"), stable_mac("b", "net"));
        assert_ne!(stable_mac("a", "net"), stable_mac("a", "net2"));
        assert_ne!(stable_mac("an", "et"), stable_mac("a", "net"));
        let uuid = stable_uuid("a", "firmware");
        assert_eq!((uuid.len(), uuid.as_bytes()[14]), (36, b'8'));
    }
}
