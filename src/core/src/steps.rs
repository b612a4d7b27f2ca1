//! How many steps an algorithm takes, for tests: what strangers send is read by nothing that is worse than O(n log n).
//!
//! The loops that could become such call [`step`]. Outside of tests it is nothing.

#[cfg(test)]
thread_local! {
    static STEPS: std::cell::Cell<usize> = const { std::cell::Cell::new(0) };
}

/// One turn of a loop, or one comparison.
#[inline]
pub(crate) fn step() {
    #[cfg(test)]
    STEPS.set(STEPS.get() + 1);
}

/// Runs an algorithm on inputs of two sizes, one eight times the other, and compares its steps: n log n makes at most twelve times
/// as many of it, n² makes sixty-four.
#[cfg(test)]
pub(crate) fn assert_nearly_linear<I>(input: impl Fn(usize) -> I, run: impl Fn(&mut I)) {
    const SMALL: usize = 250;
    let count = |size: usize| {
        let mut input = input(size);
        STEPS.set(0);
        run(&mut input);
        STEPS.get()
    };
    let (small, large) = (count(SMALL), count(8 * SMALL));
    assert!(small >= SMALL / 2, "only {small} steps were counted: the algorithm was not reached");
    assert!(large <= 12 * small, "{small} steps became {large} for an input eight times as large");
}
