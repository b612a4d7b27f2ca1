//! The rack that these tests share.

use outrigger_tests::rack::Rack;
pub(super) use outrigger_tests::rack::blue::{BLUE, CONTROL, DPU, HOST};
use tokio::sync::{Mutex, MutexGuard, OnceCell};

/// A rack in which Outrigger runs. Tests take turns: what one switches off, another one would miss.
pub(super) struct Turn {
    pub(super) rack: &'static Rack,
    _turn: MutexGuard<'static, ()>,
}

/// The rack that all tests of this process share, when it is this test's turn.
pub(super) async fn turn() -> Turn {
    static TURN: Mutex<()> = Mutex::const_new(());
    static SHARED: OnceCell<Rack> = OnceCell::const_new();
    let turn = TURN.lock().await;
    Turn { rack: SHARED.get_or_init(Rack::with_blue).await, _turn: turn }
}
