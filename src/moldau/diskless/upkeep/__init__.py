"""The work in the background: retention, freeing objects, finding strays and orphans."""
