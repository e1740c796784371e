"""The log of one partition: appends, truncation, epochs, retention."""
