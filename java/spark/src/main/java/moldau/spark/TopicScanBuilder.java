package moldau.spark;

import org.apache.spark.sql.connector.read.Scan;
import org.apache.spark.sql.connector.read.ScanBuilder;
import org.apache.spark.sql.connector.read.SupportsPushDownFilters;
import org.apache.spark.sql.connector.read.SupportsPushDownRequiredColumns;
import org.apache.spark.sql.sources.Filter;
import org.apache.spark.sql.types.StructType;

/** Passes the filters of a query to Python, and keeps the columns of the query for the decoding. */
final class TopicScanBuilder implements SupportsPushDownFilters, SupportsPushDownRequiredColumns {
    private final ScanBuilder batches;
    private StructType columns;

    TopicScanBuilder(StructType columns, ScanBuilder batches) {
        this.columns = columns;
        this.batches = batches;
    }

    @Override
    public Filter[] pushFilters(Filter[] filters) {
        // Before Spark 4.1, data sources in Python get no filters.
        return batches instanceof SupportsPushDownFilters pushing ? pushing.pushFilters(filters) : filters;
    }

    @Override
    public Filter[] pushedFilters() {
        return batches instanceof SupportsPushDownFilters pushing ? pushing.pushedFilters() : new Filter[0];
    }

    /** Keeps the required columns as a whole, although Spark may need only a part of {@code headers}. */
    @Override
    public void pruneColumns(StructType required) {
        StructType kept = new StructType();
        for (String name : required.fieldNames()) {
            kept = kept.add(columns.apply(name));
        }
        columns = kept;
    }

    @Override
    public Scan build() {
        return new TopicScan(columns, pushedFilters(), batches.build());
    }
}
