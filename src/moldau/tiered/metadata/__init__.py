"""The metadata of remote segments: their events, the topic that stores them, and the caches built from it."""
