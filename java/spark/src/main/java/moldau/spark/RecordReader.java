package moldau.spark;

import java.io.IOException;
import java.nio.charset.StandardCharsets;
import java.util.Arrays;
import org.apache.spark.sql.catalyst.InternalRow;
import org.apache.spark.sql.catalyst.expressions.GenericInternalRow;
import org.apache.spark.sql.catalyst.util.GenericArrayData;
import org.apache.spark.sql.connector.metric.CustomTaskMetric;
import org.apache.spark.sql.connector.read.PartitionReader;
import org.apache.spark.unsafe.types.UTF8String;

/** Decodes the batches of a task to rows. A row is valid until the next call of {@link #next}. */
final class RecordReader implements PartitionReader<InternalRow> {
    private static final long MICROSECONDS_IN_MS = 1000;
    private static final long TIMESTAMP_MS_MAX = Long.MAX_VALUE / MICROSECONDS_IN_MS;
    private static final int TIMESTAMPS_OF_BROKER = 1;

    private final RecordColumn[] columns;
    private final PartitionReader<InternalRow> batches;
    private final RecordCursor records = new RecordCursor();
    private final FileRanges files = new FileRanges();
    private final Object[] values;
    private final InternalRow row;

    /** Whether the query or its filters need timestamps. */
    private boolean hasTimestamps;

    private UTF8String topic;
    private Integer partition;
    private long baseOffset;
    private long baseTimestampMs;
    private long maxTimestampMs;
    private boolean isTimestampOfBroker;
    private Integer timestampType;
    private long firstOffset;
    private long endOffset;
    private long firstTimestampUs;
    private long endTimestampUs;

    RecordReader(RecordColumn[] columns, PartitionReader<InternalRow> batches) {
        this.columns = columns;
        this.batches = batches;
        this.values = new Object[columns.length];
        this.row = new GenericInternalRow(values);
    }

    @Override
    public boolean next() throws IOException {
        while (true) {
            while (!records.next()) {
                if (!batches.next()) {
                    return false;
                }
                open(batches.get());
            }
            long offset = baseOffset + records.offsetDelta();
            if (offset < firstOffset || offset >= endOffset) {
                continue;
            }
            long timestampUs = hasTimestamps ? inMicroseconds(timestampMs(), offset) : 0;
            if (timestampUs < firstTimestampUs || timestampUs >= endTimestampUs) {
                continue;
            }
            fill(offset, timestampUs);
            return true;
        }
    }

    private void open(InternalRow batch) throws IOException {
        topic = batch.getUTF8String(RecordColumn.TOPIC.ordinal()).copy();
        partition = batch.getInt(RecordColumn.PARTITION.ordinal());
        baseOffset = BatchColumn.BASE_OFFSET.longIn(batch);
        baseTimestampMs = BatchColumn.BASE_TIMESTAMP.longIn(batch);
        timestampType = BatchColumn.TIMESTAMP_TYPE.intIn(batch);
        isTimestampOfBroker = timestampType == TIMESTAMPS_OF_BROKER;
        maxTimestampMs = BatchColumn.MAX_TIMESTAMP.longIn(batch);
        firstOffset = BatchColumn.FIRST_OFFSET.longIn(batch);
        endOffset = BatchColumn.END_OFFSET.longIn(batch);
        firstTimestampUs = BatchColumn.FIRST_TIMESTAMP_US.longIn(batch);
        endTimestampUs = BatchColumn.END_TIMESTAMP_US.longIn(batch);
        boolean isBounded = firstTimestampUs > Long.MIN_VALUE || endTimestampUs < Long.MAX_VALUE;
        hasTimestamps = isBounded || Arrays.asList(columns).contains(RecordColumn.TIMESTAMP);
        int size = BatchColumn.RECORDS_BYTES.intIn(batch);
        byte[] data = BatchColumn.RECORDS.isNullIn(batch)
                ? files.read(BatchColumn.FILE.textIn(batch), BatchColumn.FILE_POSITION.longIn(batch), size)
                : BatchColumn.RECORDS.bytesIn(batch);
        records.open(
                data,
                size,
                BatchColumn.RECORDS_COUNT.intIn(batch),
                topic + "-" + partition + ", offset " + baseOffset);
    }

    private long timestampMs() {
        // If the sum overflows, it overflows as in Kafka's clients and brokers.
        return isTimestampOfBroker ? maxTimestampMs : baseTimestampMs + records.timestampDelta();
    }

    private long inMicroseconds(long timeMs, long offset) {
        if (timeMs > TIMESTAMP_MS_MAX || timeMs < -TIMESTAMP_MS_MAX) {
            throw records.malformed(
                    "offset " + offset + " has timestamp " + timeMs + " ms, which microseconds cannot hold");
        }
        return timeMs * MICROSECONDS_IN_MS;
    }

    private void fill(long offset, long timestampUs) {
        for (int i = 0; i < columns.length; i++) {
            values[i] = switch (columns[i]) {
                case KEY -> records.key();
                case VALUE -> records.value();
                case TOPIC -> topic;
                case PARTITION -> partition;
                case OFFSET -> offset;
                case TIMESTAMP -> timestampUs;
                case TIMESTAMP_TYPE -> timestampType;
                case HEADERS -> headers();
            };
        }
    }

    /** The headers of the current record; null if it has none. */
    private GenericArrayData headers() {
        int count = records.headersCount();
        if (count == 0) {
            return null;
        }
        Object[] headers = new Object[count];
        for (int i = 0; i < count; i++) {
            // Bytes that are not UTF-8 are replaced, as in Kafka's client.
            String name = new String(records.nextHeaderName(), StandardCharsets.UTF_8);
            headers[i] = new GenericInternalRow(new Object[] {UTF8String.fromString(name), records.nextHeaderValue()});
        }
        return new GenericArrayData(headers);
    }

    @Override
    public InternalRow get() {
        return row;
    }

    @Override
    public CustomTaskMetric[] currentMetricsValues() {
        return batches.currentMetricsValues();
    }

    @Override
    public void close() throws IOException {
        Arrays.fill(values, null);
        try {
            files.close();
        } finally {
            batches.close();
        }
    }
}
