"""The produce path: batches are gathered into objects, stored and committed."""
