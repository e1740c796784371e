"""The pure core of a replica: roles, epochs, watermark, in-sync sets."""
