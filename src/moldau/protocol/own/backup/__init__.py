"""Messages of the calls with which brokers save the cluster's logs, in a module for each API."""
