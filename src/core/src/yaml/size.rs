//! How large values are, and how much of a document aliases may make up.

/// What a value takes of the bounds.
#[derive(Debug, Clone, Copy, Default)]
pub(super) struct Size {
    pub(super) values: usize,
    pub(super) bytes: usize,
    /// Lists and objects within each other; 0 for a scalar.
    pub(super) depth: usize,
}

impl Size {
    /// Adds what is in a list or an object.
    pub(super) fn add(&mut self, inner: Self) {
        self.values = self.values.saturating_add(inner.values);
        self.bytes = self.bytes.saturating_add(inner.bytes);
        self.depth = self.depth.max(inner.depth + 1);
    }
}

/// What kubectl has decoded of a document: values, keys, and aliases beside what they stand for.
pub(super) struct Decoded {
    pub(super) all: usize,
    /// In what aliases stand for.
    aliased: usize,
}

impl Decoded {
    /// Nothing but the document itself.
    pub(super) fn new() -> Self {
        Self { all: 1, aliased: 0 }
    }

    /// Counts something, and says whether kubectl goes on (`allowedAliasRatio`): in large documents less may be for aliases.
    pub(super) fn is_allowed(&mut self, all: usize, aliased: usize) -> bool {
        const SMALL: f64 = 400_000.0;
        const LARGE: f64 = 4_000_000.0;
        self.all = self.all.saturating_add(all);
        self.aliased = self.aliased.saturating_add(aliased);
        let count = (self.all as f64).clamp(SMALL, LARGE);
        let allowed = 0.99 - 0.89 * ((count - SMALL) / (LARGE - SMALL));
        self.aliased <= 100 || self.all <= 1_000 || self.aliased as f64 / self.all as f64 <= allowed
    }
}
