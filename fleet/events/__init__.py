"""Events of a fleet, and their way to topics of the Kafka cluster behind it."""
