"""``df.write.format("moldau")``: rows as records, exactly once where one coordinator can commit them."""
