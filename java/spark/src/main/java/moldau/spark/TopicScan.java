package moldau.spark;

import java.lang.reflect.InvocationTargetException;
import java.lang.reflect.Proxy;
import java.util.Arrays;
import java.util.LinkedHashSet;
import java.util.Set;
import org.apache.spark.sql.connector.metric.CustomMetric;
import org.apache.spark.sql.connector.metric.CustomTaskMetric;
import org.apache.spark.sql.connector.read.Batch;
import org.apache.spark.sql.connector.read.InputPartition;
import org.apache.spark.sql.connector.read.PartitionReaderFactory;
import org.apache.spark.sql.connector.read.Scan;
import org.apache.spark.sql.connector.read.streaming.MicroBatchStream;
import org.apache.spark.sql.sources.Filter;
import org.apache.spark.sql.types.StructType;

/** A scan whose tasks are planned in Python. Its readers decode the batches that the tasks in Python return. */
final class TopicScan implements Scan {
    private static final String CREATE_READER_FACTORY = "createReaderFactory";
    private static final String EQUALS = "equals";

    private final StructType columns;
    private final Filter[] filters;
    private final Scan batches;

    /**
     * @param columns the columns of records that the query needs
     * @param filters the filters that Python applies
     * @param batches the scan of batches in Python
     */
    TopicScan(StructType columns, Filter[] filters, Scan batches) {
        this.columns = columns;
        this.filters = filters;
        this.batches = batches;
    }

    @Override
    public StructType readSchema() {
        return columns;
    }

    @Override
    public String description() {
        return "moldau, decoded in the JVM, PushedFilters: " + Arrays.toString(filters) + ", ReadSchema: "
                + columns.catalogString();
    }

    @Override
    public CustomMetric[] supportedCustomMetrics() {
        return batches.supportedCustomMetrics();
    }

    @Override
    public CustomTaskMetric[] reportDriverMetrics() {
        return batches.reportDriverMetrics();
    }

    @Override
    public Batch toBatch() {
        Batch planned = batches.toBatch();
        return new Batch() {
            @Override
            public InputPartition[] planInputPartitions() {
                return planned.planInputPartitions();
            }

            @Override
            public PartitionReaderFactory createReaderFactory() {
                return new RecordReaderFactory(RecordColumn.of(columns), planned.createReaderFactory());
            }
        };
    }

    /**
     * The stream of Python, with readers that decode batches. Which interfaces a stream has depends on the version of
     * Spark and on the reader in Python, so the result has all interfaces of the stream in Python.
     */
    @Override
    public MicroBatchStream toMicroBatchStream(String checkpoint) {
        MicroBatchStream stream = batches.toMicroBatchStream(checkpoint);
        return (MicroBatchStream) Proxy.newProxyInstance(
                TopicScan.class.getClassLoader(), interfacesOf(stream), (proxy, method, arguments) -> {
                    if (method.getName().equals(EQUALS)) {
                        return proxy == arguments[0];
                    }
                    Object result;
                    try {
                        result = method.invoke(stream, arguments);
                    } catch (InvocationTargetException error) {
                        throw error.getCause();
                    }
                    return method.getName().equals(CREATE_READER_FACTORY)
                            ? new RecordReaderFactory(RecordColumn.of(columns), (PartitionReaderFactory) result)
                            : result;
                });
    }

    private static Class<?>[] interfacesOf(Object instance) {
        Set<Class<?>> found = new LinkedHashSet<>();
        for (Class<?> type = instance.getClass(); type != null; type = type.getSuperclass()) {
            for (Class<?> one : type.getInterfaces()) {
                found.add(one);
            }
        }
        return found.toArray(Class<?>[]::new);
    }
}
