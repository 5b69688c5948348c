import java.time.Duration;
import java.util.List;
import java.util.Map;
import java.util.Properties;
import java.util.concurrent.TimeUnit;
import org.apache.kafka.clients.consumer.KafkaConsumer;
import org.apache.kafka.clients.producer.KafkaProducer;
import org.apache.kafka.clients.producer.ProducerRecord;
import org.apache.kafka.common.serialization.StringDeserializer;
import org.apache.kafka.common.serialization.StringSerializer;

/**
 * A transaction, and a consumer group that reads it, with whatever client library is on the class path.
 *
 * <p>Arguments: bootstrap servers, a topic, how many records. Prints where the library is, then the records.
 */
public class Newest {
    static final int LIMIT_S = 60;

    public static void main(String[] arguments) throws Exception {
        String topic = arguments[1];
        int records = Integer.parseInt(arguments[2]);
        System.out.println(KafkaProducer.class.getProtectionDomain().getCodeSource().getLocation());
        Properties settings = new Properties();
        settings.putAll(
                Map.of(
                        "bootstrap.servers", arguments[0],
                        "group.id", topic,
                        "group.protocol", "consumer",
                        "auto.offset.reset", "earliest",
                        "isolation.level", "read_committed"));
        Properties transactional = new Properties();
        transactional.putAll(Map.of("bootstrap.servers", arguments[0], "transactional.id", topic));
        try (var producer = new KafkaProducer<>(transactional, new StringSerializer(), new StringSerializer())) {
            producer.initTransactions();
            producer.beginTransaction();
            for (int number = 0; number < records; number++) {
                producer.send(new ProducerRecord<>(topic, "" + number, "record " + number));
            }
            producer.commitTransaction();
        }
        long deadline = System.nanoTime() + TimeUnit.SECONDS.toNanos(LIMIT_S);
        try (var consumer = new KafkaConsumer<>(settings, new StringDeserializer(), new StringDeserializer())) {
            consumer.subscribe(List.of(topic));
            for (int read = 0; read < records && System.nanoTime() < deadline; ) {
                for (var each : consumer.poll(Duration.ofMillis(100))) {
                    System.out.println(each.value());
                    read++;
                }
            }
        }
    }
}
