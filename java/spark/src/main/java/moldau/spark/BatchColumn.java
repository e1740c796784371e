package moldau.spark;

import java.util.Locale;
import org.apache.spark.sql.catalyst.InternalRow;
import org.apache.spark.sql.types.DataType;
import org.apache.spark.sql.types.DataTypes;
import org.apache.spark.sql.types.StructType;

/**
 * The columns that the data source in Python returns if its batches are decoded here, one row for each batch of
 * records. They follow the columns of records. {@code moldau/pipeline/source/batch_rows.py} has the same columns.
 */
enum BatchColumn {
    /** The records of the batch, decompressed, without the header of the batch; null if they are in a file. */
    RECORDS(DataTypes.BinaryType),
    /** The local file that has the records; null if they are in {@link #RECORDS}. */
    FILE(DataTypes.StringType),
    /** The position of the records in the file. */
    FILE_POSITION(DataTypes.LongType),
    /** The size of the records. */
    RECORDS_BYTES(DataTypes.IntegerType),
    /** The number of records, from the header of the batch. */
    RECORDS_COUNT(DataTypes.IntegerType),
    /** The offset to which the records' offset deltas are added. */
    BASE_OFFSET(DataTypes.LongType),
    /** The time in milliseconds to which the records' timestamp deltas are added. */
    BASE_TIMESTAMP(DataTypes.LongType),
    /** The timestamp of all records in milliseconds, if the broker has set it. */
    MAX_TIMESTAMP(DataTypes.LongType),
    /** 0: the producer has set the timestamps. 1: the broker has set them. */
    TIMESTAMP_TYPE(DataTypes.IntegerType),
    /** The first offset of the query. Earlier records of the batch are skipped. */
    FIRST_OFFSET(DataTypes.LongType),
    /** The offset behind the last record of the query. */
    END_OFFSET(DataTypes.LongType),
    /** The first timestamp of the query in microseconds. Records with earlier timestamps are skipped. */
    FIRST_TIMESTAMP_US(DataTypes.LongType),
    /** The timestamp in microseconds at which the query ends. Records with this or a later timestamp are skipped. */
    END_TIMESTAMP_US(DataTypes.LongType);

    private static final String PREFIX = "_batch_";
    private static final int FIRST_INDEX = RecordColumn.values().length;

    private final DataType type;

    BatchColumn(DataType type) {
        this.type = type;
    }

    /**
     * The columns of records, and the columns of batches. Spark looks for the columns of a query's filters among the
     * columns of records. Of these, only {@code topic} and {@code partition} have values.
     */
    static StructType schema() {
        StructType schema = new StructType();
        for (RecordColumn column : RecordColumn.values()) {
            schema = schema.add(column.field());
        }
        for (BatchColumn column : values()) {
            schema = schema.add(PREFIX + column.name().toLowerCase(Locale.ROOT), column.type);
        }
        return schema;
    }

    boolean isNullIn(InternalRow row) {
        return row.isNullAt(index());
    }

    byte[] bytesIn(InternalRow row) {
        return row.getBinary(index());
    }

    String textIn(InternalRow row) {
        return row.getUTF8String(index()).toString();
    }

    int intIn(InternalRow row) {
        return row.getInt(index());
    }

    long longIn(InternalRow row) {
        return row.getLong(index());
    }

    private int index() {
        return FIRST_INDEX + ordinal();
    }
}
