"""The local segments of diskless partitions, and how they follow the coordinators."""
