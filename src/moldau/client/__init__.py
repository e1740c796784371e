"""A client for tools: it finds leaders and coordinators, sends requests and reads partitions."""
