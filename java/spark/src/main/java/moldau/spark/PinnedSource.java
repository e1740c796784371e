package moldau.spark;

import java.util.Map;
import org.apache.spark.sql.connector.catalog.Table;
import org.apache.spark.sql.connector.expressions.Transform;
import org.apache.spark.sql.execution.datasources.v2.python.PythonDataSourceCreationResult;
import org.apache.spark.sql.execution.datasources.v2.python.PythonDataSourceV2;
import org.apache.spark.sql.types.StructType;
import org.apache.spark.sql.util.CaseInsensitiveStringMap;
import scala.Option;

/**
 * The data source in Python for one scan. All scans of a DataFrame have the topics and offsets of its {@code load()}.
 *
 * <p>Spark's own class keeps the plan of its first scan, with the filters of that scan, and uses this plan for later
 * scans, too. Therefore each scan has an object of its own.
 */
public final class PinnedSource extends PythonDataSourceV2 {
    private static final String FORMAT = "moldau";

    private final PythonDataSourceV2 loaded;

    private PinnedSource(PythonDataSourceV2 loaded) {
        this.loaded = loaded;
    }

    /** The data source in Python that Spark uses without this jar. */
    public static PythonDataSourceV2 newSource() {
        PythonDataSourceV2 source = new PythonDataSourceV2();
        source.setShortName(FORMAT);
        return source;
    }

    /** A table of {@code loaded} with the given columns, for one scan. */
    static Table newTable(PythonDataSourceV2 loaded, StructType columns) {
        PinnedSource source = new PinnedSource(loaded);
        source.setShortName(FORMAT);
        return source.getTable(columns, new Transform[0], Map.of());
    }

    @Override
    public PythonDataSourceCreationResult getOrCreateDataSourceInPython(
            String shortName, CaseInsensitiveStringMap options, Option<StructType> schema) {
        synchronized (loaded) {
            return loaded.getOrCreateDataSourceInPython(shortName, options, schema);
        }
    }
}
