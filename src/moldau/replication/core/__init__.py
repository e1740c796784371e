"""The core of a replica: its role, epoch, watermark and in-sync set. Pure."""
