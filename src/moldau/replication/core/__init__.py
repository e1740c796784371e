"""The core of a replica: roles, epochs, watermark, in-sync sets. Pure."""
