"""A client for tools: finds leaders and coordinators, sends requests, reads partitions."""
