"""Every API and version that Kafka defines, through a fleet, in both directions."""
