"""The folders of inactive chunks on a broker's disks (KIP-1114)."""
