"""What a fleet has told, made into answers by Spark; the only package that imports pyspark.

    topics ──► records (kafka_source, streams) ──► events, dead letters (parse) ──► timeline, audit

Each job has a pure core without Spark (`timeline`), or is made of Spark's own expressions alone (`audit`).
"""
