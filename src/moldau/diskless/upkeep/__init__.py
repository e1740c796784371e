"""The background work: retention, deleting objects, finding orphans and files without an owner."""
