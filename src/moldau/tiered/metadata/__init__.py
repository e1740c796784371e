"""The metadata of remote segments: their events, the topic that keeps them, the caches made from it."""
