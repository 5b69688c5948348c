"""Kafka brokers and members of a fleet as processes of this machine."""
