"""Where the bytes of remote segments lie, and how segments are laid out there."""
