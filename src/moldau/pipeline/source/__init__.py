"""``format("moldau")``: topics as DataFrames, in batch and in streaming queries."""
