"""A client for tools. It finds leaders and coordinators, sends requests and reads partitions."""
