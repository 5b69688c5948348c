import java.nio.file.Files;
import java.nio.file.Path;
import java.time.Duration;
import java.util.ArrayList;
import java.util.List;
import java.util.Map;
import java.util.Properties;
import java.util.concurrent.TimeUnit;
import org.apache.kafka.clients.consumer.KafkaConsumer;
import org.apache.kafka.clients.producer.KafkaProducer;
import org.apache.kafka.clients.producer.ProducerRecord;
import org.apache.kafka.common.Metric;
import org.apache.kafka.common.MetricName;
import org.apache.kafka.common.TopicPartition;
import org.apache.kafka.common.serialization.StringDeserializer;
import org.apache.kafka.common.serialization.StringSerializer;

/**
 * A producer and a consumer for each file of settings, at work until both have authenticated again so many times.
 *
 * <p>Arguments: a topic of two partitions, how many times, the files. Prints file, client, name and value of some
 * of their metrics. Ends with an error where a client has one, which includes a time-out.
 */
public class Renewing {
    static final int LIMIT_S = 120;
    static final List<String> TOLD =
            List.of(
                    "successful-reauthentication-total",
                    "failed-reauthentication-total",
                    "connection-creation-total",
                    "connection-close-total");

    public static void main(String[] arguments) throws Exception {
        List<Thread> working = new ArrayList<>();
        Thread.setDefaultUncaughtExceptionHandler(
                (thread, error) -> {
                    error.printStackTrace();
                    System.exit(1);
                });
        for (int index = 2; index < arguments.length; index++) {
            Path file = Path.of(arguments[index]);
            Thread thread = new Thread(() -> work(arguments[0], Integer.parseInt(arguments[1]), file));
            thread.start();
            working.add(thread);
        }
        for (Thread thread : working) {
            thread.join();
        }
    }

    static void work(String topic, int times, Path file) {
        long deadline = System.nanoTime() + TimeUnit.SECONDS.toNanos(LIMIT_S);
        Properties settings = new Properties();
        try (var reader = Files.newBufferedReader(file);
                var producer = producer(reader, settings);
                var consumer = new KafkaConsumer<>(settings, new StringDeserializer(), new StringDeserializer())) {
            var partitions = List.of(new TopicPartition(topic, 0), new TopicPartition(topic, 1));
            consumer.assign(partitions);
            consumer.seekToEnd(partitions);
            partitions.forEach(consumer::position);
            int sent = 0;
            int read = 0;
            while (!renewed(producer.metrics(), times) || !renewed(consumer.metrics(), times)) {
                if (System.nanoTime() > deadline) {
                    throw new IllegalStateException("not authenticated again in time");
                }
                producer.send(new ProducerRecord<>(topic, sent % 2, file.toString(), "")).get(LIMIT_S, TimeUnit.SECONDS);
                sent++;
                for (var each : consumer.poll(Duration.ofMillis(20))) {
                    read += each.key().equals(file.toString()) ? 1 : 0;
                }
            }
            while (read < sent && System.nanoTime() < deadline) {
                for (var each : consumer.poll(Duration.ofMillis(20))) {
                    read += each.key().equals(file.toString()) ? 1 : 0;
                }
            }
            synchronized (System.out) {
                tell(file, "producer", producer.metrics());
                tell(file, "consumer", consumer.metrics());
                System.out.println(file + "\tproducer\tsent\t" + sent);
                System.out.println(file + "\tconsumer\tread\t" + read);
            }
        } catch (Exception error) {
            throw new IllegalStateException(file.toString(), error);
        }
    }

    static KafkaProducer<String, String> producer(java.io.Reader reader, Properties settings) throws Exception {
        settings.load(reader);
        return new KafkaProducer<>(settings, new StringSerializer(), new StringSerializer());
    }

    /** So many times, and more often than there were connections. */
    static boolean renewed(Map<MetricName, ? extends Metric> metrics, int times) {
        return value(metrics, TOLD.get(0)) >= Math.max(times, 1 + value(metrics, TOLD.get(2)));
    }

    static int value(Map<MetricName, ? extends Metric> metrics, String name) {
        for (var each : metrics.entrySet()) {
            if (each.getKey().name().equals(name) && each.getKey().group().endsWith("-metrics")
                    && each.getKey().tags().size() == 1) {
                return ((Double) each.getValue().metricValue()).intValue();
            }
        }
        return 0; // there is none before there was a connection
    }

    static void tell(Path file, String client, Map<MetricName, ? extends Metric> metrics) {
        for (String name : TOLD) {
            System.out.println(file + "\t" + client + "\t" + name + "\t" + value(metrics, name));
        }
    }
}
