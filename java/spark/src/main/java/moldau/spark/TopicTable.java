package moldau.spark;

import java.util.Map;
import java.util.Set;
import org.apache.spark.sql.connector.catalog.SupportsRead;
import org.apache.spark.sql.connector.catalog.SupportsWrite;
import org.apache.spark.sql.connector.catalog.Table;
import org.apache.spark.sql.connector.catalog.TableCapability;
import org.apache.spark.sql.connector.expressions.Transform;
import org.apache.spark.sql.connector.read.ScanBuilder;
import org.apache.spark.sql.connector.write.LogicalWriteInfo;
import org.apache.spark.sql.connector.write.WriteBuilder;
import org.apache.spark.sql.execution.datasources.v2.python.PythonDataSourceV2;
import org.apache.spark.sql.types.StructType;
import org.apache.spark.sql.util.CaseInsensitiveStringMap;

/** Topics as a table. Reads decode batches of the data source in Python, and writes are left to that data source. */
public final class TopicTable implements SupportsRead, SupportsWrite {
    private static final String DECODE_IN = "decodeIn";
    private static final String PYTHON = "python";

    private final StructType schema;
    private final PythonDataSourceV2 loaded;

    /**
     * @param schema the columns of the query
     * @param loaded the data source in Python, with the topics and offsets of {@code load()}
     */
    public TopicTable(StructType schema, PythonDataSourceV2 loaded) {
        this.schema = schema;
        this.loaded = loaded;
    }

    @Override
    public String name() {
        return PinnedSource.newTable(loaded, schema).name();
    }

    @Override
    @SuppressWarnings("deprecation") // Spark 4.0 does not derive the schema from the columns for every table
    public StructType schema() {
        return schema;
    }

    @Override
    public Set<TableCapability> capabilities() {
        return PinnedSource.newTable(loaded, schema).capabilities();
    }

    @Override
    public ScanBuilder newScanBuilder(CaseInsensitiveStringMap options) {
        // Python converts columns to other types, and refuses unknown columns.
        if (RecordColumn.of(schema) == null || PYTHON.equalsIgnoreCase(options.get(DECODE_IN))) {
            return newScanBuilder(schema, options);
        }
        return new TopicScanBuilder(schema, newScanBuilder(BatchColumn.schema(), options));
    }

    private ScanBuilder newScanBuilder(StructType columns, CaseInsensitiveStringMap options) {
        return ((SupportsRead) PinnedSource.newTable(loaded, columns)).newScanBuilder(options);
    }

    @Override
    public WriteBuilder newWriteBuilder(LogicalWriteInfo info) {
        Table rows = PinnedSource.newSource().getTable(schema, new Transform[0], Map.of());
        return ((SupportsWrite) rows).newWriteBuilder(info);
    }
}
