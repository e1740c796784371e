import java.nio.charset.StandardCharsets;
import java.time.Duration;
import java.util.*;
import java.util.concurrent.*;
import org.apache.kafka.clients.admin.*;
import org.apache.kafka.clients.consumer.*;
import org.apache.kafka.clients.producer.*;
import org.apache.kafka.common.*;
import org.apache.kafka.common.acl.AclBindingFilter;
import org.apache.kafka.common.config.ConfigResource;
import org.apache.kafka.common.errors.*;
import org.apache.kafka.common.header.internals.RecordHeader;
import org.apache.kafka.common.serialization.*;

/** Many checks of one broker in one JVM. Prints "ok NAME" or "failed NAME: REASON" for each check. */
public class JavaClients {
    static String bootstrap;
    static String prefix;
    static Admin admin;

    interface Check { void run(String topic) throws Exception; }

    public static void main(String[] arguments) throws Exception {
        bootstrap = arguments[0];
        prefix = arguments[1];
        Map<String, Check> checks = new LinkedHashMap<>();
        for (String codec : List.of("none", "gzip", "snappy", "lz4", "zstd"))
            checks.put("codec-" + codec, topic -> roundTrip(topic, codec));
        checks.put("null-and-empty", JavaClients::nullAndEmpty);
        checks.put("too-large", JavaClients::tooLarge);
        checks.put("list-offsets", JavaClients::listOffsets);
        checks.put("describe-topics", JavaClients::describeTopics);
        checks.put("describe-topic-partitions-cursor", JavaClients::describeTopicsInPages);
        checks.put("configs", JavaClients::configs);
        checks.put("create-partitions", JavaClients::createPartitions);
        checks.put("delete-records", JavaClients::deleteRecords);
        checks.put("cluster", JavaClients::cluster);
        checks.put("features", JavaClients::features);
        checks.put("log-dirs", JavaClients::logDirs);
        checks.put("producers", JavaClients::producers);
        checks.put("transactions", JavaClients::transactions);
        checks.put("transactional-offsets", JavaClients::transactionalOffsets);
        checks.put("transaction-fencing", JavaClients::transactionFencing);
        checks.put("transactions-described", JavaClients::transactionsDescribed);
        checks.put("transactions-on-diskless", JavaClients::transactionsOnDiskless);
        checks.put("acls-unknown", JavaClients::aclsUnknown);
        checks.put("config-resources", JavaClients::configResources);
        checks.put("quorum", JavaClients::quorum);
        checks.put("group", JavaClients::group);
        checks.put("rebalance-cooperative", topic -> rebalance(topic, CooperativeStickyAssignor.class));
        checks.put("rebalance-range", topic -> rebalance(topic, RangeAssignor.class));
        checks.put("static-member", JavaClients::staticMember);
        checks.put("topic-created-again", JavaClients::topicCreatedAgain);
        try (Admin opened = Admin.create(Map.of("bootstrap.servers", bootstrap, "request.timeout.ms", "60000", "default.api.timeout.ms", "60000"))) {
            admin = opened;
            for (Map.Entry<String, Check> check : checks.entrySet()) run(check.getKey(), check.getValue());
        }
    }

    static void run(String name, Check check) {
        try {
            check.run(prefix + "-" + name);
            System.out.println("ok " + name);
        } catch (Throwable thrown) {
            String at = thrown.getStackTrace().length > 0 ? " at " + thrown.getStackTrace()[0] : "";
            System.out.println("failed " + name + ": " + thrown.toString().replace('\n', ' ') + at);
        }
    }

    static void same(Object expected, Object actual) {
        if (!Objects.equals(expected, actual)) throw new AssertionError("expected " + expected + ", not " + actual);
    }

    static void create(String topic, int partitions, Map<String, String> configs) throws Exception {
        admin.createTopics(List.of(new NewTopic(topic, partitions, (short) 1).configs(configs))).all().get();
    }

    static KafkaProducer<String, String> producer(Map<String, Object> options) {
        Map<String, Object> all = new HashMap<>(Map.of("bootstrap.servers", bootstrap, "max.block.ms", 60000));
        all.putAll(options);
        return new KafkaProducer<>(all, new StringSerializer(), new StringSerializer());
    }

    static KafkaConsumer<String, String> consumer(Map<String, Object> options) {
        Map<String, Object> all = new HashMap<>(Map.of(
            "bootstrap.servers", bootstrap, "auto.offset.reset", "earliest", "enable.auto.commit", false,
            "heartbeat.interval.ms", 200, "session.timeout.ms", 45000));
        all.putAll(options);
        return new KafkaConsumer<>(all, new StringDeserializer(), new StringDeserializer());
    }

    static void send(String topic, int count) throws Exception {
        try (KafkaProducer<String, String> producer = producer(Map.of())) {
            List<Future<RecordMetadata>> sent = new ArrayList<>();
            for (int number = 0; number < count; number++)
                sent.add(producer.send(new ProducerRecord<>(topic, 0, 1000L * (number + 1), "k", "" + number)));
            for (Future<RecordMetadata> future : sent) future.get();
        }
    }

    static List<ConsumerRecord<String, String>> take(KafkaConsumer<String, String> consumer, int count) {
        List<ConsumerRecord<String, String>> taken = new ArrayList<>();
        long deadline = System.nanoTime() + 60_000_000_000L;
        while (taken.size() < count) {
            if (System.nanoTime() > deadline) throw new AssertionError(taken.size() + " of " + count + " records");
            consumer.poll(Duration.ofMillis(200)).forEach(taken::add);
        }
        return taken;
    }

    static List<ConsumerRecord<String, String>> read(String topic, int count) {
        try (KafkaConsumer<String, String> consumer = consumer(Map.of())) {
            TopicPartition partition = new TopicPartition(topic, 0);
            consumer.assign(List.of(partition));
            consumer.seekToBeginning(List.of(partition));
            return take(consumer, count);
        }
    }

    static void roundTrip(String topic, String codec) throws Exception {
        create(topic, 1, Map.of());
        for (String acks : List.of("0", "1", "all")) {
            boolean idempotent = acks.equals("all");
            Map<String, Object> options =
                Map.of("compression.type", codec, "acks", acks, "enable.idempotence", idempotent, "linger.ms", 5);
            try (KafkaProducer<String, String> producer = producer(options)) {
                for (int number = 0; number < 200; number++) {
                    ProducerRecord<String, String> record = new ProducerRecord<>(topic, "k", acks + " ".repeat(50) + number);
                    record.headers().add(new RecordHeader("h", "v".getBytes(StandardCharsets.UTF_8)));
                    producer.send(record);
                }
            }
        }
        List<ConsumerRecord<String, String>> records = read(topic, 600);
        same(600, records.size());
        for (int index = 0; index < 600; index++) {
            same((long) index, records.get(index).offset());
            same(List.of("0", "1", "all").get(index / 200) + " ".repeat(50) + index % 200, records.get(index).value());
        }
        same("h", records.get(0).headers().iterator().next().key());
    }

    static void nullAndEmpty(String topic) throws Exception {
        create(topic, 1, Map.of());
        try (KafkaProducer<String, String> producer = producer(Map.of())) {
            producer.send(new ProducerRecord<String, String>(topic, (Integer) 0, (Long) 77L, "tombstone", null)).get();
            producer.send(new ProducerRecord<String, String>(topic, (Integer) 0, (Long) 78L, null, "")).get();
        }
        List<ConsumerRecord<String, String>> records = read(topic, 2);
        same(null, records.get(0).value());
        same(77L, records.get(0).timestamp());
        same(null, records.get(1).key());
        same("", records.get(1).value());
    }

    static void tooLarge(String topic) throws Exception {
        create(topic, 1, Map.of("max.message.bytes", "2000"));
        try (KafkaProducer<String, String> producer = producer(Map.of())) {
            producer.send(new ProducerRecord<>(topic, "x".repeat(3000))).get();
            throw new AssertionError("accepted");
        } catch (ExecutionException refused) {
            same(RecordTooLargeException.class, refused.getCause().getClass());
        }
    }

    static void listOffsets(String topic) throws Exception {
        create(topic, 1, Map.of());
        send(topic, 5);
        TopicPartition partition = new TopicPartition(topic, 0);
        Map<OffsetSpec, Long> expected = new LinkedHashMap<>();
        expected.put(OffsetSpec.earliest(), 0L);
        expected.put(OffsetSpec.latest(), 5L);
        expected.put(OffsetSpec.maxTimestamp(), 4L);
        expected.put(OffsetSpec.forTimestamp(2500), 2L);
        expected.put(OffsetSpec.forTimestamp(9999), -1L);
        expected.put(OffsetSpec.earliestLocal(), 0L);
        for (Map.Entry<OffsetSpec, Long> entry : expected.entrySet())
            same(entry.getValue(),
                admin.listOffsets(Map.of(partition, entry.getKey())).partitionResult(partition).get().offset());
    }

    static void describeTopics(String topic) throws Exception {
        create(topic, 3, Map.of());
        TopicDescription described = admin.describeTopics(List.of(topic)).allTopicNames().get().get(topic);
        same(3, described.partitions().size());
        same(false, described.isInternal());
        same(1, described.partitions().get(2).isr().size());
        Uuid id = described.topicId();
        same(topic, admin.describeTopics(TopicCollection.ofTopicIds(List.of(id))).allTopicIds().get().get(id).name());
        try {
            admin.describeTopics(List.of(topic + "-none")).allTopicNames().get();
            throw new AssertionError("described");
        } catch (ExecutionException refused) {
            same(UnknownTopicOrPartitionException.class, refused.getCause().getClass());
        }
    }

    static void describeTopicsInPages(String topic) throws Exception {
        create(topic, 5, Map.of());
        DescribeTopicsOptions options = new DescribeTopicsOptions().partitionSizeLimitPerResponse(2);
        same(5, admin.describeTopics(List.of(topic), options).allTopicNames().get().get(topic).partitions().size());
    }

    static void configs(String topic) throws Exception {
        // Only classic topics can be compacted.
        create(topic, 1, Map.of("retention.ms", "1000", "diskless.enable", "false"));
        ConfigResource resource = new ConfigResource(ConfigResource.Type.TOPIC, topic);
        AlterConfigOp change = new AlterConfigOp(new ConfigEntry("cleanup.policy", "compact"), AlterConfigOp.OpType.APPEND);
        admin.incrementalAlterConfigs(Map.of(resource, List.of(change))).all().get();
        DescribeConfigsOptions options = new DescribeConfigsOptions().includeSynonyms(true).includeDocumentation(true);
        Config config = admin.describeConfigs(List.of(resource), options).all().get().get(resource);
        same("1000", config.get("retention.ms").value());
        same(ConfigEntry.ConfigSource.DYNAMIC_TOPIC_CONFIG, config.get("retention.ms").source());
        same("delete,compact", config.get("cleanup.policy").value());
        same(ConfigEntry.ConfigSource.DEFAULT_CONFIG, config.get("segment.bytes").source());
        same(true, config.get("segment.bytes").documentation().length() > 10);
        ConfigResource broker = new ConfigResource(ConfigResource.Type.BROKER, "1");
        AlterConfigOp threads = new AlterConfigOp(new ConfigEntry("log.cleaner.threads", "2"), AlterConfigOp.OpType.SET);
        admin.incrementalAlterConfigs(Map.of(broker, List.of(threads))).all().get();
        same("2", admin.describeConfigs(List.of(broker)).all().get().get(broker).get("log.cleaner.threads").value());
    }

    static void createPartitions(String topic) throws Exception {
        create(topic, 1, Map.of());
        admin.createPartitions(Map.of(topic, NewPartitions.increaseTo(3))).all().get();
        same(3, admin.describeTopics(List.of(topic)).allTopicNames().get().get(topic).partitions().size());
    }

    static void deleteRecords(String topic) throws Exception {
        create(topic, 1, Map.of());
        send(topic, 5);
        TopicPartition partition = new TopicPartition(topic, 0);
        DeleteRecordsResult result = admin.deleteRecords(Map.of(partition, RecordsToDelete.beforeOffset(3)));
        same(3L, result.lowWatermarks().get(partition).get().lowWatermark());
        same("3", read(topic, 2).get(0).value());
    }

    /** Clients report the id of their cluster to this listener. */
    static class NotingCluster extends StringDeserializer implements ClusterResourceListener {
        static volatile String id;

        @Override
        public void onUpdate(ClusterResource found) {
            id = found.clusterId();
        }
    }

    static void cluster(String topic) throws Exception {
        DescribeClusterResult cluster = admin.describeCluster();
        same(22, cluster.clusterId().get().length());
        Map<String, Object> options = new HashMap<>(Map.of("bootstrap.servers", bootstrap));
        try (KafkaConsumer<String, String> consumer = new KafkaConsumer<>(options, new NotingCluster(), new NotingCluster())) {
            consumer.listTopics();
            same(cluster.clusterId().get(), NotingCluster.id);
        }
        same(1, cluster.nodes().get().size());
        same(1, cluster.controller().get().id());
    }

    static void features(String topic) throws Exception {
        FeatureMetadata features = admin.describeFeatures().featureMetadata().get();
        same(true, features.finalizedFeatures().containsKey("metadata.version"));
    }

    static void logDirs(String topic) throws Exception {
        create(topic, 1, Map.of());
        send(topic, 5);
        Map<String, LogDirDescription> folders = admin.describeLogDirs(List.of(1)).allDescriptions().get().get(1);
        ReplicaInfo replica = folders.values().iterator().next().replicaInfos().get(new TopicPartition(topic, 0));
        same(true, replica.size() > 0);
    }

    static void producers(String topic) throws Exception {
        create(topic, 1, Map.of());
        send(topic, 5);
        TopicPartition partition = new TopicPartition(topic, 0);
        List<ProducerState> states =
            admin.describeProducers(List.of(partition)).partitionResult(partition).get().activeProducers();
        same(1, states.size());
        same(4, states.get(0).lastSequence());
    }

    static final Map<String, String> CLASSIC = Map.of("diskless.enable", "false");

    static List<String> committed(String topic, int count) {
        try (KafkaConsumer<String, String> consumer = consumer(Map.of("isolation.level", "read_committed"))) {
            TopicPartition partition = new TopicPartition(topic, 0);
            consumer.assign(List.of(partition));
            consumer.seekToBeginning(List.of(partition));
            List<String> values = new ArrayList<>();
            take(consumer, count).forEach(record -> values.add(record.value()));
            consumer.poll(Duration.ofMillis(50)).forEach(record -> values.add(record.value()));
            return values;
        }
    }

    static void transactions(String topic) throws Exception {
        create(topic, 1, CLASSIC);
        List<String> expected = new ArrayList<>();
        try (KafkaProducer<String, String> producer = producer(Map.of("transactional.id", topic))) {
            producer.initTransactions();
            for (int number = 0; number < 6; number++) {
                producer.beginTransaction();
                for (int part = 0; part < 3; part++) producer.send(new ProducerRecord<>(topic, "k", number + "/" + part));
                producer.flush();
                if (number % 2 == 0) {
                    producer.commitTransaction();
                    for (int part = 0; part < 3; part++) expected.add(number + "/" + part);
                } else {
                    producer.abortTransaction();
                }
            }
        }
        same(expected, committed(topic, expected.size()));
        same(18, read(topic, 18).size());
    }

    static void transactionalOffsets(String topic) throws Exception {
        String out = topic + "-out", group = topic + "-group";
        create(topic, 1, CLASSIC);
        create(out, 1, CLASSIC);
        send(topic, 10);
        Map<String, Object> options = Map.of("group.id", group, "isolation.level", "read_committed");
        try (KafkaProducer<String, String> producer = producer(Map.of("transactional.id", topic));
             KafkaConsumer<String, String> consumer = consumer(options)) {
            producer.initTransactions();
            consumer.subscribe(List.of(topic));
            List<ConsumerRecord<String, String>> taken = take(consumer, 10);
            TopicPartition partition = new TopicPartition(topic, 0);
            for (boolean commits : List.of(false, true)) {
                producer.beginTransaction();
                for (ConsumerRecord<String, String> record : taken)
                    producer.send(new ProducerRecord<>(out, "k", record.value() + (commits ? "" : " aborted")));
                producer.sendOffsetsToTransaction(Map.of(partition, new OffsetAndMetadata(10)), consumer.groupMetadata());
                if (commits) producer.commitTransaction();
                else producer.abortTransaction();
                OffsetAndMetadata found = consumer.committed(Set.of(partition)).get(partition);
                same(commits ? 10L : null, found == null ? null : found.offset());
            }
        }
        same(10, committed(out, 10).size());
    }

    static void transactionFencing(String topic) throws Exception {
        create(topic, 1, CLASSIC);
        try (KafkaProducer<String, String> zombie = producer(Map.of("transactional.id", topic));
             KafkaProducer<String, String> next = producer(Map.of("transactional.id", topic))) {
            zombie.initTransactions();
            zombie.beginTransaction();
            zombie.send(new ProducerRecord<>(topic, "k", "zombie")).get();
            next.initTransactions();
            next.beginTransaction();
            next.send(new ProducerRecord<>(topic, "k", "next")).get();
            try {
                zombie.commitTransaction();
                throw new AssertionError("committed");
            } catch (ProducerFencedException | InvalidProducerEpochException fenced) {
                next.commitTransaction();
            }
        }
        same(List.of("next"), committed(topic, 1));
    }

    static void transactionsDescribed(String topic) throws Exception {
        create(topic, 1, CLASSIC);
        try (KafkaProducer<String, String> producer = producer(Map.of("transactional.id", topic))) {
            producer.initTransactions();
            producer.beginTransaction();
            producer.send(new ProducerRecord<>(topic, "k", "v")).get();
            TransactionDescription described = admin.describeTransactions(Set.of(topic)).description(topic).get();
            same(TransactionState.ONGOING, described.state());
            TopicPartition partition = new TopicPartition(topic, 0);
            same(Set.of(partition), described.topicPartitions());
            ListTransactionsOptions wanted = new ListTransactionsOptions()
                .filterStates(Set.of(TransactionState.ONGOING)).filterOnTransactionalIdPattern(topic + ".*");
            List<TransactionListing> listed = new ArrayList<>(admin.listTransactions(wanted).all().get());
            same(List.of(topic), listed.stream().map(TransactionListing::transactionalId).toList());
            ProducerState state = admin.describeProducers(Set.of(partition)).partitionResult(partition).get().activeProducers().get(0);
            same(OptionalLong.of(0), state.currentTransactionStartOffset());
            admin.abortTransaction(new AbortTransactionSpec(
                partition, state.producerId(), (short) state.producerEpoch(), state.coordinatorEpoch().orElse(0))).all().get();
            producer.abortTransaction();
        }
        same(TransactionState.COMPLETE_ABORT, admin.describeTransactions(Set.of(topic)).description(topic).get().state());
    }

    static void transactionsOnDiskless(String topic) throws Exception {
        try {
            create(topic, 1, Map.of("diskless.enable", "true"));
        } catch (ExecutionException without) {
            same(InvalidConfigurationException.class, without.getCause().getClass()); // a node without diskless topics
            return;
        }
        String classic = topic + "-classic";
        create(classic, 1, CLASSIC);
        try (KafkaProducer<String, String> producer = producer(Map.of("transactional.id", topic))) {
            producer.initTransactions();
            for (String outcome : List.of("aborted", "committed", "aborted again", "committed again")) {
                producer.beginTransaction();
                producer.send(new ProducerRecord<>(topic, "k", outcome)).get();
                producer.send(new ProducerRecord<>(classic, "k", outcome)).get();
                if (outcome.startsWith("committed")) {
                    producer.commitTransaction();
                } else {
                    producer.abortTransaction();
                }
            }
        }
        same(List.of("committed", "committed again"), committed(topic, 2));
        same(List.of("committed", "committed again"), committed(classic, 2));
    }

    static void aclsUnknown(String topic) throws Exception {
        try {
            admin.describeAcls(AclBindingFilter.ANY).values().get();
            throw new AssertionError("described");
        } catch (ExecutionException refused) {
            same(UnsupportedVersionException.class, refused.getCause().getClass());
        }
    }

    static void configResources(String topic) throws Exception {
        create(topic, 1, Map.of());
        Collection<ConfigResource> found =
            admin.listConfigResources(Set.of(ConfigResource.Type.TOPIC), new ListConfigResourcesOptions()).all().get();
        same(true, found.contains(new ConfigResource(ConfigResource.Type.TOPIC, topic)));
    }

    static void quorum(String topic) throws Exception {
        QuorumInfo info = admin.describeMetadataQuorum().quorumInfo().get();
        same(1, info.leaderId());
        same(1, info.voters().size());
    }

    static void group(String topic) throws Exception {
        create(topic, 1, Map.of());
        send(topic, 10);
        TopicPartition partition = new TopicPartition(topic, 0);
        Map<String, Object> options = Map.of("group.id", topic, "max.poll.records", 4);
        try (KafkaConsumer<String, String> consumer = consumer(options)) {
            consumer.subscribe(List.of(topic));
            same(4, take(consumer, 4).size());
            consumer.commitSync(Map.of(partition, new OffsetAndMetadata(4, "a note")));
            same("a note", consumer.committed(Set.of(partition)).get(partition).metadata());
            same(10L, consumer.endOffsets(Set.of(partition)).get(partition));
            same(0L, consumer.beginningOffsets(Set.of(partition)).get(partition));
            same(3L, consumer.offsetsForTimes(Map.of(partition, 3500L)).get(partition).offset());
            ClassicGroupDescription described =
                admin.describeClassicGroups(List.of(topic)).all().get().get(topic);
            same("STABLE", described.state().name());
            same(1, described.members().size());
        }
        try (KafkaConsumer<String, String> consumer = consumer(options)) {
            consumer.subscribe(List.of(topic));
            same(4L, take(consumer, 1).get(0).offset());
        }
        same(true, admin.listGroups().all().get().stream().anyMatch(listed -> listed.groupId().equals(topic)));
        admin.alterConsumerGroupOffsets(topic, Map.of(partition, new OffsetAndMetadata(2))).all().get();
        same(2L, admin.listConsumerGroupOffsets(topic).partitionsToOffsetAndMetadata().get().get(partition).offset());
        admin.deleteConsumerGroupOffsets(topic, Set.of(partition)).all().get();
        same(null, admin.listConsumerGroupOffsets(topic).partitionsToOffsetAndMetadata().get().get(partition));
        admin.deleteConsumerGroups(List.of(topic)).all().get();
        same(false, admin.listGroups().all().get().stream().anyMatch(listed -> listed.groupId().equals(topic)));
    }

    static void settle(List<KafkaConsumer<String, String>> members, List<Integer> sizes) {
        long deadline = System.nanoTime() + 60_000_000_000L;
        while (true) {
            Set<TopicPartition> owned = new HashSet<>();
            List<Integer> counts = new ArrayList<>();
            for (KafkaConsumer<String, String> member : members) {
                member.poll(Duration.ofMillis(20));
                owned.addAll(member.assignment());
                counts.add(member.assignment().size());
            }
            Collections.sort(counts);
            if (counts.equals(sizes) && owned.size() == sizes.stream().mapToInt(Integer::intValue).sum()) return;
            if (System.nanoTime() > deadline) throw new AssertionError("partitions are shared as " + counts);
        }
    }

    static void rebalance(String topic, Class<?> assignor) throws Exception {
        create(topic, 4, Map.of());
        Map<String, Object> options = Map.of("group.id", topic, "partition.assignment.strategy", assignor.getName());
        try (KafkaConsumer<String, String> first = consumer(options)) {
            first.subscribe(List.of(topic));
            settle(List.of(first), List.of(4));
            try (KafkaConsumer<String, String> second = consumer(options)) {
                second.subscribe(List.of(topic));
                settle(List.of(first, second), List.of(2, 2));
            }
            settle(List.of(first), List.of(4));
        }
    }

    static void staticMember(String topic) throws Exception {
        create(topic, 4, Map.of());
        Map<String, Object> steadyOptions = Map.of("group.id", topic, "group.instance.id", "steady");
        Map<String, Object> restartedOptions = Map.of("group.id", topic, "group.instance.id", "restarted");
        try (KafkaConsumer<String, String> steady = consumer(steadyOptions)) {
            steady.subscribe(List.of(topic));
            Set<TopicPartition> owned;
            int generation;
            try (KafkaConsumer<String, String> restarted = consumer(restartedOptions)) {
                restarted.subscribe(List.of(topic));
                settle(List.of(steady, restarted), List.of(2, 2));
                owned = steady.assignment();
                generation = steady.groupMetadata().generationId();
            }
            try (KafkaConsumer<String, String> restarted = consumer(restartedOptions)) {
                restarted.subscribe(List.of(topic));
                settle(List.of(steady, restarted), List.of(2, 2));
                same(owned, steady.assignment());
                same(generation, steady.groupMetadata().generationId());
            }
        }
        RemoveMembersFromConsumerGroupOptions members = new RemoveMembersFromConsumerGroupOptions(
            List.of(new MemberToRemove("steady"), new MemberToRemove("restarted")));
        admin.removeMembersFromConsumerGroup(topic, members).all().get();
        same("EMPTY", admin.describeClassicGroups(List.of(topic)).all().get().get(topic).state().name());
    }

    static void topicCreatedAgain(String topic) throws Exception {
        create(topic, 1, Map.of());
        try (KafkaProducer<String, String> producer = producer(Map.of("metadata.max.age.ms", 500))) {
            producer.send(new ProducerRecord<>(topic, "old")).get();
            admin.deleteTopics(List.of(topic)).all().get();
            create(topic, 1, Map.of());
            // The same producer gets the new topic id, refreshes its metadata and continues.
            same(0L, producer.send(new ProducerRecord<>(topic, "new")).get().offset());
        }
        same("new", read(topic, 1).get(0).value());
    }
}
