"""A diskless partition as requests see it."""
