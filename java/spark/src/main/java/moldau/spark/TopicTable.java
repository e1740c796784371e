package moldau.spark;

import java.util.Set;
import java.util.function.Function;
import org.apache.spark.sql.connector.catalog.SupportsRead;
import org.apache.spark.sql.connector.catalog.SupportsWrite;
import org.apache.spark.sql.connector.catalog.Table;
import org.apache.spark.sql.connector.catalog.TableCapability;
import org.apache.spark.sql.connector.read.ScanBuilder;
import org.apache.spark.sql.connector.write.LogicalWriteInfo;
import org.apache.spark.sql.connector.write.WriteBuilder;
import org.apache.spark.sql.types.StructType;
import org.apache.spark.sql.util.CaseInsensitiveStringMap;

/** Topics as a table. Reads decode batches of the data source in Python, and writes are left to that data source. */
public final class TopicTable implements SupportsRead, SupportsWrite {
    private static final String DECODE_IN = "decodeIn";
    private static final String PYTHON = "python";

    private final StructType schema;
    private final Table batches;
    private final Function<StructType, Table> newRowsTable;

    /**
     * @param schema the columns of the query
     * @param newBatchesTable makes the table in Python that returns batches
     * @param newRowsTable makes a table in Python with the columns of the query. It needs a data source of its own,
     *     because Spark keeps the first reader of a data source.
     */
    public TopicTable(
            StructType schema, Function<StructType, Table> newBatchesTable, Function<StructType, Table> newRowsTable) {
        this.schema = schema;
        this.batches = newBatchesTable.apply(BatchColumn.schema());
        this.newRowsTable = newRowsTable;
    }

    @Override
    public String name() {
        return batches.name();
    }

    @Override
    @SuppressWarnings("deprecation") // Spark 4.0 does not derive the schema from the columns for every table
    public StructType schema() {
        return schema;
    }

    @Override
    public Set<TableCapability> capabilities() {
        return batches.capabilities();
    }

    @Override
    public ScanBuilder newScanBuilder(CaseInsensitiveStringMap options) {
        // Python converts columns to other types, and refuses unknown columns.
        if (RecordColumn.of(schema) == null || PYTHON.equalsIgnoreCase(options.get(DECODE_IN))) {
            return ((SupportsRead) newRowsTable.apply(schema)).newScanBuilder(options);
        }
        return new TopicScanBuilder(schema, ((SupportsRead) batches).newScanBuilder(options));
    }

    @Override
    public WriteBuilder newWriteBuilder(LogicalWriteInfo info) {
        return ((SupportsWrite) newRowsTable.apply(schema)).newWriteBuilder(info);
    }
}
