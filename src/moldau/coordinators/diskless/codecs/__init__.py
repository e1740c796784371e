"""Encodes the records and calls of diskless coordinators as columns of small integers. Pure."""
