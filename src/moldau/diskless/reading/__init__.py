"""Reads of records that no local segment contains. They read from objects, within budgets."""
