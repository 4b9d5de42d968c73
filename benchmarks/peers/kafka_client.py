"""confluent-kafka for plain writing and reading; Kafka's Java client for groups and transactions."""

from __future__ import annotations

import os
import time
from collections.abc import Mapping
from typing import Any

from confluent_kafka import Consumer, Producer, TopicPartition
from confluent_kafka.admin import AdminClient, NewTopic

from benchmarks.peers.contract import QUIET_S_MAX, REPLICAS, Measured, Watch
from benchmarks.peers.kafka_java import GROUPS, TRANSACTIONS, KafkaJava

PRODUCER = {"acks": "all", "batch.size": 1 << 20, "linger.ms": 5, "queue.buffering.max.messages": 1_000_000}
LONE = {"acks": "all", "linger.ms": 0}
CONSUMER = {
    "enable.auto.commit": False,
    "auto.offset.reset": "earliest",
    "queued.min.messages": 1_000_000,
    "fetch.queue.backoff.ms": 10,
}
CONSUMED = 10_000  # messages in one call


class KafkaClient:
    """The workloads."""

    def __init__(self, servers: str) -> None:
        self._servers = {"bootstrap.servers": servers}
        self._groups, self._transactions = KafkaJava(GROUPS, servers), KafkaJava(TRANSACTIONS, servers)
        self._readers = 0

    def make(self, topic: str, partitions: int) -> None:
        admin = AdminClient(self._servers)  # its calls end with it
        admin.create_topics([NewTopic(topic, partitions, REPLICAS)])[topic].result()

    def produce(self, topic: str, records: int, size: int) -> Measured:
        producer, value = self._producer(PRODUCER, topic), os.urandom(size)
        with Watch() as watch:
            for _ in range(records):
                while True:
                    try:
                        producer.produce(topic, value)
                        break
                    except BufferError:
                        producer.poll(0.01)
            producer.flush()
        return watch.measured(records)

    def lone(self, topic: str, records: int, size: int) -> Measured:
        producer, value, took_s = self._producer(LONE, topic), os.urandom(size), []
        with Watch() as watch:
            for _ in range(records):
                began_s = time.perf_counter()
                producer.produce(topic, value)
                producer.flush()
                took_s.append(time.perf_counter() - began_s)
        return watch.measured(records, took_s)

    def offer(self, topic: str, records: int, size: int, rate: float) -> Measured:
        """One thread produces and polls: librdkafka's own threads do the rest."""
        producer, value, took_s = self._producer(LONE, topic), os.urandom(size), []
        with Watch() as watch:
            started_s = time.perf_counter()
            for number in range(records):
                due_s = started_s + number / rate
                while (left_s := due_s - time.perf_counter()) > 0:
                    producer.poll(left_s)

                def done(_error: object, _message: object, due_s: float = due_s) -> None:
                    took_s.append(time.perf_counter() - due_s)

                producer.produce(topic, value, on_delivery=done)
            producer.flush()
        return watch.measured(records, took_s)

    def read(self, topic: str, records: int) -> Measured:
        self._readers += 1
        consumer = Consumer({**self._servers, **CONSUMER, "group.id": f"reader-{self._readers}"})
        partitions = consumer.list_topics(topic).topics[topic].partitions
        consumer.assign([TopicPartition(topic, number, 0) for number in partitions])
        first = found = len(consumer.consume(1, QUIET_S_MAX))
        with Watch() as watch:
            while found < records:
                for message in consumer.consume(min(CONSUMED, records - found), QUIET_S_MAX):
                    message.value()
                    found += 1
        consumer.close()
        return watch.measured(found - first)

    def group_read(self, topic: str, records: int, group: str, protocol: str = "consumer") -> Measured:
        """`protocol`: classic, or consumer (KIP-848)."""
        return self._groups.run(protocol, topic, records, group)

    def work(self, topic: str, records: int, group: str) -> Measured:
        """By a share group."""
        return self._groups.run("share", topic, records, group)

    def transactions(self, topic: str, partitions: int, transactions: int, records: int, size: int) -> Measured:
        return self._transactions.run("transactions", topic, partitions, transactions, records, size)

    def transact(self, topic: str, records: int, size: int, batch: int) -> Measured:
        return self._transactions.run("transact", topic, records, size, batch)

    def process(self, source: str, target: str, records: int, batch: int) -> Measured:
        return self._transactions.run("process", source, target, records, batch)

    def close(self) -> None:
        self._groups.close()
        self._transactions.close()

    def _producer(self, settings: Mapping[str, Any], topic: str) -> Producer:
        """Connected: its first record, which does not count, is acknowledged."""
        producer = Producer({**self._servers, **settings})
        producer.produce(topic, b"")
        producer.flush()
        return producer
