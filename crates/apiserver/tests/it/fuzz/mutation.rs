//! Bytes out of bytes: the same ones for the same seed.

/// How many inputs a target gets: `FERROVIRT_LONG=1` tries many more.
pub fn rounds(short: u64, long: u64) -> u64 {
    if std::env::var_os("FERROVIRT_LONG").is_some() { long } else { short }
}

/// SplitMix64: the same bytes for the same seed.
pub struct Random(pub u64);

impl Random {
    pub fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut z = self.0;
        z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        z ^ (z >> 31)
    }

    pub fn below(&mut self, limit: usize) -> usize {
        usize::try_from(self.next() % limit.max(1) as u64).unwrap()
    }

    pub fn pick<'a, T>(&mut self, items: &'a [T]) -> &'a T {
        &items[self.below(items.len())]
    }
}

/// What parsers trip over.
const TOKENS: &[&[u8]] = &[
    b"null",
    b"true",
    b"-1",
    b"1e999",
    b"99999999999999999999",
    b"\"\"",
    b"{}",
    b"[]",
    b"[[[[[[[[",
    b"{\"a\":{\"a\":",
    b"\\u0000",
    b"\xff\xfe",
    b"\xf0\x9f\x92\xa9",
    b"&a [*a,*a]",
    b"!!binary ",
    b"<<: *a",
    b"---\n",
    b"metadata",
    b"managedFields",
    b"$patch",
    b"$setElementOrder/x",
    b"$retainKeys",
    b"k:{\"a\":1}",
    b"v:1",
    b"f:",
    b"..",
    b"%2f",
    b"%00",
    b"~1",
    b"/-",
    b"\x0a\xff\xff\xff\xff\x0f",
    b"\x80\x80\x80\x80\x80\x80\x80\x80\x80\x01",
    b"k8s\0",
    b"resourceVersion",
    b"0",
    b"''",
];

/// A few small changes.
pub fn mutate(random: &mut Random, seed: &[u8]) -> Vec<u8> {
    let mut bytes = seed.to_vec();
    for _ in 0..=random.below(6) {
        let at = random.below(bytes.len() + 1);
        match random.below(6) {
            0 if at < bytes.len() => bytes[at] = random.next().to_le_bytes()[0],
            1 => {
                bytes.splice(at..at, random.pick(TOKENS).iter().copied());
            }
            2 => bytes.truncate(at),
            3 => {
                let end = (at + random.below(20)).min(bytes.len());
                bytes.drain(at..end);
            }
            4 => {
                let end = (at + random.below(60)).min(bytes.len());
                let again = bytes[at..end].to_vec();
                bytes.splice(at..at, again);
            }
            _ => {
                let end = (at + random.below(12)).min(bytes.len());
                bytes.splice(at..end, random.pick(TOKENS).iter().copied());
            }
        }
    }
    bytes
}
