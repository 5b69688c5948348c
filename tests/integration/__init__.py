"""A real Kafka with foreign clients. A package, so that its fleet ends with its last test."""
