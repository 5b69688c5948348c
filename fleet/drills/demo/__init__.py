"""`fleet demo`: real Kafka, a local fleet, clients, kills, and an audit of every record."""
