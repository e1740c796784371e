package moldau.spark;

import org.apache.spark.sql.types.DataType;
import org.apache.spark.sql.types.Metadata;
import org.apache.spark.sql.types.StructField;
import org.apache.spark.sql.types.StructType;

/** The columns of records. Their names and types are those of Spark's Kafka connector. */
enum RecordColumn {
    KEY("key", "binary"),
    VALUE("value", "binary"),
    TOPIC("topic", "string"),
    PARTITION("partition", "int"),
    OFFSET("offset", "bigint"),
    TIMESTAMP("timestamp", "timestamp"),
    TIMESTAMP_TYPE("timestampType", "int"),
    HEADERS("headers", "array<struct<key:string,value:binary>>");

    private final String column;
    private final String type;

    RecordColumn(String column, String type) {
        this.column = column;
        this.type = type;
    }

    StructField field() {
        return new StructField(column, DataType.fromDDL(type), true, Metadata.empty());
    }

    /** The columns of a schema; {@code null} if the schema has other columns, or other types of columns. */
    static RecordColumn[] of(StructType schema) {
        RecordColumn[] found = new RecordColumn[schema.length()];
        for (int i = 0; i < found.length; i++) {
            found[i] = of(schema.apply(i));
            if (found[i] == null) {
                return null;
            }
        }
        return found;
    }

    private static RecordColumn of(StructField field) {
        for (RecordColumn one : values()) {
            if (one.column.equals(field.name())) {
                return one.type.equals(field.dataType().catalogString()) ? one : null;
            }
        }
        return null;
    }
}
