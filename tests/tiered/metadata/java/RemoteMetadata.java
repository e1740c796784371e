import java.util.HexFormat;
import java.util.Scanner;
import org.apache.kafka.server.log.remote.metadata.storage.RemoteLogMetadataTopicPartitioner;
import org.apache.kafka.server.log.remote.metadata.storage.serialization.RemoteLogMetadataSerde;
import org.apache.kafka.server.log.remote.storage.RemoteLogMetadata;

/** Reads values of __remote_log_metadata. Each line has one value in hex. Prints three lines for each value. */
public class RemoteMetadata {
    public static void main(String[] arguments) {
        HexFormat hex = HexFormat.of();
        RemoteLogMetadataSerde serde = new RemoteLogMetadataSerde();
        Scanner lines = new Scanner(System.in);
        while (lines.hasNextLine()) {
            RemoteLogMetadata event = serde.deserialize(hex.parseHex(lines.nextLine()));
            System.out.println(event);
            System.out.println(hex.formatHex(serde.serialize(event)));
            System.out.println(new RemoteLogMetadataTopicPartitioner(50).metadataPartition(event.topicIdPartition()));
        }
    }
}
