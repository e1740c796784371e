"""Between the core's messages and Kafka's."""
