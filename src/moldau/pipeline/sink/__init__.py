"""``df.write.format("moldau")``: writes rows as records, exactly once if a single coordinator can commit
them.
"""
