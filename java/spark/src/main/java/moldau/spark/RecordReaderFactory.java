package moldau.spark;

import org.apache.spark.sql.catalyst.InternalRow;
import org.apache.spark.sql.connector.read.InputPartition;
import org.apache.spark.sql.connector.read.PartitionReader;
import org.apache.spark.sql.connector.read.PartitionReaderFactory;

/** Makes the readers of tasks. Spark sends it to the tasks. */
final class RecordReaderFactory implements PartitionReaderFactory {
    private static final long serialVersionUID = 1L;

    private final RecordColumn[] columns;
    private final PartitionReaderFactory batches;

    RecordReaderFactory(RecordColumn[] columns, PartitionReaderFactory batches) {
        this.columns = columns;
        this.batches = batches;
    }

    @Override
    public PartitionReader<InternalRow> createReader(InputPartition partition) {
        return new RecordReader(columns, batches.createReader(partition));
    }
}
