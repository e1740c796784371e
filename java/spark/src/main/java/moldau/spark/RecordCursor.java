package moldau.spark;

import java.util.Arrays;

/**
 * Goes over the records of one batch (message format 2), without the header of the batch. All lengths are checked, as
 * they are untrusted input.
 *
 * <p>A record: its length, one byte of attributes, the deltas of its timestamp and its offset, its key, its value, and
 * its headers. Numbers are zigzag varints. A key or a value of length -1 is null.
 */
public final class RecordCursor {
    private static final int RECORD_SIZE_MIN = 6;
    private static final int HEADER_SIZE_MIN = 2;
    private static final byte[] NO_BYTES = {};

    private byte[] data = NO_BYTES;
    /** The size of the batch; the array may be longer. */
    private int end;
    private String place = "";
    /** Records of the batch that are left. */
    private int left;
    private int position;
    private int recordEnd;
    private long timestampDelta;
    private int offsetDelta;
    private int keyStart;
    private int keySize;
    private int valueStart;
    private int valueSize;
    private int headersCount;
    private int headerPosition;

    /**
     * Begins another batch.
     *
     * @param data an array that begins with the decompressed records. It must not change before the next batch begins.
     * @param size the size of the records
     * @param count the number of records, from the header of the batch
     * @param place the batch in words, for errors
     */
    public void open(byte[] data, int size, int count, String place) {
        this.data = data;
        this.end = size;
        this.place = place;
        this.left = count;
        this.position = 0;
        this.recordEnd = end;
        // Java's int would overflow, because a count is untrusted input.
        if ((long) count * (RECORD_SIZE_MIN + 1) > end) {
            throw tooFew();
        }
        if (count == 0) {
            checkEnd();
        }
    }

    /** Goes to the next record; false behind the last record of the batch. */
    public boolean next() {
        if (left == 0) {
            return false;
        }
        left--;
        if (position == end) {
            throw tooFew();
        }
        recordEnd = end;
        int size = readVarint();
        if (size < RECORD_SIZE_MIN) {
            throw malformed("a record is shorter than its own fields");
        }
        if (size > end - position) {
            throw tooFew();
        }
        recordEnd = position + size;
        position++; // the attributes have no meaning yet
        timestampDelta = readVarlong();
        offsetDelta = readVarint();
        keySize = readSize();
        keyStart = position;
        position += Math.max(keySize, 0);
        valueSize = readSize();
        valueStart = position;
        position += Math.max(valueSize, 0);
        skipHeaders();
        if (position != recordEnd) {
            throw malformed("a record does not end at its own length");
        }
        if (left == 0) {
            checkEnd();
        }
        return true;
    }

    private void checkEnd() {
        if (position != end) {
            throw malformed("the records end " + (position - end) + " bytes off their batch's end");
        }
    }

    private void skipHeaders() {
        headersCount = readVarint();
        if (headersCount < 0 || (long) headersCount * HEADER_SIZE_MIN > recordEnd - position) {
            throw malformed("a record has too few bytes for its number of headers");
        }
        headerPosition = position;
        for (int i = 0; i < headersCount; i++) {
            int name = readSize();
            if (name < 0) {
                throw malformed("a record header without a name");
            }
            position += name;
            int value = readSize();
            position += Math.max(value, 0);
        }
    }

    long timestampDelta() {
        return timestampDelta;
    }

    int offsetDelta() {
        return offsetDelta;
    }

    /** A copy of the record's key, or null. */
    byte[] key() {
        return copy(keyStart, keySize);
    }

    /** A copy of the record's value, or null. */
    byte[] value() {
        return copy(valueStart, valueSize);
    }

    int headersCount() {
        return headersCount;
    }

    /** A copy of the next header's name. Its value must be read before the next name. */
    byte[] nextHeaderName() {
        return nextOfHeaders();
    }

    /** A copy of the value that belongs to the last name, or null. */
    byte[] nextHeaderValue() {
        return nextOfHeaders();
    }

    private byte[] nextOfHeaders() {
        int behindRecord = position;
        position = headerPosition;
        int size = readVarint();
        byte[] found = copy(position, size);
        headerPosition = position + Math.max(size, 0);
        position = behindRecord;
        return found;
    }

    private byte[] copy(int start, int size) {
        return size < 0 ? null : Arrays.copyOfRange(data, start, start + size);
    }

    /** The size of a field that must end inside the record; -1 for null. */
    private int readSize() {
        int size = readVarint();
        if (size < -1) {
            throw malformed("a negative length inside a record");
        }
        if (size > recordEnd - position) {
            throw malformed("a field runs over the end of its record");
        }
        return size;
    }

    private int readVarint() {
        byte first = readByte();
        if (first >= 0) {
            return first >>> 1 ^ -(first & 1);
        }
        long raw = first & 0x7F;
        for (int shift = 7; shift <= 35; shift += 7) {
            byte next = readByte();
            raw |= (long) (next & 0x7F) << shift;
            if (next >= 0) {
                if (raw >>> 32 != 0) {
                    break;
                }
                return (int) raw >>> 1 ^ -((int) raw & 1);
            }
        }
        throw malformed("varint of more than 32 bits");
    }

    private long readVarlong() {
        byte first = readByte();
        if (first >= 0) {
            return first >>> 1 ^ -(first & 1);
        }
        long raw = first & 0x7F;
        for (int shift = 7; shift < 70; shift += 7) {
            byte next = readByte();
            if (shift == 63 && (next & 0x7F) > 1) {
                break;
            }
            raw |= (long) (next & 0x7F) << shift;
            if (next >= 0) {
                return raw >>> 1 ^ -(raw & 1);
            }
        }
        throw malformed("varint of more than 64 bits");
    }

    private byte readByte() {
        if (position >= recordEnd) {
            throw malformed("a field runs over the end of its record");
        }
        return data[position++];
    }

    private MalformedRecordException tooFew() {
        return malformed("the records end before the batch's count is reached");
    }

    MalformedRecordException malformed(String problem) {
        return new MalformedRecordException(place + ": " + problem);
    }
}
