"""Apache Kafka: requests, record batches, fetches, transactions, offsets, administration."""
