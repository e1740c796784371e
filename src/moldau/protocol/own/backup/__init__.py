"""Messages of the calls with which brokers save the cluster's logs. There is a module for each API."""
