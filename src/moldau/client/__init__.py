"""What tools need of a cluster: finding leaders and coordinators, asking them, reading partitions."""
