"""The broker's side of diskless topics (KIP-1163). It writes objects, reads them, and deletes unused
objects."""
