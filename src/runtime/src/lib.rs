//! What every server shares: TLS with rotation, the accept loop, telemetry, readiness, drain.
