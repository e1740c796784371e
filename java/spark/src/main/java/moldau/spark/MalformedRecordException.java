package moldau.spark;

/** A batch whose records cannot be decoded. The message begins with the partition and the offset of the batch. */
public final class MalformedRecordException extends RuntimeException {
    private static final long serialVersionUID = 1L;

    MalformedRecordException(String message) {
        super(message);
    }
}
