package moldau.spark;

import org.apache.spark.sql.catalyst.InternalRow;
import org.apache.spark.sql.connector.read.InputPartition;
import org.apache.spark.sql.connector.read.PartitionReader;
import org.apache.spark.sql.connector.read.PartitionReaderFactory;
import org.apache.spark.sql.types.StructType;

/** Makes the readers of tasks. Spark sends it to the tasks. */
final class RecordReaderFactory implements PartitionReaderFactory {
    private static final long serialVersionUID = 1L;

    private final StructType columns;
    private final PartitionReaderFactory batches;

    RecordReaderFactory(StructType columns, PartitionReaderFactory batches) {
        this.columns = columns;
        this.batches = batches;
    }

    @Override
    public PartitionReader<InternalRow> createReader(InputPartition partition) {
        return new RecordReader(RecordColumn.of(columns), batches.createReader(partition));
    }
}
