use std::future::pending;

use tokio::io::DuplexStream;

use super::*;

/// A joined stream: the client's websocket, and the guest's end.
async fn joined(framing: Framing) -> (WebSocketStream<DuplexStream>, DuplexStream, tokio::task::JoinHandle<()>) {
    let (client, server) = tokio::io::duplex(1 << 16);
    let (guest, target) = tokio::io::duplex(1 << 16);
    let server = WebSocketStream::from_raw_socket(server, Role::Server, Some(limits())).await;
    let client = WebSocketStream::from_raw_socket(client, Role::Client, None).await;
    (client, guest, tokio::spawn(join(server, target, framing, PATIENCE, pending())))
}

/// With a guest that never reads, hundreds of streams would each hold one.
#[tokio::test]
async fn a_message_without_measure_ends_the_stream() {
    let (mut client, _guest, task) = joined(Framing::Bytes).await;
    let sent = tokio::spawn(async move { client.send(Message::Binary(vec![0; 2 << 20].into())).await });
    tokio::time::timeout(Duration::from_secs(20), task).await.expect("it is kept").unwrap();
    assert!(sent.await.unwrap().is_err());
}

#[tokio::test]
async fn bytes_go_both_ways_and_the_end_is_told() {
    let (mut client, mut guest, task) = joined(Framing::Bytes).await;
    client.send(Message::Binary("in".into())).await.unwrap();
    client.send(Message::Text("put".into())).await.unwrap();
    let mut read = [0; 5];
    guest.read_exact(&mut read).await.unwrap();
    assert_eq!(&read, b"input");
    guest.write_all(b"output").await.unwrap();
    assert_eq!(client.next().await.unwrap().unwrap(), Message::Binary("output".into()));
    drop(guest);
    assert!(matches!(client.next().await, Some(Ok(Message::Close(_)))));
    task.await.unwrap();
}

#[tokio::test]
async fn a_client_that_sends_no_more_still_listens() {
    let (mut client, mut guest, _task) = joined(Framing::Bytes).await;
    client.send(Message::Binary("question".into())).await.unwrap();
    client.send(Message::Binary(Bytes::new())).await.unwrap();
    let mut asked = String::new();
    guest.read_to_string(&mut asked).await.unwrap();
    assert_eq!(asked, "question");
    guest.write_all(b"answer").await.unwrap();
    assert_eq!(client.next().await.unwrap().unwrap(), Message::Binary("answer".into()));
}

#[tokio::test]
async fn a_message_is_a_datagram() {
    let (mut client, mut guest, _task) = joined(Framing::Datagrams).await;
    for text in ["one", "", "three"] {
        client.send(Message::Binary(text.into())).await.unwrap();
        let length = usize::from(guest.read_u16().await.unwrap());
        let mut datagram = vec![0; length];
        guest.read_exact(&mut datagram).await.unwrap();
        assert_eq!(datagram, text.as_bytes());
        guest.write_all(&u16::try_from(length).unwrap().to_be_bytes()).await.unwrap();
        guest.write_all(&datagram).await.unwrap();
        assert_eq!(client.next().await.unwrap().unwrap(), Message::Binary(text.into()));
    }
}

#[tokio::test]
async fn a_client_that_does_not_answer_is_given_up() {
    let (client, server) = tokio::io::duplex(1 << 16);
    let (_guest, target) = tokio::io::duplex(1 << 16);
    let server = WebSocketStream::from_raw_socket(server, Role::Server, None).await;
    let mut client = WebSocketStream::from_raw_socket(client, Role::Client, None).await;
    let patience = Patience { ask: Duration::from_millis(20), give_up: Duration::from_millis(100) };
    // The client is not polled meanwhile: it answers neither messages nor pings.
    join(server, target, Framing::Bytes, patience, pending()).await;
    assert!(matches!(client.next().await, Some(Ok(Message::Ping(_)))), "it was not asked first");
}

#[tokio::test]
async fn a_withdrawn_right_ends_the_stream_and_says_so() {
    let (client, server) = tokio::io::duplex(1 << 16);
    let (_guest, target) = tokio::io::duplex(1 << 16);
    let server = WebSocketStream::from_raw_socket(server, Role::Server, None).await;
    let mut client = WebSocketStream::from_raw_socket(client, Role::Client, None).await;
    let (revoke, revoked) = tokio::sync::oneshot::channel::<String>();
    let task = tokio::spawn(join(server, target, Framing::Bytes, PATIENCE, async { revoked.await.unwrap() }));
    revoke.send("no more".into()).unwrap();
    match client.next().await {
        Some(Ok(Message::Close(Some(frame)))) => {
            assert_eq!((frame.code, &*frame.reason), (CloseCode::Policy, "no more"))
        }
        other => panic!("{other:?}"),
    }
    task.await.unwrap();
}

#[tokio::test]
async fn a_slow_reader_holds_the_guest_back() {
    let (client, mut guest, _task) = joined(Framing::Bytes).await;
    let chunk = vec![7u8; 1 << 16];
    // Everything between guest and client is bounded: at some point a write waits.
    let blocked = async {
        for _ in 0..1000 {
            guest.write_all(&chunk).await.unwrap();
        }
    };
    assert!(
        tokio::time::timeout(Duration::from_millis(300), blocked).await.is_err(),
        "64 MB were taken from the guest"
    );
    drop(client);
}

/// Whatever a client sends as websocket frames, its stream ends or goes on: no panic, and nothing else is touched.
#[tokio::test]
async fn no_frames_make_the_stream_stumble() {
    let rounds = if std::env::var_os("FERROVIRT_LONG").is_some() { 100_000 } else { 500 };
    for round in 0..rounds {
        let mut state: u64 = round;
        let mut next = move || {
            state = state.wrapping_add(0x9e37_79b9_7f4a_7c15);
            let mut z = state;
            z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
            z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
            z ^ (z >> 31)
        };
        // Frames of every kind and length, masked or not, some with lengths that are not true.
        let mut bytes = Vec::new();
        for _ in 0..1 + next() % 5 {
            let opcode = [0x0, 0x1, 0x2, 0x8, 0x9, 0xa, 0x3, 0xf][(next() % 8) as usize];
            let flags = [0x80, 0x00, 0xc0, 0xf0][(next() % 4) as usize];
            let payload: Vec<u8> = (0..next() % 200).map(|_| next() as u8).collect();
            bytes.push(flags | opcode);
            let mask = if next() % 8 == 0 { 0 } else { 0x80 };
            match next() % 6 {
                0 => bytes.extend([&[mask | 127][..], &next().to_be_bytes()].concat()),
                1 => bytes.extend([&[mask | 126][..], &(next() as u16).to_be_bytes()].concat()),
                _ if payload.len() < 126 => bytes.push(mask | payload.len() as u8),
                _ => bytes.extend([&[mask | 126][..], &(payload.len() as u16).to_be_bytes()].concat()),
            }
            bytes.extend((next() as u32).to_be_bytes());
            bytes.extend(payload);
        }
        let framing = if round % 2 == 0 { Framing::Bytes } else { Framing::Datagrams };
        let (mut client, server) = tokio::io::duplex(1 << 16);
        let (guest, target) = tokio::io::duplex(1 << 16);
        let server = WebSocketStream::from_raw_socket(server, Role::Server, None).await;
        let task = tokio::spawn(join(server, target, framing, PATIENCE, pending()));
        client.write_all(&bytes).await.unwrap();
        drop((client, guest));
        assert!(task.await.is_ok(), "round {round}: {bytes:02x?}");
    }
}

/// Reads end with an error, as those of a console that another client has taken.
struct Taken;

impl AsyncRead for Taken {
    fn poll_read(
        self: std::pin::Pin<&mut Self>,
        _: &mut std::task::Context<'_>,
        _: &mut tokio::io::ReadBuf<'_>,
    ) -> std::task::Poll<io::Result<()>> {
        std::task::Poll::Ready(Err(io::ErrorKind::ConnectionAborted.into()))
    }
}

/// Upstream's client knows by the missing farewell that it was not the guest who ended.
#[tokio::test]
async fn a_stream_that_was_taken_away_ends_without_a_word() {
    let (client, server) = tokio::io::duplex(1 << 16);
    let server = WebSocketStream::from_raw_socket(server, Role::Server, None).await;
    let mut client = WebSocketStream::from_raw_socket(client, Role::Client, None).await;
    let target = tokio::io::join(Taken, tokio::io::sink());
    join(server, target, Framing::Bytes, PATIENCE, pending()).await;
    let end = client.next().await;
    assert!(matches!(end, None | Some(Err(_))), "{end:?}");
}
