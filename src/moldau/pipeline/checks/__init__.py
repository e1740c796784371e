"""Verification and the orphan scan, as jobs."""
