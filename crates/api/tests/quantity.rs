//! Quantities against what Kubernetes prints for the same text.

#![allow(clippy::unwrap_used, clippy::panic)]

use ferrovirt_api::Quantity;

fn q(text: &str) -> Quantity {
    text.parse().unwrap_or_else(|e| panic!("{e}"))
}

#[test]
fn canonical_form() {
    for (input, expected) in [
        ("0", "0"),
        ("0Gi", "0"),
        ("1", "1"),
        ("1000", "1k"),
        ("1001", "1001"),
        ("1024", "1024"),
        ("0.5", "500m"),
        (".5", "500m"),
        ("5.", "5"),
        ("100m", "100m"),
        ("1500m", "1500m"),
        ("2000m", "2"),
        ("1Ki", "1Ki"),
        ("1024Ki", "1Mi"),
        ("8192Ki", "8Mi"),
        ("1024Mi", "1Gi"),
        ("1.5Gi", "1536Mi"),
        ("0.5Ki", "512"),
        ("0.5Mi", "512Ki"),
        ("500Mi", "500Mi"),
        ("1e3", "1e3"),
        ("1E3", "1e3"),
        ("12e6", "12e6"),
        ("1e-3", "1e-3"),
        ("100e-2", "1"),
        ("1E", "1E"),
        ("8Ei", "9223372036854775807"),
        ("-1.5Gi", "-1536Mi"),
        ("+2", "2"),
        ("0.0000000001", "1n"),
        ("1.0000000001", "1000000001n"),
        ("3u", "3u"),
        ("100000000000000000000000000000000000000000000", "9223372036854775807"),
        ("0.000000000000000000000000000000000000000000001", "1n"),
    ] {
        assert_eq!(q(input).to_string(), expected, "{input}");
    }
}

#[test]
fn what_is_no_quantity_is_refused() {
    for input in ["", "-", "1.2.3", "Gi", "1gi", "1 Gi", "1Kii", "e3", "1e", "1e+", "0x10", "1i", "nan", "."] {
        assert!(input.parse::<Quantity>().is_err(), "{input:?}");
    }
}

#[test]
fn values_are_rounded_up_and_compare_exactly() {
    assert_eq!(q("1500m").value(), 2);
    assert_eq!(q("-1500m").value(), -1);
    assert_eq!(q("1.5Gi").as_bytes(), 1_610_612_736);
    assert_eq!(q("-1").as_bytes(), 0);
    assert_eq!(q("1001u").as_milli(), 2);
    assert!(q("1Gi") > q("1G"));
    assert_eq!(q("1Ki"), q("1024"));
    assert_eq!((q("1Gi") + q("512Mi")).to_string(), "1536Mi");
    assert_eq!((q("0") + q("512Mi")).to_string(), "512Mi");
    assert_eq!((q("1Gi") - q("1Gi")).to_string(), "0");
    assert_eq!((q("250m") * 4).to_string(), "1");
    assert_eq!(Quantity::bytes(3 << 30).to_string(), "3Gi");
    assert_eq!(Quantity::milli(250).to_string(), "250m");
}

#[test]
fn json_is_a_string_and_numbers_are_read() {
    assert_eq!(serde_json::from_str::<Quantity>("2").unwrap(), q("2"));
    assert_eq!(serde_json::from_str::<Quantity>("0.5").unwrap(), q("500m"));
    assert_eq!(serde_json::to_string(&q("1024Ki")).unwrap(), "\"1Mi\"");
}
