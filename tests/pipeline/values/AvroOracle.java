import com.fasterxml.jackson.databind.JsonNode;
import com.fasterxml.jackson.databind.ObjectMapper;
import java.io.BufferedReader;
import java.io.InputStreamReader;
import java.math.BigDecimal;
import java.nio.ByteBuffer;
import java.time.Instant;
import java.time.LocalDate;
import java.time.LocalDateTime;
import java.time.LocalTime;
import java.time.ZoneOffset;
import java.time.temporal.ChronoUnit;
import java.util.ArrayList;
import java.util.HexFormat;
import java.util.LinkedHashMap;
import java.util.List;
import java.util.Map;
import java.util.TreeMap;
import org.apache.avro.Conversions;
import org.apache.avro.Schema;
import org.apache.avro.data.TimeConversions;
import org.apache.avro.generic.GenericData;
import org.apache.avro.generic.GenericDatumReader;
import org.apache.avro.generic.GenericEnumSymbol;
import org.apache.avro.generic.GenericFixed;
import org.apache.avro.generic.IndexedRecord;
import org.apache.avro.io.BinaryDecoder;
import org.apache.avro.io.DecoderFactory;

/** Reads lines of {writer, reader, hex} and prints a line for each: {"value": ...} or {"error": "..."}. */
public class AvroOracle {
  private static final ObjectMapper JSON = new ObjectMapper();

  public static void main(String[] arguments) throws Exception {
    GenericData data = new GenericData();
    data.addLogicalTypeConversion(new Conversions.DecimalConversion());
    data.addLogicalTypeConversion(new TimeConversions.DateConversion());
    data.addLogicalTypeConversion(new TimeConversions.TimeMillisConversion());
    data.addLogicalTypeConversion(new TimeConversions.TimeMicrosConversion());
    data.addLogicalTypeConversion(new TimeConversions.TimestampMillisConversion());
    data.addLogicalTypeConversion(new TimeConversions.TimestampMicrosConversion());
    data.addLogicalTypeConversion(new TimeConversions.LocalTimestampMillisConversion());
    data.addLogicalTypeConversion(new TimeConversions.LocalTimestampMicrosConversion());
    BufferedReader lines = new BufferedReader(new InputStreamReader(System.in, "UTF-8"));
    for (String line = lines.readLine(); line != null; line = lines.readLine()) {
      JsonNode given = JSON.readTree(line);
      Map<String, Object> answer = new LinkedHashMap<>();
      try {
        Schema writer = new Schema.Parser().parse(given.get("writer").asText());
        Schema reader = new Schema.Parser().parse(given.get("reader").asText());
        byte[] bytes = HexFormat.of().parseHex(given.get("hex").asText());
        BinaryDecoder decoder = DecoderFactory.get().binaryDecoder(bytes, null);
        Object found = new GenericDatumReader<Object>(writer, reader, data).read(null, decoder);
        if (!decoder.isEnd()) {
          throw new IllegalStateException("bytes are left");
        }
        answer.put("value", plain(found));
      } catch (Exception error) {
        answer.put("error", error.getClass().getSimpleName());
      }
      System.out.println(JSON.writeValueAsString(answer));
    }
  }

  private static Object plain(Object found) {
    if (found instanceof IndexedRecord) {
      Map<String, Object> fields = new TreeMap<>();
      IndexedRecord record = (IndexedRecord) found;
      for (Schema.Field field : record.getSchema().getFields()) {
        fields.put(field.name(), plain(record.get(field.pos())));
      }
      return fields;
    }
    if (found instanceof Map) {
      Map<String, Object> entries = new TreeMap<>();
      ((Map<?, ?>) found).forEach((key, value) -> entries.put(key.toString(), plain(value)));
      return entries;
    }
    if (found instanceof List) {
      List<Object> elements = new ArrayList<>();
      ((List<?>) found).forEach(one -> elements.add(plain(one)));
      return elements;
    }
    if (found instanceof ByteBuffer) {
      ByteBuffer buffer = ((ByteBuffer) found).duplicate();
      byte[] bytes = new byte[buffer.remaining()];
      buffer.get(bytes);
      return Map.of("hex", HexFormat.of().formatHex(bytes));
    }
    if (found instanceof GenericFixed) {
      return Map.of("hex", HexFormat.of().formatHex(((GenericFixed) found).bytes()));
    }
    if (found instanceof BigDecimal) {
      return Map.of("decimal", ((BigDecimal) found).toPlainString());
    }
    if (found instanceof LocalDate) {
      return Map.of("days", ((LocalDate) found).toEpochDay());
    }
    if (found instanceof LocalTime) {
      return Map.of("us", ((LocalTime) found).toNanoOfDay() / 1000);
    }
    if (found instanceof Instant) {
      return Map.of("us", ChronoUnit.MICROS.between(Instant.EPOCH, (Instant) found));
    }
    if (found instanceof LocalDateTime) {
      return Map.of("us", ChronoUnit.MICROS.between(Instant.EPOCH, ((LocalDateTime) found).toInstant(ZoneOffset.UTC)));
    }
    if (found instanceof CharSequence || found instanceof GenericEnumSymbol) {
      return found.toString();
    }
    if (found instanceof Float) {
      return ((Float) found).doubleValue();
    }
    return found;
  }
}
