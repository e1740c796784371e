package moldau.spark;

import java.io.Closeable;
import java.io.EOFException;
import java.io.IOException;
import java.nio.ByteBuffer;
import java.nio.channels.FileChannel;
import java.nio.file.NoSuchFileException;
import java.nio.file.Path;

/** Reads ranges of local files into one array, which is reused. Adjacent ranges are usually in the same file. */
final class FileRanges implements Closeable {
    private static final long ARRAY_SIZE_MAX = Integer.MAX_VALUE - 8L;

    private static final int READ_BYTES = 256 * 1024;

    private byte[] buffer = {};
    private String path = "";
    private FileChannel file;

    /**
     * Reads a range of a file.
     *
     * @return an array that begins with the range. It is valid until the next call.
     */
    byte[] read(String path, long position, int size) throws IOException {
        if (!path.equals(this.path)) {
            open(path);
        }
        if (buffer.length < size) {
            buffer = new byte[(int) Math.min(ARRAY_SIZE_MAX, size + size / 4L)];
        }
        ByteBuffer target = ByteBuffer.wrap(buffer, 0, size);
        while (target.position() < size) {
            // The JDK copies each read through memory outside the heap, and keeps this memory for the thread.
            target.limit(Math.min(size, target.position() + READ_BYTES));
            if (file.read(target, position + target.position()) < 0) {
                throw new EOFException(path + " ends before byte " + (position + size));
            }
        }
        return buffer;
    }

    private void open(String path) throws IOException {
        close();
        try {
            file = FileChannel.open(Path.of(path));
        } catch (NoSuchFileException error) {
            String advice = "the next try of the task looks up the new place of its records";
            throw new IOException(path + " was deleted before it was read; " + advice, error);
        }
        this.path = path;
    }

    @Override
    public void close() throws IOException {
        if (file != null) {
            file.close();
            file = null;
        }
        path = "";
    }
}
