"""A real Kafka, with clients that nobody here wrote. A package, so that its fleet ends with its last test."""
