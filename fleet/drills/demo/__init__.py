"""`fleet demo`: real Kafka, a local fleet, a workload, kills, and an audit of what came through."""
