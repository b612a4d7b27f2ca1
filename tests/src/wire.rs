//! gRPC as bytes: what a client of another version has sent, and servers that know less than Outrigger's.

use axum::Router;
use bytes::{Buf, BufMut, Bytes};
use outrigger_runtime::bind::Bind;
use outrigger_runtime::serve::Server;
use tokio_util::sync::CancellationToken;
use tonic::Status;
use tonic::codec::{Codec, DecodeBuf, Decoder, EncodeBuf, Encoder};

/// Messages that are bytes already.
#[derive(Debug, Clone, Copy, Default)]
pub struct Raw;

impl Codec for Raw {
    type Encode = Bytes;
    type Decode = Bytes;
    type Encoder = Self;
    type Decoder = Self;

    fn encoder(&mut self) -> Self {
        Self
    }

    fn decoder(&mut self) -> Self {
        Self
    }
}

impl Encoder for Raw {
    type Item = Bytes;
    type Error = Status;

    fn encode(&mut self, message: Bytes, to: &mut EncodeBuf<'_>) -> Result<(), Status> {
        to.put(message);
        Ok(())
    }
}

impl Decoder for Raw {
    type Item = Bytes;
    type Error = Status;

    fn decode(&mut self, from: &mut DecodeBuf<'_>) -> Result<Option<Bytes>, Status> {
        let length = from.remaining();
        Ok(Some(from.copy_to_bytes(length)))
    }
}

/// The messages of a body as it is on the wire: each after a byte that says whether it is compressed, and four with its
/// length.
pub fn messages(mut body: Bytes) -> Vec<Bytes> {
    let mut all = Vec::new();
    while !body.is_empty() {
        assert_eq!(body.get_u8(), 0, "compressed");
        let length = body.get_u32() as usize;
        all.push(body.split_to(length));
    }
    all
}

/// Serves a router in plain text on loopback, until the token is cancelled. Returns its port.
pub fn serve(router: Router, end: CancellationToken) -> u16 {
    let listener = "127.0.0.1:0".parse::<Bind>().expect("an address").listen().expect("a port");
    let port = listener.address().expect("an address").port();
    tokio::spawn(Server::new("test", listener).run(router, end.clone(), end));
    port
}
