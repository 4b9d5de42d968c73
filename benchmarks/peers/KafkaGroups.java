// Kafka's Java client, as kafka_java.py runs it: one command per line of standard input, one answer per line.
//
//     line in: classic|consumer|share TOPIC RECORDS GROUP       line out: RECORDS ELAPSED_S CPU_S

import com.sun.management.OperatingSystemMXBean;
import java.lang.management.ManagementFactory;
import java.time.Duration;
import java.util.*;
import org.apache.kafka.clients.admin.*;
import org.apache.kafka.clients.consumer.*;
import org.apache.kafka.common.config.ConfigResource;
import org.apache.kafka.common.serialization.ByteArrayDeserializer;

public class KafkaGroups {
    static final Duration WAIT = Duration.ofMillis(200);
    static final long QUIET_NS = 60_000_000_000L;
    static final OperatingSystemMXBean SYSTEM =
        (OperatingSystemMXBean) ManagementFactory.getOperatingSystemMXBean();

    public static void main(String[] arguments) throws Exception {
        Scanner lines = new Scanner(System.in);
        while (lines.hasNextLine()) {
            String[] words = lines.nextLine().split(" ");
            long records = Long.parseLong(words[2]);
            String answer = words[0].equals("share")
                ? share(arguments[0], words[1], records, words[3])
                : group(arguments[0], words[0], words[1], records, words[3]);
            System.out.println(answer);
            System.out.flush();
        }
    }

    static Properties settings(String servers, String group) {
        Properties settings = new Properties();
        settings.put("bootstrap.servers", servers);
        settings.put("group.id", group);
        settings.put("key.deserializer", ByteArrayDeserializer.class.getName());
        settings.put("value.deserializer", ByteArrayDeserializer.class.getName());
        return settings;
    }

    /** One offset per partition: a classic group, or one of KIP-848. Commits after each poll, without waiting. */
    static String group(String servers, String protocol, String topic, long records, String group) {
        Properties settings = settings(servers, group);
        settings.put("group.protocol", protocol);
        settings.put("auto.offset.reset", "earliest");
        settings.put("enable.auto.commit", "false");
        settings.put("max.poll.records", "5000");
        try (KafkaConsumer<byte[], byte[]> consumer = new KafkaConsumer<>(settings)) {
            consumer.subscribe(List.of(topic));
            long found = 0, first = 0, cpu = 0, started = 0, heard = System.nanoTime();
            while (found < records) {
                int count = consumer.poll(WAIT).count();
                if (count == 0) {
                    check(heard, found, records);
                    continue;
                }
                heard = System.nanoTime();
                found += count;
                consumer.commitAsync();
                if (started == 0) {  // the partitions are assigned
                    started = heard;
                    cpu = SYSTEM.getProcessCpuTime();
                    first = found;
                }
            }
            consumer.commitSync();
            return answer(found - first, started, cpu);
        }
    }

    /** One ack per record. A share group begins at the end of a topic unless its own setting says otherwise. */
    static String share(String servers, String topic, long records, String group) throws Exception {
        try (Admin admin = Admin.create(Map.<String, Object>of("bootstrap.servers", servers))) {
            ConfigEntry earliest = new ConfigEntry("share.auto.offset.reset", "earliest");
            ConfigResource resource = new ConfigResource(ConfigResource.Type.GROUP, group);
            AlterConfigOp set = new AlterConfigOp(earliest, AlterConfigOp.OpType.SET);
            admin.incrementalAlterConfigs(Map.of(resource, List.of(set))).all().get();
        }
        Properties settings = settings(servers, group);
        settings.put("share.acknowledgement.mode", "explicit");
        settings.put("max.poll.records", "5000");
        try (KafkaShareConsumer<byte[], byte[]> consumer = new KafkaShareConsumer<>(settings)) {
            consumer.subscribe(List.of(topic));
            long found = 0, first = 0, cpu = 0, started = 0, heard = System.nanoTime();
            while (found < records) {
                ConsumerRecords<byte[], byte[]> polled = consumer.poll(WAIT);
                if (polled.isEmpty()) {
                    check(heard, found, records);
                    continue;
                }
                heard = System.nanoTime();
                for (ConsumerRecord<byte[], byte[]> record : polled) {
                    consumer.acknowledge(record, AcknowledgeType.ACCEPT);
                }
                found += polled.count();
                consumer.commitAsync();
                if (started == 0) {
                    started = heard;
                    cpu = SYSTEM.getProcessCpuTime();
                    first = found;
                }
            }
            consumer.commitSync();
            return answer(found - first, started, cpu);
        }
    }

    static void check(long heard, long found, long records) {
        if (System.nanoTime() - heard > QUIET_NS) {
            throw new IllegalStateException(found + " of " + records + " records");
        }
    }

    static String answer(long records, long started, long cpu) {
        double elapsed = (System.nanoTime() - started) / 1e9;
        return records + " " + elapsed + " " + (SYSTEM.getProcessCpuTime() - cpu) / 1e9;
    }
}
