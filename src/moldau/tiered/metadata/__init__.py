"""The metadata of remote segments: their events, the topic that stores the events, and the caches built from
them."""
