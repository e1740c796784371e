"""The state of a log outside its segments, and the invariants of its parts."""
