"""The client's side of the network: the RPC client, its connections, and requests to other nodes."""
