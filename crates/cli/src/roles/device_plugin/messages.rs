//! The kubelet's device plugin API, version v1beta1: the few messages of it, in protobuf's wire format.
//!
//! Written by hand: two services with six small messages do not pay for a code generator and a gRPC library.

/// `v1beta1.RegisterRequest`
pub fn register_request(endpoint: &str, resource: &str) -> Vec<u8> {
    let mut out = vec![];
    put(&mut out, 1, b"v1beta1");
    put(&mut out, 2, endpoint.as_bytes());
    put(&mut out, 3, resource.as_bytes());
    out
}

/// `v1beta1.ListAndWatchResponse` with devices that are all the same.
pub fn devices(count: usize, healthy: bool) -> Vec<u8> {
    let mut out = vec![];
    for number in 0..count {
        let mut device = vec![];
        put(&mut device, 1, format!("{number}").as_bytes());
        put(&mut device, 2, if healthy { b"Healthy" } else { b"Unhealthy" });
        put(&mut out, 1, &device);
    }
    out
}

/// `v1beta1.AllocateResponse`: the device file for each container that the request names.
pub fn allocate(request: &[u8], path: &str) -> Option<Vec<u8>> {
    let mut device = vec![];
    put(&mut device, 1, path.as_bytes());
    put(&mut device, 2, path.as_bytes());
    put(&mut device, 3, b"mrw");
    let mut container = vec![];
    put(&mut container, 3, &device);
    let mut out = vec![];
    for (number, _) in fields(request)? {
        if number == 1 {
            put(&mut out, 1, &container);
        }
    }
    Some(out)
}

fn put(out: &mut Vec<u8>, number: u64, bytes: &[u8]) {
    put_varint(out, number << 3 | 2);
    put_varint(out, bytes.len() as u64);
    out.extend_from_slice(bytes);
}

fn put_varint(out: &mut Vec<u8>, mut value: u64) {
    while value >= 0x80 {
        out.push(u8::try_from(value & 0x7f).unwrap_or_default() | 0x80);
        value >>= 7;
    }
    out.push(u8::try_from(value).unwrap_or_default());
}

/// The fields of a message whose fields are all strings or messages. `None` if it is damaged.
fn fields(mut bytes: &[u8]) -> Option<Vec<(u64, &[u8])>> {
    let mut found = vec![];
    while !bytes.is_empty() {
        let key = take_varint(&mut bytes)?;
        if key & 7 != 2 {
            return None;
        }
        let length = usize::try_from(take_varint(&mut bytes)?).ok()?;
        let (value, rest) = bytes.split_at_checked(length)?;
        found.push((key >> 3, value));
        bytes = rest;
    }
    Some(found)
}

fn take_varint(bytes: &mut &[u8]) -> Option<u64> {
    let mut value = 0u64;
    for shift in (0..64).step_by(7) {
        let (first, rest) = bytes.split_first()?;
        *bytes = rest;
        value |= u64::from(first & 0x7f).checked_shl(shift)?;
        if first & 0x80 == 0 {
            return Some(value);
        }
    }
    None
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn messages_are_what_protobuf_says() {
        // As protoc encodes { version: "v1beta1", endpoint: "a.sock", resource_name: "x/y" }.
        let expected = b"\x0a\x07v1beta1\x12\x06a.sock\x1a\x03x/y";
        assert_eq!(register_request("a.sock", "x/y"), expected);
        assert_eq!(devices(1, true), b"\x0a\x0c\x0a\x010\x12\x07Healthy");
        assert_eq!(devices(0, true), b"");
        let long = register_request(&"e".repeat(300), "r");
        assert_eq!(long.get(9..12), Some(&b"\x12\xac\x02"[..]));
    }

    #[test]
    fn every_container_gets_the_device() {
        // Two containers, one with two devices.
        let request = b"\x0a\x06\x0a\x011\x0a\x012\x0a\x03\x0a\x013";
        let answer = allocate(request, "/dev/kvm").unwrap();
        let containers = fields(&answer).unwrap();
        assert_eq!(containers.len(), 2);
        let device = fields(containers[0].1).unwrap();
        assert_eq!(fields(device[0].1).unwrap(), [(1, &b"/dev/kvm"[..]), (2, b"/dev/kvm"), (3, b"mrw")]);
        assert_eq!(allocate(b"", "/dev/kvm"), Some(vec![]));
        for damaged in [&b"\x0a"[..], b"\x0a\x05ab", b"\x08\x01", b"\xff\xff\xff\xff\xff\xff\xff\xff\xff\xff\xff"] {
            assert_eq!(allocate(damaged, "/dev/kvm"), None, "{damaged:?}");
        }
    }
}
