//! The whole path (calls, errors, events) against libvirt's in-process `test:` driver: no daemon, no QEMU.

#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic)]

use std::time::Duration;

use ferrovirt_libvirt::{
    Connection, DomainState, ErrorCode, Event, EventKind, Events, Lifecycle, ShutdownMode, Start, StopDetail,
    SuspendDetail,
};

const XML: &str = "<domain type='test'><name>t</name><uuid>11111111-2222-3333-4444-555555555555</uuid>\
    <memory unit='MiB'>64</memory><os><type>hvm</type></os></domain>";

/// The next event of one domain. The driver's state is shared by all connections of a process, so the events of other
/// tests arrive as well.
async fn next_of(events: &mut Events, uuid: &str) -> EventKind {
    let search = async {
        loop {
            match events.next().await {
                Some(Event { domain, kind }) if domain == uuid => return kind,
                Some(_) => {}
                None => panic!("the events ended"),
            }
        }
    };
    tokio::time::timeout(Duration::from_secs(10), search).await.expect("an event in time")
}

/// libvirt shares the domain of `test:///default` between all connections of a process, so these tests take turns.
static ALONE: tokio::sync::Mutex<()> = tokio::sync::Mutex::const_new(());

#[tokio::test]
async fn life_of_a_domain() {
    let _alone = ALONE.lock().await;
    let connection = Connection::open("test:///default").await.unwrap();
    let mut events = connection.subscribe().await.unwrap();
    let domain = connection.define(XML).await.unwrap();
    assert_eq!((domain.name(), domain.uuid()), ("t", "11111111-2222-3333-4444-555555555555"));
    domain.create(Start::Running).await.unwrap();
    assert_eq!(domain.state().await.unwrap(), DomainState::Running);
    domain.suspend().await.unwrap();
    assert_eq!(domain.state().await.unwrap(), DomainState::Paused { reason: DomainState::PAUSED_USER });
    domain.resume().await.unwrap();
    domain.shutdown(ShutdownMode::Any).await.unwrap();
    assert_eq!(domain.state().await.unwrap(), DomainState::Shutoff { reason: DomainState::SHUTOFF_SHUTDOWN });
    domain.create(Start::Running).await.unwrap();
    domain.destroy().await.unwrap();
    domain.undefine().await.unwrap();

    let expected = [
        Lifecycle::Defined,
        Lifecycle::Started,
        Lifecycle::Suspended(SuspendDetail::Paused),
        Lifecycle::Resumed,
        Lifecycle::Stopped(StopDetail::Shutdown),
        Lifecycle::Started,
        Lifecycle::Stopped(StopDetail::Destroyed),
        Lifecycle::Undefined,
    ];
    for lifecycle in expected {
        assert_eq!(next_of(&mut events, domain.uuid()).await, EventKind::Lifecycle(lifecycle));
    }
}

#[tokio::test]
async fn lookups_and_descriptions() {
    let _alone = ALONE.lock().await;
    let connection = Connection::open("test:///default").await.unwrap();
    let domain = connection.domain_by_name("test").await.unwrap();
    assert!(domain.xml_desc().await.unwrap().contains("<name>test</name>"));
    assert!(connection.capabilities().await.unwrap().contains("<capabilities>"));
    assert!(connection.versions().await.unwrap().libvirt >= 9_000_000);
}

#[tokio::test]
async fn errors_have_codes() {
    let _alone = ALONE.lock().await;
    let connection = Connection::open("test:///default").await.unwrap();
    let codes = [
        (connection.domain_by_name("absent").await.err(), ErrorCode::NoDomain),
        (connection.define("<domain").await.err(), ErrorCode::Xml),
        (connection.domain_by_name("test").await.unwrap().resume().await.err(), ErrorCode::Internal),
        (Connection::open("qemu+unix:///session?socket=/nonexistent/socket").await.err(), ErrorCode::System),
    ];
    for (error, code) in codes {
        let error = error.expect("must fail");
        // `Xml` covers several codes of libvirt's parser; its text must say where.
        match code {
            ErrorCode::Xml => assert!(error.to_string().contains("domain"), "{error}"),
            code => assert_eq!(error.code(), Some(code), "{error}"),
        }
    }
    assert!(connection.domain_by_name("a\0b").await.is_err());
}

#[tokio::test]
async fn a_dropped_subscription_can_be_renewed() {
    let _alone = ALONE.lock().await;
    let connection = Connection::open("test:///default").await.unwrap();
    drop(connection.subscribe().await.unwrap());
    let mut events = connection.subscribe().await.unwrap();
    let domain = connection.domain_by_name("test").await.unwrap();
    domain.suspend().await.unwrap();
    assert_eq!(
        next_of(&mut events, domain.uuid()).await,
        EventKind::Lifecycle(Lifecycle::Suspended(SuspendDetail::Paused))
    );
    domain.resume().await.unwrap();
}
