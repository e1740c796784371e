"""The broker's side of diskless topics (KIP-1163): it writes objects, reads them and deletes unused ones."""
