"""Kafka's wire protocol: headers, frames, and patches of addresses, without I/O."""
