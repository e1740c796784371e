import java.io.BufferedReader;
import java.io.InputStreamReader;
import java.io.PrintStream;
import java.lang.reflect.InvocationTargetException;
import java.lang.reflect.Proxy;
import java.nio.charset.StandardCharsets;
import java.util.Arrays;
import java.util.List;
import java.util.Map;
import java.util.Properties;
import java.util.concurrent.ConcurrentHashMap;
import kafka.network.ConnectionQuotas;
import kafka.server.BrokerDynamicThreadPool;
import kafka.server.DynamicBrokerConfig;
import kafka.server.DynamicListenerConfig;
import kafka.server.DynamicLogConfig;
import kafka.server.DynamicRemoteLogConfig;
import kafka.server.KafkaBroker;
import kafka.server.KafkaConfig;
import org.apache.kafka.common.config.ConfigDef;
import org.apache.kafka.common.metrics.Metrics;
import org.apache.kafka.common.network.ListenerName;
import org.apache.kafka.common.utils.Time;
import org.apache.kafka.coordinator.group.GroupConfig;
import org.apache.kafka.server.config.AbstractKafkaConfig;
import org.apache.kafka.server.config.DynamicProducerStateManagerConfig;
import org.apache.kafka.server.metrics.ClientMetricsConfigs;
import org.apache.kafka.storage.internals.log.CleanerConfig;
import org.apache.kafka.storage.internals.log.LogCleaner;
import org.apache.kafka.storage.internals.log.LogConfig;
import org.apache.kafka.storage.internals.log.LogDirFailureChannel;
import org.apache.kafka.storage.internals.log.ProducerStateManagerConfig;

/**
 * Prints Kafka's verdicts on configurations.
 *
 * With the argument "keys", it prints a line for each key of each surface, with type, default and limits.
 * Otherwise each line of stdin is a case, "surface TAB key=value TAB key=value ..." with \\ \t \n escaped, and
 * stdout gets the verdicts. A verdict is "ok" or the message of the exception. The surfaces are static (a
 * server.properties file), dynamic-broker, dynamic-default, topic, group and client-metrics. The first line has the
 * base, which is the properties of the node to which the cases are added.
 */
public class ConfigVerdicts {
    static final PrintStream OUT = new PrintStream(System.out, false, StandardCharsets.UTF_8);

    public static void main(String[] args) throws Exception {
        if (args.length > 0 && args[0].equals("keys")) {
            keys();
        } else {
            verdicts();
        }
        OUT.flush();
        Runtime.getRuntime().halt(0);
    }

    static void keys() {
        Map<String, String> modes = kafka.server.DynamicBrokerConfig$.MODULE$.dynamicConfigUpdateModes();
        AbstractKafkaConfig.CONFIG_DEF.configKeys().values().forEach(key -> show("broker", key, modes.getOrDefault(key.name, "read-only")));
        LogConfig.configKeys().values().forEach(key -> show("topic", key, "-"));
        GroupConfig.configDef().configKeys().values().forEach(key -> show("group", key, "-"));
        ClientMetricsConfigs.configDef().configKeys().values().forEach(key -> show("client-metrics", key, "-"));
    }

    static void show(String surface, ConfigDef.ConfigKey key, String mode) {
        Object none = ConfigDef.NO_DEFAULT_VALUE.equals(key.defaultValue) ? null : key.defaultValue;
        String value = none == null ? "null" : ConfigDef.convertToString(none, key.type);
        OUT.println(String.join("\t", surface, key.name, key.type.toString(), escape(value), mode,
            key.internalConfig ? "internal" : "public", escape(String.valueOf(key.validator))));
    }

    static void verdicts() throws Exception {
        BufferedReader in = new BufferedReader(new InputStreamReader(System.in, StandardCharsets.UTF_8));
        Properties base = properties(in.readLine().split("\t", -1));
        KafkaNode node = new KafkaNode(base);
        for (String line = in.readLine(); line != null; line = in.readLine()) {
            String[] fields = line.split("\t", -1);
            String verdict;
            try {
                node.check(fields[0], properties(fields));
                verdict = "ok";
            } catch (Throwable failure) {
                verdict = said(failure);
            }
            OUT.println(verdict);
        }
    }

    static String said(Throwable failure) {
        Throwable cause = failure;
        while (cause.getCause() != null && (cause instanceof InvocationTargetException
                || "Invalid dynamic configuration".equals(cause.getMessage()))) {
            cause = cause.getCause();
        }
        return escape(cause.getClass().getSimpleName() + ": " + cause.getMessage());
    }

    static Properties properties(String[] fields) {
        Properties found = new Properties();
        Arrays.stream(fields).skip(1).forEach(field -> {
            int equals = field.indexOf('=');
            found.setProperty(unescape(field.substring(0, equals)), unescape(field.substring(equals + 1)));
        });
        return found;
    }

    static String escape(String text) {
        return text.replace("\\", "\\\\").replace("\t", "\\t").replace("\n", "\\n").replace("\r", "\\r");
    }

    static String unescape(String text) {
        StringBuilder plain = new StringBuilder();
        for (int at = 0; at < text.length(); at++) {
            char here = text.charAt(at);
            if (here == '\\') {
                char next = text.charAt(++at);
                plain.append(next == 't' ? '\t' : next == 'n' ? '\n' : next == 'r' ? '\r' : next);
            } else {
                plain.append(here);
            }
        }
        return plain.toString();
    }

    /** The configuration of a Kafka node that is never started. */
    static class KafkaNode {
        final Properties base;
        final KafkaConfig config;

        KafkaNode(Properties base) throws Exception {
            this.base = base;
            config = new KafkaConfig(base, false);
            DynamicBrokerConfig dynamic = config.dynamicConfig();
            dynamic.initialize(scala.Option.empty());
            KafkaBroker broker = (KafkaBroker) Proxy.newProxyInstance(
                ConfigVerdicts.class.getClassLoader(), new Class<?>[] {KafkaBroker.class},
                (proxy, method, arguments) -> method.getName().equals("config") ? config : null);
            dynamic.addBrokerReconfigurable(new BrokerDynamicThreadPool(broker));
            dynamic.addBrokerReconfigurable(new DynamicLogConfig(null));
            dynamic.addBrokerReconfigurable(new DynamicListenerConfig(broker));
            dynamic.addBrokerReconfigurable(new DynamicRemoteLogConfig(broker));
            dynamic.addBrokerReconfigurable(new LogCleaner(new CleanerConfig(config), List.of(),
                new ConcurrentHashMap<>(), new LogDirFailureChannel(1), Time.SYSTEM));
            dynamic.addBrokerReconfigurable(new DynamicProducerStateManagerConfig(
                new ProducerStateManagerConfig(86400000, true)));
            ConnectionQuotas quotas = new ConnectionQuotas(config, Time.SYSTEM, new Metrics());
            quotas.addListener(config, new ListenerName("PLAINTEXT"));
            quotas.addListener(config, new ListenerName("CONTROLLER"));
        }

        void check(String surface, Properties given) throws Exception {
            switch (surface) {
                case "static" -> {
                    Properties whole = new Properties();
                    whole.putAll(base);
                    whole.putAll(given);
                    KafkaConfig started = new KafkaConfig(whole, false);
                    LogConfig.validateBrokerLogConfigValues(started.extractLogConfigMap(),
                        started.remoteLogManagerConfig().isRemoteStorageSystemEnabled());
                }
                case "dynamic-broker" -> config.dynamicConfig().validate(given, true);
                case "dynamic-default" -> config.dynamicConfig().validate(given, false);
                case "topic" -> LogConfig.validate(Map.of(), given, config.extractLogConfigMap(),
                    config.remoteLogManagerConfig().isRemoteStorageSystemEnabled());
                case "group" -> GroupConfig.validate(given, config.groupCoordinatorConfig(), config.shareGroupConfig());
                case "client-metrics" -> ClientMetricsConfigs.validate("subscription", given);
                default -> throw new IllegalArgumentException(surface);
            }
        }
    }
}
