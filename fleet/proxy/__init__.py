"""The data plane: a worker, its connections, and the parts that they share."""
