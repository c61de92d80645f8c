//! Tables of nftables in a network namespace of their own: what is written is what `nft` lists. Needs root.

#![allow(clippy::unwrap_used, clippy::expect_used)]

use std::net::{IpAddr, Ipv4Addr};

use ferrovirt_net::nft::{self, Family, Field, Hook, Key, Program, Rule, Set};

fn alone<T: Send + 'static>(work: impl FnOnce() -> T + Send + 'static) -> T {
    std::thread::spawn(move || {
        nix::sched::unshare(nix::sched::CloneFlags::CLONE_NEWNET).expect("this test needs root");
        work()
    })
    .join()
    .unwrap()
}

fn listed() -> String {
    let output = std::process::Command::new("nft").args(["list", "ruleset"]).output().unwrap();
    String::from_utf8(output.stdout).unwrap()
}

const SERVICE: [Field; 3] = [Field::Destination(Family::Ipv4), Field::Protocol, Field::DestinationPort];

fn service(number: u32) -> Key {
    let address = IpAddr::from(Ipv4Addr::from(0x0a2b_0000 + number / 8));
    Key::new().address(address).protocol(nft::TCP).port((number % 8) as u16)
}

/// `count` services, each with a chain and a place in the map.
fn services(count: u32) -> Program {
    let mut program = Program::new(Family::Ipv4, "many");
    program.hook("prerouting", Hook::NatPrerouting);
    program.rule("prerouting", Rule::new().dispatch(&SERVICE, "services"));
    for number in 0..count {
        let target = (Ipv4Addr::from(0x0a2a_0002 + number), 80).into();
        program.rule(&format!("target-{number}"), Rule::new().protocol(nft::TCP).dnat_to(target));
    }
    program.set("services", Set::map(&SERVICE, (0..count).map(|n| (service(n), format!("target-{n}")))));
    program
}

#[test]
fn five_thousand_services_fit_and_change_one_at_a_time() {
    let (text, there, gone) = alone(|| {
        let many = services(5000);
        many.replace().unwrap();
        assert!(many.is_there().unwrap());
        let more = services(5001);
        more.update(&many).unwrap();
        assert!(more.is_there().unwrap() && !many.is_there().unwrap());
        // An update of what is not there changes nothing.
        assert!(services(5002).update(&services(5005)).is_err());
        let few = services(2);
        few.update(&more).unwrap();
        let there = few.is_there().unwrap();
        let text = listed();
        nft::remove(Family::Ipv4, "many").unwrap();
        (text, there, few.is_there().unwrap())
    });
    assert!(there && !gone);
    assert!(text.contains("ip daddr . meta l4proto . th dport vmap @services"), "{text}");
    assert!(text.contains("10.43.0.0 . tcp . 0 : jump target-0") && text.contains("dnat to 10.42.0.3:80"), "{text}");
    assert_eq!(text.matches("chain target-").count(), 2, "{text}");
}

#[test]
fn elements_and_rules_are_changed_in_place() {
    let pods = |addresses: &[&str], chain: &str, rule: Rule| {
        let mut program = Program::new(Family::Both, "pods");
        let key = [Field::Interface, Field::Source(Family::Ipv4)];
        let both = [Field::Source(Family::Ipv6)];
        program.hook("prerouting", Hook::RawPrerouting);
        program.rule("prerouting", Rule::new().from_group(7).family(Family::Ipv4).not_within(&key, "sources").drop());
        program.rule("prerouting", Rule::new().family(Family::Ipv6).dispatch(&both, "six"));
        program.rule(chain, rule);
        let address = |text: &&str| text.parse::<IpAddr>().unwrap();
        let sources = addresses.iter().map(|text| Key::new().interface(1).address(address(text)));
        program.set("sources", Set::of(&key, sources));
        program.set("six", Set::map(&both, [(Key::from("fd00::1".parse::<IpAddr>().unwrap()), chain.to_owned())]));
        program
    };
    let text = alone(move || {
        let first = pods(&["10.0.0.1", "10.0.0.2"], "a", Rule::new().established().accept());
        first.replace().unwrap();
        let second =
            pods(&["10.0.0.2", "10.0.0.3"], "b", Rule::new().protocol(nft::SCTP).destination_ports(5, 9).accept());
        second.update(&first).unwrap();
        assert!(second.is_there().unwrap());
        let third =
            pods(&["10.0.0.2", "10.0.0.3"], "b", Rule::new().first_addressed_to(Ipv4Addr::LOCALHOST.into()).accept());
        let before = listed();
        third.update(&second).unwrap();
        before + &listed()
    });
    for expected in [
        "iifgroup 7 iif . ip saddr != @sources drop",
        "\"lo\" . 10.0.0.3",
        "fd00::1 : jump b",
        "sctp dport 5-9 accept",
        "ct original ip daddr 127.0.0.1 accept",
    ] {
        assert!(text.contains(expected), "no {expected:?} in\n{text}");
    }
    assert!(!text.contains("chain a") && !text.contains("10.0.0.1"), "{text}");
}

#[test]
fn arp_is_filtered_by_who_it_says_it_is_from() {
    let text = alone(|| {
        let key = [Field::Interface, Field::ArpSource];
        let mut program = Program::new(Family::Arp, "pods");
        program.hook("input", Hook::ArpInput);
        program.rule("input", Rule::new().from_group(7).not_within(&key, "sources").drop());
        program.set("sources", Set::of(&key, [Key::new().interface(1).address(Ipv4Addr::new(10, 0, 0, 1).into())]));
        program.replace().unwrap();
        listed()
    });
    assert!(text.contains("iifgroup 7 iif . arp saddr ip != @sources drop"), "{text}");
}
