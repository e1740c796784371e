"""Requests of admin clients: configs, log directories, and changes that the controller decides."""
