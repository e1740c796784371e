"""The state of a log beside its segments, and the invariants that its parts keep together."""
