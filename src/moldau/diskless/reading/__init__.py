"""Reading what no local segment holds: from objects, within budgets."""
