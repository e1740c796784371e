"""What a log knows of the producers that wrote to it."""
