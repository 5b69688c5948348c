import java.util.ArrayList;
import java.util.List;
import kafka.server.KafkaConfig;
import kafka.server.KafkaRaftServer;
import org.apache.kafka.common.utils.Time;
import org.apache.kafka.common.utils.Utils;

/** Runs a Kafka broker for each properties file that is named, all of them in this one process. */
public class Together {
    public static void main(String[] files) throws Exception {
        List<KafkaRaftServer> servers = new ArrayList<>();
        for (String file : files) {
            servers.add(new KafkaRaftServer(KafkaConfig.fromProps(Utils.loadProps(file)), Time.SYSTEM));
        }
        List<Thread> starting = new ArrayList<>();
        for (KafkaRaftServer server : servers) {
            Thread thread = new Thread(server::startup);
            thread.start();
            starting.add(thread);
        }
        for (Thread thread : starting) {
            thread.join();
        }
        Thread.currentThread().join();
    }
}
