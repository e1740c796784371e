"""The metadata of remote segments: the events of segments, the topic that stores the events, and the caches
that are built from the events."""
