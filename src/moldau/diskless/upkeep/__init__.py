"""The work in the background: retention, freeing objects, finding orphans and files without an owner."""
