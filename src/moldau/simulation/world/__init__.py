"""What a simulated world is made of: hosts, processes, disks, links, stores and time."""
