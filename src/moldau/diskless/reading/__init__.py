"""Reads of records that no local segment contains: from objects, within budgets."""
