import java.io.PrintWriter;
import java.io.StringWriter;
import java.util.List;
import java.util.Optional;
import java.util.concurrent.CountDownLatch;
import java.util.concurrent.TimeUnit;
import org.apache.kafka.image.MetadataDelta;
import org.apache.kafka.image.MetadataImage;
import org.apache.kafka.image.loader.LoaderManifest;
import org.apache.kafka.image.loader.MetadataLoader;
import org.apache.kafka.metadata.util.SnapshotFileReader;
import org.apache.kafka.shell.command.Commands;
import org.apache.kafka.shell.state.MetadataShellPublisher;
import org.apache.kafka.shell.state.MetadataShellState;

/**
 * Runs "tree /" of Kafka's metadata shell on each file. A file is a snapshot or a segment of the metadata log.
 * Prints a line "#### N" before each tree. An error of the loader ends the program.
 *
 * The main method of the shell has a race. On a busy machine it shows no metadata, or never ends. Therefore
 * this program calls the parts of the shell itself, and loads the whole file first.
 */
public class MetadataTrees {
    static final long LIMIT_S = 300;

    public static void main(String[] files) throws Exception {
        for (int number = 0; number < files.length; number++) {
            System.out.println("#### " + number);
            System.out.print(tree(files[number]));
        }
        System.exit(0);
    }

    static String tree(String file) throws Exception {
        SnapshotFileReader[] reader = {null};
        MetadataLoader loader = new MetadataLoader.Builder()
            .setNodeId(-1)
            .setHighWaterMarkAccessor(() -> reader[0].highWaterMark())
            .setFaultHandler((message, cause) -> {
                System.err.println(file + ": " + message + ": " + cause);
                Runtime.getRuntime().halt(1);
                return new RuntimeException(cause);
            })
            .build();
        reader[0] = new SnapshotFileReader(file, loader);
        reader[0].startup();
        long end = System.nanoTime() + TimeUnit.SECONDS.toNanos(LIMIT_S);
        while (reader[0].highWaterMark().isEmpty()) { // that is, the last batch is not reached
            if (System.nanoTime() > end) throw new IllegalStateException("nothing is read of " + file);
            Thread.sleep(1);
        }
        reader[0].close(); // which waits until the last batch is handed over
        MetadataShellState state = new MetadataShellState();
        CountDownLatch isLoaded = new CountDownLatch(1);
        loader.installPublishers(List.of(new MetadataShellPublisher(state) {
            @Override
            public void onMetadataUpdate(MetadataDelta delta, MetadataImage image, LoaderManifest manifest) {
                super.onMetadataUpdate(delta, image, manifest);
                isLoaded.countDown();
            }
        })).get();
        if (!isLoaded.await(LIMIT_S, TimeUnit.SECONDS)) throw new IllegalStateException(file + " is not loaded");
        StringWriter written = new StringWriter();
        PrintWriter writer = new PrintWriter(written);
        new Commands(false).parseCommand(List.of("tree", "/")).run(Optional.empty(), writer, state);
        writer.flush();
        loader.close();
        return written.toString();
    }
}
