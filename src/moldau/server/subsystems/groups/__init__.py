"""Consumer groups on a broker: their coordinators, and the settings of the coordinators."""
