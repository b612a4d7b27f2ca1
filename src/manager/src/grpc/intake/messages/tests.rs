use std::convert::Infallible;
use std::time::Duration;

use futures::{FutureExt, StreamExt};
use outrigger_proto::shape::method;
use outrigger_proto::v1::workload_chunked_stream_request::Message as Kind;
use outrigger_proto::v1::{WorkloadChunkedStreamRequest, WorkloadSync, WorkloadUpdate};
use tokio::time::Instant;
use tonic::Code;

use super::super::budget::{Budget, Payer};
use super::*;

const BOUNDS: Bounds = Bounds { bytes: 20 << 20, entries: 100_000, items: 1000 };

fn shape() -> &'static Shape {
    method("/universe.workload.v1.WorkloadService/WorkloadChunkedStream").unwrap().request
}

fn messages(body: Body, budget: &Budget, payer: &str) -> Messages {
    Messages::new(body, shape(), BOUNDS, budget.share(&Payer::from(payer)))
}

/// A body of these frames, which goes on without a word when they are read, or ends.
fn body(frames: Vec<Vec<u8>>, ends: bool) -> Body {
    let frames = futures::stream::iter(frames).map(|frame| Ok::<_, Infallible>(Bytes::from(frame)));
    if ends { Body::from_stream(frames) } else { Body::from_stream(frames.chain(futures::stream::pending())) }
}

fn framed(message: &[u8]) -> Vec<u8> {
    let length = u32::try_from(message.len()).unwrap();
    [&[0][..], &length.to_be_bytes(), message].concat()
}

/// A sync of so many workloads that say nothing.
fn sync(workloads: usize) -> WorkloadChunkedStreamRequest {
    let workload_updates = vec![WorkloadUpdate::default(); workloads];
    WorkloadChunkedStreamRequest { message: Some(Kind::WorkloadSync(WorkloadSync { workload_updates })) }
}

async fn refused(frames: Vec<Vec<u8>>, ends: bool) -> Status {
    messages(body(frames, ends), &Budget::default(), "a").next().await.unwrap_err()
}

#[tokio::test]
async fn messages_come_whole_however_the_body_is_cut() {
    let all = [sync(0), sync(3), sync(40_000)];
    let wire: Vec<u8> = all.iter().flat_map(|message| framed(&message.encode_to_vec())).collect();
    for size in [1, 4, 5, 7, 1000, wire.len()] {
        let frames = wire.chunks(size).map(<[u8]>::to_vec).collect();
        let stream = messages(body(frames, true), &Budget::default(), "a").decoded();
        let found: Vec<WorkloadChunkedStreamRequest> =
            stream.map(|taken| taken.unwrap().message).collect().await;
        assert!(found == all, "frames of {size}");
    }
}

#[tokio::test]
async fn what_is_too_much_is_refused_before_it_is_read_or_decoded() {
    let header = |length: u32| [&[0][..], &length.to_be_bytes()].concat();
    // Nothing comes after the header: its length is enough to know.
    let status = refused(vec![header(20 << 20 | 1)], false).await;
    assert_eq!(status.code(), Code::ResourceExhausted);
    assert!(status.message().contains("has 20971521 bytes, at most 20971520 are allowed"), "{status}");
    let wire = [&[0x1a, 0xc2, 0x9a, 0x0c][..], &[0x0a, 0].repeat(100_001)].concat();
    let status = refused(vec![framed(&wire)], true).await;
    assert_eq!(status.code(), Code::ResourceExhausted);
    let words = "has 100001 entries of repeated fields, at most 100000 are allowed";
    assert!(status.message().contains(words), "{status}");
}

#[tokio::test]
async fn what_is_no_message_is_refused() {
    for (frame, code) in [
        (framed(&[0x0a, 5]), Code::InvalidArgument),
        (vec![1, 0, 0, 0, 1, 0], Code::Unimplemented),
        (vec![0, 0, 0, 0, 2, 0], Code::Cancelled),
        (vec![0, 0], Code::Cancelled),
    ] {
        let status = refused(vec![frame.clone()], true).await;
        assert_eq!(status.code(), code, "{frame:?}: {status}");
    }
}

#[tokio::test(start_paused = true)]
async fn a_message_that_never_ends_gives_back_what_it_holds() {
    let budget = Budget::default();
    let half = framed(&vec![0; 1 << 20])[..1000].to_vec();
    let mut slow = messages(body(vec![half], false), &budget, "a");
    let start = Instant::now();
    let status = slow.next().await.unwrap_err();
    assert_eq!(status.code(), Code::DeadlineExceeded, "{status}");
    assert_eq!(start.elapsed(), limits::MESSAGE_GRACE + Duration::from_secs(8));
    let share = budget.share(&Payer::from("a"));
    assert!(share.buffered.take(limits::BUFFERED_BYTES_PER_TENANT).now_or_never().is_some());
}

#[tokio::test]
async fn nothing_is_lost_when_a_wait_is_given_up() {
    let budget = Budget::default();
    let (sender, frames) = tokio::sync::mpsc::unbounded_channel::<Result<Bytes, Infallible>>();
    let frames = futures::stream::unfold(frames, |mut frames| async { Some((frames.recv().await?, frames)) });
    let stream = messages(Body::from_stream(frames), &budget, "a").decoded();
    let mut stream = Box::pin(stream);
    for byte in framed(&sync(2).encode_to_vec()) {
        assert!(stream.next().now_or_never().is_none());
        sender.send(Ok(vec![byte].into())).unwrap();
    }
    let taken: DecodedMessage<WorkloadChunkedStreamRequest> = stream.next().await.unwrap().unwrap();
    assert_eq!(taken.message, sync(2));
}

#[tokio::test]
async fn a_tenant_whose_messages_are_being_taken_in_waits_and_the_others_do_not() {
    let budget = Budget::default();
    // Decoded, four of them are more than a tenant may have.
    let large = sync(90_000).encode_to_vec();
    let open = |payer| {
        let stream = messages(body(vec![framed(&large)], false), &budget, payer).decoded();
        Box::pin(stream)
            as futures::stream::BoxStream<'_, Result<DecodedMessage<WorkloadChunkedStreamRequest>, Status>>
    };
    let mut streams: Vec<_> = (0..4).map(|_| open("a")).collect();
    let mut taken = Vec::new();
    for stream in &mut streams[..3] {
        taken.push(stream.next().await.unwrap().unwrap());
    }
    let (mut last, mut other) = (streams.pop().unwrap(), open("b"));
    tokio::select! {
        biased;
        _ = last.next() => panic!("it has to wait for the others of its tenant"),
        of_b = other.next() => assert!(of_b.unwrap().is_ok()),
    }
    taken.pop();
    assert!(last.next().await.unwrap().is_ok());
}
