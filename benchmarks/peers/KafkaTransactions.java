// Kafka's transactional producer, as kafka_java.py runs it: one command per line of standard input, one answer per line.
//
//     line in: transactions TOPIC PARTITIONS TRANSACTIONS RECORDS SIZE
//              transact TOPIC RECORDS SIZE BATCH
//              process SOURCE TARGET RECORDS BATCH
//     line out: RECORDS ELAPSED_S CPU_S [MS,MS,...]

import com.sun.management.OperatingSystemMXBean;
import java.lang.management.ManagementFactory;
import java.time.Duration;
import java.util.*;
import org.apache.kafka.clients.consumer.*;
import org.apache.kafka.clients.producer.*;
import org.apache.kafka.common.TopicPartition;
import org.apache.kafka.common.serialization.*;

public class KafkaTransactions {
    static final Duration WAIT = Duration.ofMillis(200);
    static final long QUIET_MS = 60_000;
    static final OperatingSystemMXBean SYSTEM =
        (OperatingSystemMXBean) ManagementFactory.getOperatingSystemMXBean();

    public static void main(String[] arguments) throws Exception {
        Scanner lines = new Scanner(System.in);
        while (lines.hasNextLine()) {
            String[] words = lines.nextLine().split(" ");
            System.out.println(run(arguments[0], words));
            System.out.flush();
        }
    }

    static String run(String servers, String[] words) throws Exception {
        int[] numbers = new int[words.length];
        for (int at = 2; at < words.length; at++) {
            numbers[at] = words[at].matches("\\d+") ? Integer.parseInt(words[at]) : 0;
        }
        return switch (words[0]) {
            case "transactions" -> transactions(servers, words[1], numbers[2], numbers[3], numbers[4], numbers[5]);
            case "transact" -> transact(servers, words[1], numbers[2], numbers[3], numbers[4]);
            case "process" -> process(servers, words[1], words[2], numbers[3], numbers[4]);
            default -> throw new IllegalArgumentException(words[0]);
        };
    }

    /** Registered: its first transaction takes no longer than the others. */
    static KafkaProducer<byte[], byte[]> producer(String servers, String id, String lingerMs) {
        Properties settings = new Properties();
        settings.put("bootstrap.servers", servers);
        settings.put("transactional.id", id);
        settings.put("acks", "all");
        settings.put("batch.size", "1048576");
        settings.put("linger.ms", lingerMs);
        settings.put("max.request.size", "8388608");
        settings.put("buffer.memory", "67108864");
        settings.put("key.serializer", ByteArraySerializer.class.getName());
        settings.put("value.serializer", ByteArraySerializer.class.getName());
        KafkaProducer<byte[], byte[]> producer = new KafkaProducer<>(settings);
        producer.initTransactions();
        return producer;
    }

    /** Of committed records only. */
    static KafkaConsumer<byte[], byte[]> consumer(String servers, String group) {
        Properties settings = new Properties();
        settings.put("bootstrap.servers", servers);
        settings.put("group.id", group);
        settings.put("isolation.level", "read_committed");
        settings.put("auto.offset.reset", "earliest");
        settings.put("enable.auto.commit", "false");
        settings.put("max.poll.records", "1000");
        settings.put("max.partition.fetch.bytes", "8388608");
        settings.put("key.deserializer", ByteArrayDeserializer.class.getName());
        settings.put("value.deserializer", ByteArrayDeserializer.class.getName());
        return new KafkaConsumer<>(settings);
    }

    /** A consumer in a thread of its own, which counts what it gets. */
    static class Reading implements AutoCloseable {
        final Thread thread;
        long found = 0;
        volatile boolean ended = false;

        Reading(String servers, String topic, int partitions) {
            thread = new Thread(() -> read(servers, topic, partitions));
            thread.start();
        }

        void read(String servers, String topic, int partitions) {
            try (KafkaConsumer<byte[], byte[]> consumer = consumer(servers, "of-" + topic)) {
                List<TopicPartition> all = new ArrayList<>();
                for (int partition = 0; partition < partitions; partition++) {
                    all.add(new TopicPartition(topic, partition));
                }
                consumer.assign(all);
                consumer.seekToBeginning(all);
                while (!ended) {
                    int count = consumer.poll(WAIT).count();
                    synchronized (this) {
                        found += count;
                        notifyAll();
                    }
                }
            }
        }

        synchronized void await(long records) throws InterruptedException {
            long began = System.nanoTime();
            while (found < records) {
                wait(QUIET_MS);
                if (System.nanoTime() - began > QUIET_MS * 1_000_000) {
                    throw new IllegalStateException(found + " of " + records + " records");
                }
            }
        }

        @Override
        public void close() throws InterruptedException {
            ended = true;
            thread.join();
        }
    }

    /** One after the other, each timed until a committed reader has all of its records. The first does not count. */
    static String transactions(String servers, String topic, int partitions, int transactions, int records, int size)
            throws InterruptedException {
        byte[] value = value(size);
        StringJoiner took = new StringJoiner(",");
        try (KafkaProducer<byte[], byte[]> producer = producer(servers, topic, "0");
                Reading reading = new Reading(servers, topic, partitions)) {
            long started = 0, cpu = 0;
            for (int number = 0; number <= transactions; number++) {
                if (number == 1) {
                    started = System.nanoTime();
                    cpu = SYSTEM.getProcessCpuTime();
                }
                long began = System.nanoTime();
                producer.beginTransaction();
                for (int row = 0; row < records; row++) {
                    producer.send(new ProducerRecord<>(topic, row % partitions, null, value));
                }
                producer.commitTransaction();
                reading.await((number + 1L) * records);
                if (number > 0) {
                    took.add(String.format(Locale.ROOT, "%.4f", (System.nanoTime() - began) / 1e6));
                }
            }
            return answer((long) transactions * records, started, cpu) + " " + took;
        }
    }

    /** Records in transactions of `batch`, one after the other. A first one, of one record, does not count. */
    static String transact(String servers, String topic, int records, int size, int batch) {
        byte[] value = value(size);
        try (KafkaProducer<byte[], byte[]> producer = producer(servers, topic, "5")) {
            producer.beginTransaction();
            producer.send(new ProducerRecord<>(topic, value));
            producer.commitTransaction();
            long started = System.nanoTime(), cpu = SYSTEM.getProcessCpuTime();
            for (int sent = 0; sent < records; sent += batch) {
                producer.beginTransaction();
                for (int row = sent; row < Math.min(records, sent + batch); row++) {
                    producer.send(new ProducerRecord<>(topic, value));
                }
                producer.commitTransaction();
            }
            return answer(records, started, cpu);
        }
    }

    /** Copy a topic, `batch` records or a few more in a transaction with their offsets. The first does not count. */
    static String process(String servers, String source, String target, int records, int batch) {
        try (KafkaProducer<byte[], byte[]> producer = producer(servers, target, "5");
                KafkaConsumer<byte[], byte[]> consumer = consumer(servers, target)) {
            consumer.subscribe(List.of(source));
            long found = 0, first = 0, cpu = 0, started = 0, heard = System.nanoTime();
            while (found < records) {
                Map<TopicPartition, OffsetAndMetadata> offsets = new HashMap<>();
                int taken = 0;
                producer.beginTransaction();
                while (taken < batch && found + taken < records) {
                    ConsumerRecords<byte[], byte[]> polled = consumer.poll(WAIT);
                    for (ConsumerRecord<byte[], byte[]> record : polled) {
                        producer.send(new ProducerRecord<>(target, record.key(), record.value()));
                    }
                    offsets.putAll(polled.nextOffsets());
                    taken += polled.count();
                    if (!polled.isEmpty()) {
                        heard = System.nanoTime();
                    } else if (System.nanoTime() - heard > QUIET_MS * 1_000_000) {
                        throw new IllegalStateException(found + " of " + records + " records");
                    }
                }
                producer.sendOffsetsToTransaction(offsets, consumer.groupMetadata());
                producer.commitTransaction();
                found += taken;
                if (started == 0) {  // the partitions are assigned
                    started = System.nanoTime();
                    cpu = SYSTEM.getProcessCpuTime();
                    first = found;
                }
            }
            return answer(found - first, started, cpu);
        }
    }

    static byte[] value(int size) {
        byte[] value = new byte[size];
        new Random().nextBytes(value);
        return value;
    }

    static String answer(long records, long started, long cpu) {
        double elapsed = (System.nanoTime() - started) / 1e9;
        return records + " " + elapsed + " " + (SYSTEM.getProcessCpuTime() - cpu) / 1e9;
    }
}
