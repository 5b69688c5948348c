import java.nio.file.Files;
import java.nio.file.Path;
import java.time.Duration;
import java.util.List;
import java.util.Map;
import java.util.Properties;
import java.util.TreeSet;
import java.util.concurrent.ExecutorService;
import java.util.concurrent.Executors;
import java.util.concurrent.TimeUnit;
import java.util.concurrent.TimeoutException;
import org.apache.kafka.clients.admin.Admin;
import org.apache.kafka.clients.admin.NewTopic;
import org.apache.kafka.clients.consumer.KafkaConsumer;
import org.apache.kafka.clients.producer.KafkaProducer;
import org.apache.kafka.clients.producer.ProducerRecord;
import org.apache.kafka.common.TopicPartition;
import org.apache.kafka.common.config.ConfigResource;
import org.apache.kafka.common.protocol.Errors;
import org.apache.kafka.common.serialization.StringDeserializer;
import org.apache.kafka.common.serialization.StringSerializer;

/** rights.py for the Java clients: tries everything with each file of settings, and prints file, what, outcome. */
public class Rights {
    static final int LIMIT_S = 60;
    static final int AT_A_TIME = 6;

    interface Attempt {
        String make() throws Exception;
    }

    public static void main(String[] files) throws Exception {
        ExecutorService pool = Executors.newFixedThreadPool(AT_A_TIME);
        for (String file : files) {
            pool.submit(() -> new Rights(Path.of(file)).tryAll());
        }
        pool.shutdown();
        pool.awaitTermination(10 * LIMIT_S, TimeUnit.SECONDS);
        System.exit(0);
    }

    final String name;
    final Properties settings = new Properties();

    Rights(Path file) throws Exception {
        name = file.getFileName().toString().replace(".properties", "");
        try (var reader = Files.newBufferedReader(file)) {
            settings.load(reader);
        }
    }

    Void tryAll() {
        for (String topic : List.of("open", "closed")) {
            tell("produce " + topic, () -> produce(topic));
            tell("fetch " + topic, () -> fetch(topic));
            tell("configs " + topic, () -> configs(ConfigResource.Type.TOPIC, topic));
        }
        for (String whose : List.of("mine", "theirs")) {
            String own = whose + "-" + name;
            tell("group " + whose, () -> group(own));
            tell("create " + whose, () -> admin(it -> it.createTopics(List.of(new NewTopic(own, 1, (short) 1))).all().get()));
            tell("transaction " + whose, () -> transaction(own));
        }
        tell("configs broker", () -> configs(ConfigResource.Type.BROKER, "1"));
        tell("delete closed", () -> admin(it -> it.deleteTopics(List.of("closed")).all().get()));
        tell("list", this::list);
        return null;
    }

    void tell(String what, Attempt attempt) {
        String outcome;
        try {
            outcome = attempt.make();
        } catch (Throwable error) {
            outcome = codeOf(error);
        }
        synchronized (System.out) {
            System.out.println(name + "\t" + what + "\t" + outcome);
        }
    }

    static String codeOf(Throwable error) {
        for (Throwable each = error; each != null; each = each.getCause()) {
            Errors code = Errors.forException(each);
            if (code != Errors.UNKNOWN_SERVER_ERROR) {
                return String.valueOf(code.code());
            }
        }
        return error.toString();
    }

    interface Question {
        Object ask(Admin admin) throws Exception;
    }

    String admin(Question question) throws Exception {
        try (Admin admin = Admin.create(settings)) {
            question.ask(admin);
            return "0";
        }
    }

    String configs(ConfigResource.Type type, String of) throws Exception {
        return admin(it -> it.describeConfigs(List.of(new ConfigResource(type, of))).all().get());
    }

    String list() throws Exception {
        try (Admin admin = Admin.create(settings)) {
            TreeSet<String> seen = new TreeSet<>(admin.listTopics().names().get());
            seen.retainAll(List.of("open", "closed"));
            return String.join(",", seen);
        }
    }

    KafkaProducer<String, String> producer(String setting, String value) {
        Properties own = new Properties();
        own.putAll(settings);
        own.put(setting, value);
        return new KafkaProducer<>(own, new StringSerializer(), new StringSerializer());
    }

    String produce(String topic) throws Exception {
        try (var producer = producer("enable.idempotence", "false")) {
            producer.send(new ProducerRecord<>(topic, 0, null, "java")).get(LIMIT_S, TimeUnit.SECONDS);
            return "0";
        }
    }

    String transaction(String id) {
        try (var producer = producer("transactional.id", id)) {
            producer.initTransactions();
            return "0";
        }
    }

    KafkaConsumer<String, String> consumer(Map<String, String> more) {
        Properties own = new Properties();
        own.putAll(settings);
        own.put("auto.offset.reset", "earliest");
        own.put("enable.auto.commit", "false");
        own.putAll(more);
        return new KafkaConsumer<>(own, new StringDeserializer(), new StringDeserializer());
    }

    String fetch(String topic) throws Exception {
        try (var consumer = consumer(Map.of())) {
            consumer.assign(List.of(new TopicPartition(topic, 0)));
            await(consumer);
            return "0";
        }
    }

    String group(String group) throws Exception {
        try (var consumer = consumer(Map.of("group.id", group))) {
            consumer.subscribe(List.of("open"));
            await(consumer);
            consumer.commitSync();
            return "0";
        }
    }

    static void await(KafkaConsumer<String, String> consumer) throws TimeoutException {
        long deadline = System.nanoTime() + TimeUnit.SECONDS.toNanos(LIMIT_S);
        while (consumer.poll(Duration.ofMillis(100)).isEmpty()) {
            if (System.nanoTime() > deadline) {
                throw new TimeoutException("no record");
            }
        }
    }
}
