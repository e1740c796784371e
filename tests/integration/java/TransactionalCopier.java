import java.time.Duration;
import java.util.Arrays;
import java.util.HashMap;
import java.util.List;
import java.util.Map;
import java.util.concurrent.CountDownLatch;

import org.apache.kafka.clients.consumer.ConsumerRecord;
import org.apache.kafka.clients.consumer.ConsumerRecords;
import org.apache.kafka.clients.consumer.KafkaConsumer;
import org.apache.kafka.clients.consumer.OffsetAndMetadata;
import org.apache.kafka.clients.producer.KafkaProducer;
import org.apache.kafka.clients.producer.ProducerRecord;
import org.apache.kafka.common.TopicPartition;
import org.apache.kafka.common.serialization.StringDeserializer;
import org.apache.kafka.common.serialization.StringSerializer;

/**
 * Copies exactly once: BOOTSTRAP NAME... For each name it copies the records of NAME-in to the same partitions of
 * NAME-out, a few in each transaction, with the offsets. It aborts every third transaction. After any error it starts
 * again with new clients. Runs until it is killed.
 */
public class TransactionalCopier {
    public static void main(String[] arguments) throws Exception {
        for (String name : Arrays.copyOfRange(arguments, 1, arguments.length)) {
            new Thread(() -> {
                while (true) {
                    try {
                        copy(arguments[0], name);
                    } catch (Throwable error) {
                        System.out.println(name + ": " + error);
                    }
                }
            }).start();
        }
        new CountDownLatch(1).await();
    }

    static void copy(String bootstrap, String name) {
        Map<String, Object> reading = Map.of(
            "bootstrap.servers", bootstrap, "group.id", name + "-copiers", "isolation.level", "read_committed",
            "enable.auto.commit", false, "auto.offset.reset", "earliest", "max.poll.records", 7,
            "session.timeout.ms", 2000, "heartbeat.interval.ms", 300);
        Map<String, Object> writing = Map.of(
            "bootstrap.servers", bootstrap, "transactional.id", name + "-copier", "transaction.timeout.ms", 5000,
            "delivery.timeout.ms", 5000, "request.timeout.ms", 2000, "max.block.ms", 10000, "linger.ms", 0);
        KafkaProducer<String, String> producer = new KafkaProducer<>(writing, new StringSerializer(), new StringSerializer());
        KafkaConsumer<String, String> consumer = new KafkaConsumer<>(reading, new StringDeserializer(), new StringDeserializer());
        try {
            producer.initTransactions();
            consumer.subscribe(List.of(name + "-in"));
            int transactions = 0;
            while (true) {
                ConsumerRecords<String, String> records = consumer.poll(Duration.ofMillis(200));
                if (records.isEmpty()) continue;
                producer.beginTransaction();
                Map<TopicPartition, OffsetAndMetadata> next = new HashMap<>();
                Map<TopicPartition, Long> first = new HashMap<>();
                for (ConsumerRecord<String, String> record : records) {
                    TopicPartition from = new TopicPartition(record.topic(), record.partition());
                    producer.send(new ProducerRecord<>(name + "-out", record.partition(), record.key(), record.value()));
                    next.put(from, new OffsetAndMetadata(record.offset() + 1));
                    first.putIfAbsent(from, record.offset());
                }
                producer.sendOffsetsToTransaction(next, consumer.groupMetadata());
                if (++transactions % 3 == 0) {
                    producer.flush();
                    producer.abortTransaction();
                    first.forEach(consumer::seek);
                } else {
                    producer.commitTransaction();
                }
            }
        } finally {
            producer.close(Duration.ZERO);
            consumer.close(Duration.ZERO);
        }
    }
}
