"""The broker's side of diskless topics (KIP-1163): writing objects, reading them back, freeing them."""
