package moldau;

import java.util.Map;
import moldau.spark.PinnedSource;
import moldau.spark.TopicTable;
import org.apache.spark.sql.connector.catalog.Table;
import org.apache.spark.sql.connector.catalog.TableProvider;
import org.apache.spark.sql.connector.expressions.Transform;
import org.apache.spark.sql.execution.datasources.v2.python.PythonDataSourceV2;
import org.apache.spark.sql.types.StructType;
import org.apache.spark.sql.util.CaseInsensitiveStringMap;

/**
 * {@code format("moldau")} in a session that has this jar. Spark finds this class by its name, before it looks for
 * data sources in Python.
 *
 * <p>The data source in Python still looks up topics, plans tasks, and fetches batches of records. Only the decoding of
 * records is done here, so that no decoded row passes the socket between Python and the JVM. Everything else, such as
 * writing to topics, is left to Python.
 */
public final class DefaultSource implements TableProvider {
    /** The data source in Python, with the topics and offsets of {@code load()}. */
    private final PythonDataSourceV2 loaded = PinnedSource.newSource();

    @Override
    public StructType inferSchema(CaseInsensitiveStringMap options) {
        return loaded.inferSchema(options);
    }

    @Override
    public Table getTable(StructType schema, Transform[] partitioning, Map<String, String> properties) {
        return new TopicTable(schema, loaded);
    }

    @Override
    public boolean supportsExternalMetadata() {
        return true;
    }
}
