"""``df.write.format("moldau")``: writes rows as records. Each row is written exactly once if a single
coordinator can commit the rows, or if the sink uses transactions."""
