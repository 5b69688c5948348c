"""A fleet of Kafka proxies that agree, by Raft, on who owns which broker."""

__version__ = "0.3.0"
