"""The data pipeline: Spark jobs and queries over a fleet's events; the only package that imports pyspark.

    topics ──► records (kafka_source, streams) ──► events, dead letters (parse) ──► timeline, audit

Each job has a pure core without Spark (`timeline`), or uses only Spark's own expressions (`audit`).
"""
