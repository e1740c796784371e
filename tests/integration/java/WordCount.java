import java.util.Arrays;
import java.util.Map;
import java.util.Properties;
import java.util.concurrent.CountDownLatch;

import org.apache.kafka.common.serialization.Serdes;
import org.apache.kafka.streams.KafkaStreams;
import org.apache.kafka.streams.StreamsBuilder;
import org.apache.kafka.streams.kstream.Materialized;
import org.apache.kafka.streams.kstream.Produced;
import org.apache.kafka.streams.state.Stores;

/**
 * Counts words exactly once: BOOTSTRAP STATE_FOLDER NAME... For each name it reads the lines in NAME-in and writes
 * every new count of a word to NAME-out. Runs until it is killed.
 */
public class WordCount {
    public static void main(String[] arguments) throws Exception {
        for (String name : Arrays.copyOfRange(arguments, 2, arguments.length)) {
            StreamsBuilder builder = new StreamsBuilder();
            builder.<String, String>stream(name + "-in")
                .flatMapValues(line -> Arrays.asList(line.split(" ")))
                .groupBy((key, word) -> word)
                .count(Materialized.<String, Long>as(Stores.inMemoryKeyValueStore("counts"))
                    .withKeySerde(Serdes.String()).withValueSerde(Serdes.Long()))
                .toStream()
                .mapValues(count -> Long.toString(count))
                .to(name + "-out", Produced.with(Serdes.String(), Serdes.String()));
            Properties options = new Properties();
            options.putAll(Map.of(
                "application.id", "words-" + name, "bootstrap.servers", arguments[0], "state.dir", arguments[1],
                "processing.guarantee", "exactly_once_v2", "commit.interval.ms", 100,
                "statestore.cache.max.bytes", 0, "default.key.serde", Serdes.StringSerde.class,
                "default.value.serde", Serdes.StringSerde.class, "replication.factor", 3));
            options.putAll(Map.of(
                "producer.transaction.timeout.ms", 3000, "consumer.session.timeout.ms", 2000,
                "consumer.heartbeat.interval.ms", 300, "consumer.auto.offset.reset", "earliest"));
            KafkaStreams streams = new KafkaStreams(builder.build(), options);
            streams.setUncaughtExceptionHandler(error -> {
                error.printStackTrace();
                return org.apache.kafka.streams.errors.StreamsUncaughtExceptionHandler.StreamThreadExceptionResponse.REPLACE_THREAD;
            });
            streams.start();
        }
        new CountDownLatch(1).await();
    }
}
