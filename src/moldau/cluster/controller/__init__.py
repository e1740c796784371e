"""The controller: its decisions as one object, the service that runs it, and the channels that brokers
use."""
