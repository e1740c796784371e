"""The produce path: batches are collected into objects, which are stored and committed."""
