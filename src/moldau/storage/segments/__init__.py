"""The segments of a log. This package has their files and indexes, and opens, scans and replaces them."""
