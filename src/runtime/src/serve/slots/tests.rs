use super::*;

fn table_of(limits: Limits) -> Arc<ConnectionTable> {
    ConnectionTable::new("test", &limits)
}

fn from(address: &str) -> Option<SocketAddr> {
    Some(SocketAddr::new(address.parse().unwrap(), 1))
}

fn is_evicted(slot: &ConnectionSlot) -> bool {
    slot.state.evicted.is_cancelled()
}

#[tokio::test(start_paused = true)]
async fn the_connection_that_was_idle_longest_is_closed() {
    let table = table_of(Limits { max_connections: 3, ..Limits::default() });
    let mut all = Vec::new();
    for _ in 0..3 {
        all.push(table.add(from("10.0.0.1"), false).unwrap());
        tokio::time::sleep(Duration::from_secs(1)).await;
    }
    // The first had a request, the second has one in progress, and the third still has time for its own.
    drop(all[0].state.request_started());
    let (_, open) = all[1].state.request_started();
    open.received();
    let fourth = table.add(from("10.0.0.1"), false).unwrap();
    assert_eq!(all.iter().map(is_evicted).collect::<Vec<_>>(), [true, false, false]);
    // Until that time is over.
    drop(fourth.state.request_started());
    tokio::time::sleep(Duration::from_secs(20)).await;
    let fifth = table.add(from("10.0.0.1"), false).unwrap();
    assert_eq!([is_evicted(&all[2]), is_evicted(&fourth)], [true, false]);
    let in_progress = [&fourth, &fifth].map(|slot| slot.state.request_started().1);
    in_progress.iter().for_each(OpenRequest::received);
    assert_eq!(table.add(from("10.0.0.4"), false).err(), Some(LimitReached::Server));
    drop(open);
    assert!(table.add(from("10.0.0.4"), false).is_ok());
    assert!(is_evicted(&all[1]));
}

#[tokio::test(start_paused = true)]
async fn what_counts_as_one_client() {
    for (address_of, refused) in [(network as fn(IpAddr) -> IpAddr, true), (host, false)] {
        let table = table_of(Limits { per_address: Some(1), address_of, ..Limits::default() });
        let one = table.add(from("fd00::1:1"), false).unwrap();
        let (_, in_progress) = one.state.request_started();
        in_progress.received();
        assert_eq!(table.add(from("fd00::2:1"), false).is_err(), refused);
        assert_eq!(table.add(from("fd00::1:1"), false).err(), Some(LimitReached::Address));
        assert!(table.add(from("10.0.0.1"), false).is_ok());
    }
}

/// Two addresses hold all places with a request each, and a third one opens connections without a request. Whoever has few keeps them.
#[tokio::test(start_paused = true)]
async fn the_address_that_holds_most_gives_way_first() {
    let table = table_of(Limits { max_connections: 9, per_address: Some(6), ..Limits::default() });
    let idle = |address: &str| {
        let slot = table.add(from(address), false).unwrap();
        drop(slot.state.request_started());
        slot
    };
    let kept = idle("10.0.0.9");
    let holding: Vec<_> = ["10.0.0.1", "10.0.0.2"].iter().flat_map(|of| (0..4).map(|_| idle(of))).collect();
    let mut flood = Vec::new();
    for _ in 0..50 {
        tokio::time::sleep(Duration::from_millis(2)).await;
        flood.push(table.add(from("10.0.0.3"), false).unwrap());
    }
    let left = |of: &[ConnectionSlot]| of.iter().filter(|slot| !is_evicted(slot)).count();
    assert_eq!((left(&holding[..4]), left(&holding[4..]), left(&flood)), (3, 3, 2));
    assert!(!is_evicted(&kept), "it is the only one of its address, though idle longest");
    let newcomer = table.add(from("10.0.0.4"), false).unwrap();
    for _ in 0..50 {
        flood.push(table.add(from("10.0.0.3"), false).unwrap());
    }
    assert!(!is_evicted(&kept) && !is_evicted(&newcomer));
}

/// Also where all of them come from one address, as behind a gateway, and strangers from many.
#[tokio::test(start_paused = true)]
async fn connections_with_a_certificate_never_give_way_to_those_without() {
    let table = table_of(Limits { max_connections: 4, handshakes: 2, ..Limits::default() });
    let certificate = CertificateDer::from(b"API server".to_vec());
    let verified = || {
        let slot = table.add(from("10.0.0.1"), true).unwrap();
        table.settle(&slot.state, Some(&certificate)).map(|()| slot)
    };
    let mut servers: Vec<_> = (0..3).map(|_| verified().unwrap()).collect();
    let mut strangers = Vec::new();
    for stranger in 1..100 {
        let slot = table.add(from(&format!("10.0.1.{stranger}")), true).unwrap();
        table.settle(&slot.state, None).unwrap();
        strangers.push(slot);
    }
    assert_eq!(strangers.iter().filter(|slot| !is_evicted(slot)).count(), 1);
    assert_eq!(servers.iter().filter(|slot| is_evicted(slot)).count(), 0);
    // One more closes a stranger's.
    servers.push(verified().unwrap());
    // Now all places are taken by those with certificates. A stranger may try, and one more server closes the one idle longest.
    let stranger = table.add(from("10.0.2.1"), true).unwrap();
    assert_eq!(table.settle(&stranger.state, None), Err(LimitReached::Server));
    drop(stranger);
    servers.push(verified().unwrap());
    let evicted: Vec<_> = servers.iter().map(is_evicted).collect();
    assert_eq!(evicted, [true, false, false, false, false]);
    // So many may try at once as there are handshakes.
    let trying = [(); 3].map(|()| table.add(from("10.0.2.1"), true).unwrap());
    assert_eq!(trying.each_ref().map(is_evicted), [true, false, false]);
    assert_eq!(servers.iter().filter(|slot| is_evicted(slot)).count(), 1);
    drop((servers, trying));
    drop(strangers);
    let left = table.connections.lock();
    assert_eq!((left.all.len(), left.open, left.unverified.len(), left.per_address.len()), (0, 0, 0, 0));
}

#[tokio::test(start_paused = true)]
async fn one_address_closes_only_its_own_connections() {
    let table = table_of(Limits { max_connections: 4, per_address: Some(2), ..Limits::default() });
    let other = table.add(from("10.0.0.9"), false).unwrap();
    tokio::time::sleep(Duration::from_secs(1)).await;
    let [first, second] = [(); 2].map(|()| table.add(from("10.0.0.1"), false).unwrap());
    let third = table.add(from("10.0.0.1"), false).unwrap();
    assert!(is_evicted(&first) && !is_evicted(&second) && !is_evicted(&other));
    let open = [&second, &third].map(|slot| slot.state.request_started().1);
    open.iter().for_each(OpenRequest::received);
    assert_eq!(table.add(from("10.0.0.1"), false).err(), Some(LimitReached::Address));
    assert!(table.add(from("10.0.0.2"), false).is_ok());
    // A client has a whole IPv6 network.
    let _v6 = table.add(from("fd00::1"), false).unwrap();
    drop((first, second));
    let same = ["fd00::2", "fd00::3"].map(|address| table.add(from(address), false).unwrap());
    assert!(is_evicted(&_v6) && !is_evicted(&same[1]));
}

#[tokio::test(start_paused = true)]
async fn one_identity_closes_only_its_own_connections() {
    let identify = |certificate: &CertificateDer<'_>| String::from_utf8_lossy(certificate).into_owned();
    let per_identity = Some(PerIdentity { most: 2, identify });
    let table = table_of(Limits { max_connections: 9, per_identity, ..Limits::default() });
    let connect = |identity: &str| {
        let slot = table.add(from("10.0.0.1"), true).unwrap();
        let certificate = CertificateDer::from(identity.as_bytes().to_vec());
        table.settle(&slot.state, Some(&certificate)).map(|()| slot)
    };
    let other = connect("b").unwrap();
    tokio::time::sleep(Duration::from_secs(1)).await;
    let [first, second, third] = [(); 3].map(|()| connect("a").unwrap());
    assert!(is_evicted(&first) && !is_evicted(&second) && !is_evicted(&other));
    let open = [&second, &third].map(|slot| slot.state.request_started().1);
    open.iter().for_each(OpenRequest::received);
    assert_eq!(connect("a").err(), Some(LimitReached::Identity));
    assert!(connect("b").is_ok());
    drop((first, second));
    assert!(connect("a").is_ok(), "one has closed");
    drop((open, third, other));
    assert!(table.connections.lock().per_identity.is_empty());
}

#[tokio::test(start_paused = true)]
async fn handshakes_have_a_part_of_the_places() {
    let table = table_of(Limits { max_connections: 10, handshakes: 2, ..Limits::default() });
    let done = table.add(from("10.0.0.1"), true).unwrap();
    done.state.handshake_finished();
    let hanging = [(); 2].map(|()| table.add(from("10.0.0.1"), true).unwrap());
    let _next = table.add(from("10.0.0.2"), true).unwrap();
    assert!(is_evicted(&hanging[0]) && !is_evicted(&hanging[1]) && !is_evicted(&done));
    drop(hanging);
    let _more = table.add(from("10.0.0.2"), true).unwrap();
    assert!(!is_evicted(&_next));
}
