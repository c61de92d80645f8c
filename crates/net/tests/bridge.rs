//! Puts a guest in the place of a pod in a namespace of its own and asks the kernel's own tools what came of it. Needs root.
#![allow(clippy::unwrap_used)]

use std::{net::Ipv4Addr, path::Path, process::Command, thread};

use ferrovirt_net::{
    bridge::{Binding, bind},
    link, tap,
};
use nix::sched::{CloneFlags, unshare};

#[test]
fn a_broadcast_that_comes_back_does_not_move_the_guest() {
    thread::spawn(|| {
        unshare(CloneFlags::CLONE_NEWNET).expect("this test needs root");
        tap::create("eth0", 0, 0, 1).unwrap();
        link::set_up("eth0", Some(1400)).unwrap();
        link::add_address("eth0", Ipv4Addr::new(192, 0, 2, 7).into(), 24).unwrap();
        let mac = link::mac("eth0").unwrap();
        let binding = Binding {
            tap: Some("tap0".into()),
            bridge: "k6t-eth0".into(),
            outside: "eth0".into(),
            server: Ipv4Addr::new(169, 254, 75, 10),
            uid: 107,
            gid: 107,
            queues: 1,
        };
        let here = Path::new("/proc/thread-self/ns/net");
        for _ in 0..2 {
            let had = bind(here, &binding).unwrap();
            assert_eq!((had.mtu, had.mac), (1400, mac));
            assert_eq!(had.addresses, [(Ipv4Addr::new(192, 0, 2, 7).into(), 24)]);
        }
        let learns = |port: &str| {
            let output = Command::new("bridge").args(["-d", "link", "show", "dev", port]).output().unwrap();
            String::from_utf8(output.stdout).unwrap().contains("learning on")
        };
        assert_eq!(["eth0", "tap0"].map(learns), [false, true]);
    })
    .join()
    .unwrap();
}
