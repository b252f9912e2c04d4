//! Ways of routing that can't keep the promise of one connection.

use super::code::LeaseCode;

/// What of a route matters to a lease. A plain model is one target.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct RouteShape {
    /// How targets are used.
    pub kind: RouteKind,
    /// How many there are.
    pub targets: usize,
    /// Whether any of them names a connection.
    pub pins_connection: bool,
    /// Whether attempts may run side by side or be copied elsewhere: hedging
    /// in force, shadow routing, chaos mode.
    pub duplicates: bool,
    /// Combos among the targets.
    pub nested: Vec<Self>,
}

/// What a strategy does with its targets, as far as it matters here.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum RouteKind {
    /// One after the other, until one answers.
    #[default]
    Sequence,
    /// Each target feeds the next.
    Pipeline,
    /// Several at once, or a change of connection in the middle: `fusion`,
    /// `context-relay`.
    Several,
}

/// [`LeaseCode::UnsupportedRoute`] for a managed request over a route that
/// uses several connections for one request, or names one. Nested combos
/// count, to any depth that the configuration allows.
pub fn supported(route: &RouteShape) -> Result<(), LeaseCode> {
    let several = match route.kind {
        RouteKind::Several => true,
        RouteKind::Pipeline => route.targets > 1,
        RouteKind::Sequence => false,
    };
    let pinned = route.targets > 1 && route.pins_connection;
    if several || pinned || route.duplicates {
        return Err(LeaseCode::UnsupportedRoute);
    }
    route.nested.iter().try_for_each(supported)
}
